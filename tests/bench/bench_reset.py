"""A mailbox gets another UIDVALIDITY, on a real Dovecot with a real shard: what the log is told, and what it costs.

Asserted: one `mailbox.reset`, then a `message.moved` for each message, in batches of a chunk; nothing added, nothing
removed, no body fetched; and that memory does not follow the mailbox, seen at two sizes. Memory is what Python
allocates from the reset on (tracemalloc, which also makes all of this slow: times are no figures here).
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from streams.imap.session import ImapSession
from streams.imap.values import FetchChunk
from streams.sync.log import Batch, ShardLog
from tests.bench.bench_resync import ready, small, stage_partition
from tests.bench.stage import Bench, bench, fill, report, run

SIZES = (20_000, 100_000)
LIMIT_S = 800.0
CHUNK = 500
BYTES_PER_MESSAGE = 100
"""Memory that each further message may cost: 16 for the held removal, its identities of both epochs, bitmaps."""
NO_BODY = (b"UID", b"FLAGS", b"MODSEQ", b"INTERNALDATE", b"RFC822.SIZE", b"BODYSTRUCTURE", b"BODY.PEEK[HEADER.FIELDS (")


@dataclass
class Seen:
    """What went to the log and what was asked of the server."""

    kinds: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    most_moves: int = 0
    largest: int = 0
    items: Counter[bytes] = field(default_factory=Counter)


@contextmanager
def recorded(log: ShardLog, seen: Seen) -> Any:
    """Look at every batch on its way to the log, and at the items of every FETCH."""
    submit, fetch = log.submit, ImapSession.uid_fetch

    def spy(batch: Batch) -> Any:
        kinds = [dict(record.headers).get("ce_type", b"").decode() for record in batch.records]
        seen.kinds.update(kinds)
        seen.order += [kind for kind in kinds if kind not in seen.order]
        seen.most_moves = max(seen.most_moves, kinds.count("message.moved"))
        seen.largest = max(seen.largest, batch.size())
        return submit(batch)

    def fetching(
        session: ImapSession, uids: str, items: Sequence[bytes], **how: Any
    ) -> AsyncGenerator[FetchChunk, None]:
        seen.items.update(items)
        return fetch(session, uids, items, **how)

    log.submit = spy  # type: ignore[method-assign]
    ImapSession.uid_fetch = fetching  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        log.submit = submit  # type: ignore[method-assign]
        ImapSession.uid_fetch = fetch  # type: ignore[method-assign]


async def measured(stage: Bench, count: int) -> float:
    """One mailbox of that size; returns the peak of memory in bytes."""
    user = f"reset{count}"
    stage.dovecot.add_user(user, "pw")
    fill(stage.dovecot, user, small(count))
    account = await stage.add(user, "pw")
    async with stage.host() as host:
        runner = await ready(stage, host, account, count)
        shard = host.shard(stage_partition(stage, account))
        assert shard is not None
        assert shard.log is not None
        seen, process = Seen(), psutil.Process()
        with recorded(shard.log, seen):
            await stage.dovecot.reset_uidvalidity(user, "INBOX")
            before = most = process.memory_info().rss
            tracemalloc.start()
            started = time.monotonic()
            runner.poke()
            try:
                while seen.kinds["backfill.completed"] == 0:
                    most = max(most, process.memory_info().rss)
                    if time.monotonic() - started > LIMIT_S:
                        raise TimeoutError(f"the reset did not end: {seen.kinds}")
                    await asyncio.sleep(0.05)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        del stage.entries[account]
    kinds = seen.kinds
    report(
        "uidvalidity_reset_memory",
        messages=count,
        resets=kinds["mailbox.reset"],
        moved=kinds["message.moved"],
        added=kinds["message.added"],
        removed=kinds["message.removed"],
        most_moves_in_a_batch=seen.most_moves,
        largest_batch_bytes=seen.largest,
        peak_mib=peak / 2**20,
        rss_growth_mib=(most - before) / 2**20,
    )
    assert kinds["mailbox.reset"] == 1, kinds
    assert kinds["message.moved"] == count, kinds
    assert kinds["message.added"] == kinds["message.removed"] == 0, kinds
    assert seen.order.index("mailbox.reset") < seen.order.index("message.moved")
    assert seen.most_moves <= CHUNK
    bodies = [item for item in seen.items if not item.startswith(NO_BODY)]
    assert not bodies, f"asked for again: {bodies}"
    return float(peak)


async def main(sizes: Sequence[int]) -> None:
    """One after the other, and what each further message costs."""
    quiet: dict[str, Any] = {"POLL_WARM": 36_000.0, "POLL_COLD": 36_000.0, "FULL_RECONCILE_S": 36_000.0}
    async with bench(**quiet) as stage:
        peaks = [await measured(stage, size) for size in sizes]
    each = (peaks[-1] - peaks[0]) / (sizes[-1] - sizes[0])
    report("uidvalidity_reset_memory_per_message", bytes=each, limit_bytes=BYTES_PER_MESSAGE, sizes=list(sizes))
    assert each <= BYTES_PER_MESSAGE, f"{each:.0f} bytes for each further message"


if __name__ == "__main__":
    run(main([int(size) for size in sys.argv[1:]] or SIZES))
