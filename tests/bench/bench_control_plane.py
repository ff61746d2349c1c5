"""The control plane under load, a JSON line each: tiers, heat, lifecycle, rebalances, comparison with the database.

``python -m tests.bench.bench_control_plane [tiers heat rebalance reconcile]``. Workers are real processes with real
tables on a real broker; their host runs no mail, so the figures are those of the way from an event to the host.
Latencies stand beside a bare produce-to-consume round trip of the same records in the same run: their ratio is what
to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import psutil
from aiokafka import AIOKafkaConsumer

from streams.contracts import topics
from streams.contracts.account import AccountStateChanged, UserActive
from streams.contracts.codec import encode
from streams.directory.accounts import AccountStore
from streams.directory.reconcile import reconcile_once
from streams.domain.ownership import AccountEntry
from streams.domain.tiers import Tier, TierInput, evaluate_in_slices
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from streams.projection.migrations import migrate
from streams.settings import Settings
from tests.bench.deployment import milliseconds
from tests.bench.stage import report
from tests.integration.agents.fleet import Fleet, Worker, account_id, fleet

ACCOUNTS = 5000
RATE_PER_S = 200
COLD_S = 2.0
"""The first events of each partition are told apart: their topics are empty and the broker's code is not compiled."""
PARTITIONS = 64


# --- tiers
# -------------------------------------------------------------------------------------------------------------


async def tiers() -> None:
    """S13, S14: time per account and the longest slice, for 10,000 and 100,000 accounts."""
    per_account: dict[int, float] = {}
    for count in (10_000, 100_000):
        accounts = population(count)
        best = float("inf")
        held = 0.0
        for _ in range(5):
            total = 0.0
            slices = evaluate_in_slices(
                accounts,
                hot_budget=count // 10,
                hot_activity=timedelta(hours=24),
                cold_after=timedelta(days=14),
                now=NOW,
            )
            worst = 0.0
            while True:
                began = time.perf_counter()
                part = next(slices, None)
                took = time.perf_counter() - began
                total, worst = total + took, max(worst, took)
                if part is None:
                    break
            if total < best:
                best, held = total, worst
        per_account[count] = best / count
        report("tier_evaluation", accounts=count, us_per_account=best / count * 1e6, held_ms=held * 1000)
    report("tier_evaluation_growth", per_account_100k_to_10k=per_account[100_000] / per_account[10_000])


NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def population(count: int) -> list[TierInput]:
    """Accounts of all ages; one in twenty has a session."""
    rng = random.Random(1)
    every: Sequence[Tier] = ("hot", "warm", "cold")
    return [
        TierInput(
            f"{number:08d}",
            rng.choice(every),
            "default",
            NOW + timedelta(minutes=5) if rng.random() < 0.05 else None,
            NOW - timedelta(minutes=rng.randrange(30 * 24 * 60)),
        )
        for number in range(count)
    ]


# --- events to the host
# ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def deployment() -> AsyncIterator[Fleet]:
    """A broker, topics, no worker yet; all gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ms-bench-") as place:
        kafka = Kafka(Path(place) / "kafka")
        await kafka.start()
        try:
            prefix = f"b{secrets.token_hex(3)}."
            async with fleet(kafka.bootstrap, prefix, Path(place), partitions=PARTITIONS, session_timeout_s=6) as made:
                yield made
        finally:
            await kafka.stop()


async def announce(workers: Fleet, count: int, *, users: int) -> float:
    """Announce accounts as fast as Kafka takes them; seconds until the hosts know all."""
    began = time.perf_counter()
    heard = sum(len(worker.said("changed")) for worker in workers.workers)
    topic = workers.settings.topic(topics.STATE_CHANGED)
    for number in range(count):
        event = AccountStateChanged(
            account_id=account_id(number), user_id=f"u{number % users}", state="live", at=datetime.now(UTC), version=1
        )
        await workers.producer.send(topic, encode(event), event.account_id.encode())
    await workers.producer.flush()
    await workers.until(lambda: sum(len(worker.said("changed")) for worker in workers.workers) >= heard + count, 300)
    return time.perf_counter() - began


async def heat() -> None:
    """S12, S8: `user.active` and `account.state_changed` to the host, one worker, 5,000 accounts, 200 activities/s."""
    async with deployment() as workers:
        worker = await workers.start()
        await workers.settled(120)
        took = await announce(workers, ACCOUNTS, users=ACCOUNTS)
        report("accounts_announced", accounts=ACCOUNTS, per_s=ACCOUNTS / took)
        seen: dict[str, float] = {}
        ready = asyncio.Event()
        listening = asyncio.create_task(bare_consumer(workers.settings, seen, ready))
        await asyncio.wait_for(ready.wait(), 60)
        sent: dict[str, float] = {}
        changed: dict[str, float] = {}
        spent = processor_s(worker)
        began = time.perf_counter()
        topic = workers.settings.topic(topics.USER_ACTIVE)
        for number in range(RATE_PER_S * 15):
            await asyncio.sleep(max(0.0, began + number / RATE_PER_S - time.perf_counter()))
            user = f"u{number}"
            sent[user] = time.time()
            event = UserActive(user_id=user, source="ws_ping", at=datetime.now(UTC))
            await workers.producer.send(topic, encode(event), user.encode())
            if number % 20 == 0:
                account = account_id(ACCOUNTS - 1 - number)
                changed[account] = time.time()
                off = AccountStateChanged(
                    account_id=account,
                    user_id=f"u{ACCOUNTS - 1 - number}",
                    state="disabled",
                    at=datetime.now(UTC),
                    version=2,
                )
                await workers.producer.send(workers.settings.topic(topics.STATE_CHANGED), encode(off), account.encode())
        await workers.until(lambda: len(worker.said("heat")) >= len(sent), 120)
        await workers.until(lambda: len(worker.said("changed", state="disabled")) >= len(changed), 60)
        spent = processor_s(worker) - spent
        listening.cancel()
        await asyncio.wait({listening})
        hot = {line["account"]: float(line["at"]) for line in worker.said("heat")}
        warm = min(sent.values()) + COLD_S
        to_host = [hot[account_id(int(user[1:]))] - at for user, at in sent.items() if at >= warm]
        first = [hot[account_id(int(user[1:]))] - at for user, at in sent.items() if at < warm]
        bare = [seen[user] - at for user, at in sent.items() if user in seen and at >= warm]
        off_at = {line["account"]: float(line["at"]) for line in worker.said("changed", state="disabled")}
        report(
            "user_active_to_host",
            accounts=ACCOUNTS,
            per_s=RATE_PER_S,
            **milliseconds(to_host),
            **milliseconds(bare, "bare_"),
            **milliseconds(first, "first_seconds_"),
            times_bare_p50=milliseconds(to_host)["p50_ms"] / milliseconds(bare)["p50_ms"],
            processor_ms_per_event=spent / (len(sent) + len(changed)) * 1000,
            target_p99_ms=250,
        )
        report("state_changed_to_host", **milliseconds(off_at[name] - at for name, at in changed.items() if at >= warm))


def processor_s(worker: Worker) -> float:
    """Processor time that a worker has used."""
    times = psutil.Process(worker.process.pid).cpu_times()
    return float(times.user + times.system)


async def bare_consumer(settings: Settings, seen: dict[str, float], ready: asyncio.Event) -> None:
    """Notes when each user's activity can be read at all; `ready` when it stands at the ends of the partitions."""
    consumer = AIOKafkaConsumer(settings.topic(topics.USER_ACTIVE), **settings.kafka_client())
    await consumer.start()
    try:
        for tp in consumer.assignment():
            await consumer.position(tp)
        ready.set()
        async for record in consumer:
            seen.setdefault(record.key.decode(), time.time())
    finally:
        await consumer.stop()


# --- rebalances
# --------------------------------------------------------------------------------------------------------


async def rebalance() -> None:
    """S6: for how long a rebalance holds the loop of workers whose accounts stay, and how long it takes."""
    async with deployment() as workers:
        one, two = await workers.start(), await workers.start()
        await workers.settled(120)
        await announce(workers, 2 * ACCOUNTS, users=1000)
        third = await measured(workers, "a third worker joins", (one, two), workers.start)
        assert isinstance(third, Worker)

        async def kill() -> None:
            third.signal(signal.SIGKILL)
            await third.process.wait()

        await measured(workers, "the third dies by kill -9", (one, two), kill)
        fourth = await workers.start()
        await workers.settled(120)

        async def die_while_another_joins() -> None:
            await workers.start()
            fourth.signal(signal.SIGKILL)
            await fourth.process.wait()

        await measured(workers, "one dies by kill -9 while another joins", (one, two), die_while_another_joins)


async def measured(workers: Fleet, what: str, kept: Sequence[Worker], act: Callable[[], Awaitable[object]]) -> object:
    """Do it and report what the workers that stay felt. Their shards are never told to stop what stays."""
    before = {worker.name: worker.held for worker in kept}
    began = time.time()
    outcome = await act()
    await workers.settled(180)
    ended = time.time()
    took = ended - began
    # what the loop felt up to the end is told with its next line
    await workers.until(lambda: all(worker.said("loop")[-1]["at"] > ended for worker in kept), 60)
    held = [line["held_s"] for worker in kept for line in worker.said("loop") if line["at"] > began]
    for worker in kept:
        stayed = worker.held & before[worker.name]
        assert all(stayed <= set(line["partitions"]) for line in worker.said("assigned") if line["at"] > began)
    report("rebalance", what=what, took_s=took, kept_workers_held_ms=max(held) * 1000)
    return outcome


# --- comparison with the database
# --------------------------------------------------------------------------------------


async def reconcile(count: int = 100_000) -> None:
    """S7: 100,000 accounts in PostgreSQL against 100,000 known ones, one in a hundred different."""
    with tempfile.TemporaryDirectory(prefix="ms-bench-") as place:
        Path(place).chmod(0o711)
        postgres = Postgres(Path(place) / "postgres")
        await postgres.start()
        try:
            await migrate(postgres.dsn())
            connection = await asyncpg.connect(postgres.dsn())
            rng = random.Random(2)
            ids = [uuid.UUID(int=rng.getrandbits(128), version=4) for _ in range(count)]
            await connection.execute(
                "INSERT INTO mailstreams.accounts"
                " (account_id, user_id, state, host, port, tls, username, auth, secret_ref)"
                " SELECT id, 'u', 'live', 'h', 993, 'tls', id::text, 'secret_ref', 's' FROM unnest($1::uuid[]) AS id",
                ids,
            )
            rows = await connection.fetch("SELECT account_id, version FROM mailstreams.accounts")
            await connection.close()
            known = [
                AccountEntry(str(row["account_id"]), "u", "disabled" if number % 100 == 0 else "live", row["version"])
                for number, row in enumerate(rows)
            ]
            settings = Settings(POSTGRES_DSN=postgres.dsn())
            store = await AccountStore.open(settings)
            try:
                await _compare(store, known, settings)
            finally:
                await store.close()
        finally:
            await postgres.stop()


async def _compare(store: AccountStore, known: Sequence[AccountEntry], settings: Settings) -> None:
    async def entries() -> AsyncIterator[AccountEntry]:
        for number, entry in enumerate(known):
            yield entry
            if number % 200 == 0:
                await asyncio.sleep(0)

    async def publish(_event: AccountStateChanged) -> None:
        await asyncio.sleep(0)

    held = [0.0]
    watching = asyncio.create_task(watch_loop(held))
    began = time.perf_counter()
    found = await reconcile_once(
        store, entries(), publish, settings.RECONCILE_PAGE, range(PARTITIONS), partition_count=PARTITIONS
    )
    took = time.perf_counter() - began
    watching.cancel()
    await asyncio.wait({watching})
    report(
        "reconcile",
        accounts=found.ours,
        announced=found.announced,
        us_per_account=took / found.rows * 1e6,
        held_ms=held[0] * 1000,
    )


async def watch_loop(held: list[float]) -> None:
    """The longest time between two turns of the loop, in `held[0]`."""
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0)
        now = time.perf_counter()
        held[0], last = max(held[0], now - last), now


BENCHES = {"tiers": tiers, "heat": heat, "rebalance": rebalance, "reconcile": reconcile}


def main(arguments: Sequence[str]) -> None:
    """Run the named ones, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help="which; all by default")
    for name in parser.parse_args(arguments).names or BENCHES:
        asyncio.run(BENCHES[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
