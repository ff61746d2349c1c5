"""Commands that do nothing, on one worker, beside bare aiokafka that reads and writes as many records in the same run.

Figures: ratio of rates (target 0.2; ours writes three records a command, in transactions); time from sending a command
to its `started` as a reader sees it, with 1,000 accounts busy, beside a bare transaction of one record in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from streams.commands.handlers import Handlers, NoArgs, Task
from streams.contracts import topics
from streams.contracts.commands import AnyCommandEvent, Command, CommandStarted
from streams.local.kafka import Kafka
from streams.runtime.garbage import settle_heap
from tests.bench.stage import report
from tests.integration.commands.rig import Jobs, JobWorker, settings_for

PARTITIONS = 8
LIMIT_S = 300.0
_EVENTS: msgspec.json.Decoder[AnyCommandEvent] = msgspec.json.Decoder(AnyCommandEvent)


async def noop(args: NoArgs, task: Task) -> None:
    """Nothing."""


async def short(args: NoArgs, task: Task) -> None:
    """As long as a look at a mail server."""
    await asyncio.sleep(0.02)


def handlers() -> Handlers:
    made = Handlers()
    made.add("noop", noop, args=NoArgs)
    made.add("short", short, args=NoArgs)
    return made


def command(kind: str, account_id: str) -> Command:
    return Command(command_id=str(uuid.uuid4()), account_id=account_id, kind=kind, at=datetime.now(UTC))


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="ms-bench-"))
    directory.chmod(0o711)
    kafka = Kafka(directory / "kafka")
    try:
        await kafka.start()
        yield kafka.bootstrap
    finally:
        await kafka.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def bare(jobs: Jobs, count: int) -> float:
    """Records a second, read from `sync.jobs` and each answered by one record; offsets committed once a batch."""
    consumer = AIOKafkaConsumer(
        jobs.settings.topic(topics.JOBS),
        **jobs.settings.kafka_client(),
        group_id=f"bare-{uuid.uuid4()}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(**jobs.settings.kafka_client(), enable_idempotence=True, max_batch_size=1 << 20)
    await producer.start()
    await consumer.start()
    try:
        await consumer.getmany(timeout_ms=5000, max_records=1)
        await consumer.seek_to_beginning()
        answer = jobs.settings.topic(topics.COMMAND_EVENTS)
        done, began = 0, time.monotonic()
        while done < count:
            batches = await consumer.getmany(timeout_ms=200, max_records=500)
            futures = [
                await producer.send(answer, record.value, key=record.key)
                for records in batches.values()
                for record in records
            ]
            if futures:
                await asyncio.gather(*futures)
                await consumer.commit()
            done += len(futures)
        return count / (time.monotonic() - began)
    finally:
        await consumer.stop()
        await producer.stop()


async def ours(jobs: Jobs, count: int) -> float:
    """Commands a second, from the first assignment to the last conclusion in the log."""
    worker = JobWorker(jobs, handlers(), concurrency=16)
    async with worker:
        began = time.monotonic()
        async with asyncio.timeout(LIMIT_S):
            while worker.observer.counts["finished", "noop", "success", ""] < count:
                await asyncio.sleep(0.02)
        return count / (time.monotonic() - began)


async def throughput(count: int) -> None:
    """Both on the same records, the better of two runs each."""
    async with broker() as bootstrap:
        theirs, mine = [], []
        for run in range(2):
            jobs = Jobs(settings_for(bootstrap, f"b{run}.", PARTITIONS=PARTITIONS))
            await jobs.create_topics()
            accounts = [next(jobs.accounts) for _ in range(1000)]
            await jobs.send(*(command("noop", accounts[number % 1000]) for number in range(count)))
            theirs.append(await bare(jobs, count))
            mine.append(await ours(jobs, count))
        report(
            "commands_throughput",
            commands=count,
            ours_per_s=max(mine),
            bare_per_s=max(theirs),
            ratio=max(mine) / max(theirs),
            target_ratio=0.2,
        )


async def bare_transactions(jobs: Jobs, seen: list[float]) -> None:
    """One record after the other in a transaction of its own: seconds until a reader has it. Until cancelled."""
    topic = jobs.settings.topic(topics.COMMANDS)
    producer = AIOKafkaProducer(**jobs.settings.kafka_client(), transactional_id=f"bare-{uuid.uuid4()}")
    await producer.start()
    try:
        async with jobs.reader(topics.COMMANDS) as reader:
            await reader.seek_to_end()
            while True:
                began = time.monotonic()
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"x", partition=0)
                while not await reader.getmany(timeout_ms=1000):
                    pass
                seen.append(time.monotonic() - began)
                await asyncio.sleep(0.1)
    finally:
        await producer.stop()


def quantiles(seconds: list[float], name: str) -> dict[str, float]:
    """Median, 99th percentile and maximum, in milliseconds."""
    ordered = sorted(seconds)
    return {
        f"{name}p50_ms": statistics.median(ordered) * 1000,
        f"{name}p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
        f"{name}max_ms": ordered[-1] * 1000,
    }


async def latency(count: int, rate: float = 200.0) -> None:
    """Commands of 20 ms at a steady rate, over 1,000 accounts."""
    async with broker() as bootstrap:
        jobs = Jobs(settings_for(bootstrap, "l.", PARTITIONS=PARTITIONS))
        await jobs.create_topics()
        accounts = [next(jobs.accounts) for _ in range(1000)]
        sent: dict[str, float] = {}
        seen: list[float] = []
        theirs: list[float] = []

        async with (
            JobWorker(jobs, handlers(), concurrency=16) as worker,
            jobs.reader(topics.COMMAND_EVENTS) as reader,
            jobs.producer() as producer,
        ):
            await reader.seek_to_end()

            async def watch() -> None:
                while len(seen) < count:
                    for records in (await reader.getmany(timeout_ms=100)).values():
                        now = time.monotonic()
                        for record in records:
                            event = _EVENTS.decode(record.value)
                            if isinstance(event, CommandStarted) and event.command_id in sent:
                                seen.append(now - sent[event.command_id])

            watching = asyncio.create_task(watch())
            comparing = asyncio.create_task(bare_transactions(jobs, theirs))
            began = time.monotonic()
            for number in range(count):
                made = command("short", accounts[number % len(accounts)])
                sent[made.command_id] = time.monotonic()
                await producer.send(
                    jobs.settings.topic(topics.JOBS), msgspec.json.encode(made), key=made.account_id.encode()
                )
                await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
            async with asyncio.timeout(LIMIT_S):
                await watching
            comparing.cancel()
            await asyncio.wait({comparing})
            del worker
        report(
            "commands_started",
            commands=count,
            rate_per_s=rate,
            accounts=len(accounts),
            **quantiles(seen, ""),
            **quantiles(theirs, "bare_transaction_"),
        )


BENCHES: dict[str, Any] = {"throughput": (throughput, 20_000), "latency": (latency, 4_000)}


def main(arguments: Sequence[str]) -> None:
    """Run the named ones, or all."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING), cache_logger_on_first_use=True
    )
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(BENCHES)}; all by default")
    parser.add_argument("--count", type=int, help="commands")
    parsed = parser.parse_args(arguments)
    for name in parsed.names or BENCHES:
        run, count = BENCHES[name]
        settle_heap()  # as the product's process does
        uvloop.run(run(parsed.count or count))


if __name__ == "__main__":
    main(sys.argv[1:])
