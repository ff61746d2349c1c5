"""What staying in sync costs with 100,000 messages: a change in a large mailbox, a poll with nothing new, one arrival.

Counts, not times: commands and bytes on the wire beside the targets, bytes handed to Kafka.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sized
from typing import Any

import psutil
from imapclient import IMAPClient

from streams.contracts.keys import partition_for
from streams.imap.session import ImapSession
from streams.sync.context import PassResult
from streams.sync.log import Batch, ShardLog
from streams.sync.passes import AccountPass
from streams.sync.runner import AccountRunner
from streams.sync.state import AccountState
from tests.bench.stage import Bench, bench, fill, report, run

FOLDERS = 19


def small(count: int, start: int = 0) -> Iterator[bytes]:
    """Small messages, each another."""
    for n in range(start, start + count):
        yield (
            f"From: Sender {n} <s{n}@example.test>\r\nTo: me@example.test\r\nSubject: number {n}\r\n"
            f"Message-ID: <{n}@example.test>\r\nDate: Mon, 30 Nov 2026 10:00:00 +0000\r\n\r\nbody {n}\r\n"
        ).encode()


async def ready(stage: Bench, host: Any, account: str, count: int) -> AccountRunner:
    """Wait until all of the history is in the log."""
    deadline = time.monotonic() + 900
    while True:
        runner: AccountRunner | None = host.runner(account)
        if runner is not None and runner.phase == "running" and runner.messages >= count:
            return runner
        if time.monotonic() > deadline:
            raise TimeoutError(f"{runner.messages if runner else 0} of {count}")
        await asyncio.sleep(0.1)


async def measured(runner: AccountRunner) -> tuple[dict[str, int], PassResult]:
    """One pass on a connection that is open already; what it cost."""

    async def work(session: ImapSession, state: AccountState, account_pass: AccountPass) -> Any:
        before = session.traffic
        result = await account_pass.run(session)
        after = session.traffic
        return {
            "commands": after.commands_sent - before.commands_sent,
            "round_trips": after.round_trips - before.round_trips,
            "bytes_received": after.bytes_received - before.bytes_received,
            "login_commands": before.commands_sent,
            "login_bytes": before.bytes_received,
        }, result

    found: tuple[dict[str, int], PassResult] = await runner.perform("bench", work)
    return found


def client(stage: Bench, user: str) -> IMAPClient:
    """Another client of the same user."""
    made = IMAPClient("127.0.0.1", stage.dovecot.port, ssl=False)
    made.login(user, "pw")
    return made


async def at_rest(seen: Sized, *, for_s: float = 1.0, within_s: float = 30.0) -> None:
    """Until this has not grown for so long."""
    size, since = len(seen), time.monotonic()
    async with asyncio.timeout(within_s):
        while time.monotonic() - since < for_s:
            await asyncio.sleep(0.05)
            if len(seen) > size:
                size, since = len(seen), time.monotonic()


async def arrival_bytes(stage: Bench, log: ShardLog, user: str) -> tuple[int, int]:
    """Bytes submitted to the log for one arrival in a hot INBOX, and in how many batches."""
    sizes: list[int] = []
    arrived = asyncio.Event()
    submit = log.submit

    def spy(batch: Batch) -> Any:
        records = sum(
            len(r.value or b"") + len(r.key or b"") + sum(len(k) + len(v) for k, v in r.headers) for r in batch.records
        )
        sizes.append(records + sum(len(k) + len(v or b"") + len(about) for k, (v, about) in batch.mirror.items()))
        if any(b"message.added" in (r.value or b"") for r in batch.records):
            arrived.set()
        return submit(batch)

    log.submit = spy  # type: ignore[method-assign]
    try:
        await at_rest(sizes)  # what the beginning of the watch brought is over
        sizes.clear()
        with client(stage, user) as other:
            other.append("INBOX", next(small(1, 10**6)))
        async with asyncio.timeout(120):
            await arrived.wait()
        await at_rest(sizes)  # what follows at once counts too
    finally:
        log.submit = submit  # type: ignore[method-assign]
    return sum(sizes), len(sizes)


async def reset_cost(stage: Bench, runner: AccountRunner, log: ShardLog, user: str, count: int) -> dict[str, Any]:
    """INBOX gets another UIDVALIDITY: events, largest batch, memory on top of what the process had."""
    kinds: Counter[str] = Counter()
    largest = 0
    submit = log.submit

    def spy(batch: Batch) -> Any:
        nonlocal largest
        largest = max(largest, batch.size())
        for record in batch.records:
            kinds[dict(record.headers).get("ce_type", b"").decode()] += 1
        return submit(batch)

    process = psutil.Process()
    before = peak = process.memory_info().rss
    log.submit = spy  # type: ignore[method-assign]
    started = time.monotonic()
    try:
        await stage.dovecot.reset_uidvalidity(user, "INBOX")
        runner.poke()
        while kinds["backfill.completed"] == 0:
            peak = max(peak, process.memory_info().rss)
            if time.monotonic() - started > 600:
                raise TimeoutError(f"the reset did not end: {kinds}")
            await asyncio.sleep(0.01)
    finally:
        log.submit = submit  # type: ignore[method-assign]
    assert kinds["message.moved"] >= count, kinds
    return {
        "moved": kinds["message.moved"],
        "added": kinds["message.added"],
        "removed": kinds["message.removed"],
        "largest_batch_bytes": largest,
        "memory_growth_mib": (peak - before) / 2**20,
        "messages_per_s": count / (time.monotonic() - started),
    }


async def main(count: int) -> None:
    """One large INBOX and 19 folders, `count` messages together."""
    each = count // 100
    inbox = count - FOLDERS * each
    async with bench(FETCH_STRUCTURE=False, POLL_WARM=36_000.0, POLL_COLD=36_000.0, FULL_RECONCILE_S=36_000.0) as stage:
        stage.dovecot.add_user("big", "pw")
        fill(stage.dovecot, "big", small(inbox))
        for n in range(FOLDERS):
            fill(stage.dovecot, "big", small(each, 10**7 + n * each), folder=f"f{n}")
        account = await stage.add("big", "pw")
        async with stage.host() as host:
            runner = await ready(stage, host, account, count)
            with client(stage, "big") as other:
                other.select_folder("INBOX")
                other.add_flags([1], [b"\\Flagged"])
            await measured(runner)  # a runner's first look into a mailbox spot-checks it
            cost, _ = await measured(runner)
            report("poll_nothing_new", messages=count, folders=FOLDERS + 1, **cost, target_round_trips=5)
            with client(stage, "big") as other:
                other.select_folder("INBOX")
                other.add_flags([inbox // 2], [b"\\Flagged"])
                other.delete_messages([inbox // 3])
                other.expunge()
            cost, result = await measured(runner)
            assert (result.flags, result.removed) == (1, 1), result
            report(
                "expunge_and_flag_with_qresync",
                messages=count,
                **cost,
                target_commands=5,
                target_bytes_received=4096,
            )
            runner.set_tier("hot", "session")
            while not runner.watching:
                await asyncio.sleep(0.01)
            shard = host.shard(stage_partition(stage, account))
            assert shard is not None
            assert shard.log is not None
            total, batches = await arrival_bytes(stage, shard.log, "big")
            report("hot_arrival_bytes_to_kafka", messages=count, bytes=total, batches=batches, target_bytes=24 * 1024)
            runner.set_tier("warm", "idle_mail")
            report("uidvalidity_reset", messages=inbox, **await reset_cost(stage, runner, shard.log, "big", inbox - 1))


def stage_partition(stage: Bench, account: str) -> int:
    """The account's partition."""
    return partition_for(account, stage.settings.PARTITIONS)


if __name__ == "__main__":
    run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
