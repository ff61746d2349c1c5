"""The log into PostgreSQL: events per second beside the floor of the same run, and how long the newest event takes.

``python -m tests.bench.bench_projection [--events N]``; one JSON line each. ``to_floor`` is the projector's rate, rows
and positions and indexes and all, over a plain COPY of the same messages into one table without indexes.
``cpu_us_per_event`` is this process's processor time; PostgreSQL's own comes on top.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import asyncpg
import msgspec

from streams.contracts.mailbox import Address, Attachment, MessageAdded, MessageHeaders
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from streams.projection.migrations import migrate
from streams.projection.projector import Projector
from streams.projection.rebuild import rebuild
from tests.bench.stage import report
from tests.fixtures.mail_events import EPOCH, AccountLog
from tests.integration.projection.log import LogWriter, create_topics, deployment

ACCOUNTS = 20
TRANSACTION = 500
ARRIVALS = 100


def arrival(log: AccountLog, number: int) -> MessageAdded:
    """A message as backfill tells it."""
    return log.added(
        log.sequence + 1,
        f"{number:020x}",
        flags=("\\Seen", "\\Answered"),
        modseq="123456",
        internal_date=EPOCH - timedelta(minutes=number),
        headers=MessageHeaders(
            from_=(Address(name="Some One", address=f"someone{number % 997}@example.test"),),
            to=(Address(name="Me Myself", address="me@example.test"),),
            subject=f"Subject of message number {number}",
            date=EPOCH,
            message_id=f"<{number}@mail.example.test>",
            references=(f"<{number - 1}@mail.example.test>",),
        ),
        attachments=(Attachment(part="2", content_type="application/pdf", filename="a.pdf", size=1000),),
    )


async def floor(dsn: str, events: list[MessageAdded]) -> float:
    """Messages per second of a COPY into a table without indexes, in the same chunks."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE TABLE floor (account_id uuid, message_id text, uid bigint, value jsonb)")
        began = time.perf_counter()
        for first in range(0, len(events), 2000):
            rows = [
                (e.account_id, e.message_id, e.uid, msgspec.json.encode(e).decode())
                for e in events[first : first + 2000]
            ]
            await connection.copy_records_to_table("floor", records=rows)
        return len(events) / (time.perf_counter() - began)
    finally:
        await connection.close()


async def until(connection: asyncpg.Connection, query: str, wanted: int) -> None:
    async with asyncio.timeout(600):
        while await connection.fetchval(query) < wanted:
            await asyncio.sleep(0.002)


async def run(count: int, directory: Path) -> None:
    kafka, postgres = Kafka(directory / "kafka"), Postgres(directory / "postgres")
    await kafka.start()
    await postgres.start()
    try:
        dsn = postgres.dsn()
        await migrate(dsn)
        settings = deployment(kafka.bootstrap, dsn, "")
        await create_topics(settings)
        writer = LogWriter(settings)
        await writer.start()
        logs = [AccountLog() for _ in range(ACCOUNTS)]
        events = [arrival(logs[number % ACCOUNTS], number) for number in range(count)]
        for first in range(0, count, TRANSACTION):
            await writer.write(*events[first : first + TRANSACTION])
        connection = await asyncpg.connect(dsn)
        bare = await floor(dsn, events)

        projector = Projector(settings)
        began, processor = time.perf_counter(), time.process_time()
        await projector.start()
        await until(connection, "SELECT coalesce(sum(sequence), 0)::bigint FROM mail.accounts", count)
        seconds, cpu = time.perf_counter() - began, time.process_time() - processor
        report(
            "projection",
            events=count,
            events_per_s=count / seconds,
            to_floor=count / seconds / bare,
            cpu_us_per_event=cpu / count * 1e6,
        )

        waits = []
        for number in range(count, count + ARRIVALS):
            await writer.write(arrival(logs[0], number))
            began = time.perf_counter()
            await until(connection, "SELECT sum(sequence)::bigint FROM mail.accounts", number + 1)
            waits.append((time.perf_counter() - began) * 1000)
        waits.sort()
        report("projection_commit_to_row", p50_ms=waits[ARRIVALS // 2], p99_ms=waits[-2])

        done = await rebuild(settings)
        report(
            "projection_rebuild",
            events_per_s=done.events / done.seconds,
            to_floor=done.events / done.seconds / bare,
            held_s=done.held_s,
        )
        await projector.stop()
        await connection.close()
        await writer.stop()
    finally:
        await postgres.stop()
        await kafka.stop()


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=40_000)
    directory = Path(tempfile.mkdtemp(prefix="ms-bench-"))
    directory.chmod(0o711)
    try:
        asyncio.run(run(parser.parse_args(arguments).events, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
