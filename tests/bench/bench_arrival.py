"""Hot arrival: APPEND by another client until the event is committed, beside a bare IDLE client on the same mailbox.

Dovecot itself holds notices back for up to half a second, so the difference to the bare client is what we add.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Awaitable, Callable

from aiokafka import AIOKafkaConsumer, TopicPartition
from imapclient import IMAPClient

from tests.bench.stage import Bench, bench, report, run

ROUNDS = 60


def append(port: int, user: str, number: int) -> float:
    """Deliver a message; returns when it was done."""
    client = IMAPClient("127.0.0.1", port, ssl=False)
    client.login(user, "pw")
    client.append("INBOX", f"Subject: n{number}\r\nMessage-ID: <{number}@bench>\r\n\r\nhello\r\n".encode())
    done = time.monotonic()
    client.logout()
    return done


def bare_idle(port: int, user: str, arrivals: list[float], begun: threading.Event, stop: Callable[[], bool]) -> None:
    """A client that does nothing but IDLE: when it was told of each arrival."""
    client = IMAPClient("127.0.0.1", port, ssl=False)
    client.login(user, "pw")
    client.select_folder("INBOX", readonly=True)
    client.idle()
    begun.set()
    while not stop():
        for response in client.idle_check(timeout=0.2):
            if len(response) == 2 and response[1] == b"EXISTS":
                arrivals.append(time.monotonic())
    client.idle_done()
    client.logout()


async def consume(stage: Bench, seen: dict[str, float], begun: asyncio.Event) -> None:
    """When each event was readable as committed."""
    topic = stage.settings.topic("mailbox.changes")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=stage.settings.KAFKA_BOOTSTRAP_SERVERS,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=5,
    )
    await consumer.start()
    partitions = [TopicPartition(topic, p) for p in range(stage.settings.PARTITIONS)]
    consumer.assign(partitions)
    try:
        for partition in partitions:
            await consumer.position(partition)
        begun.set()
        async for record in consumer:
            event = json.loads(record.value)
            if event["type"] == "message.added":
                seen[event["headers"].get("subject", "")] = time.monotonic()
    finally:
        await consumer.stop()


def quantiles(values: list[float]) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(values)
    return statistics.median(ordered) * 1000, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000


async def until(check: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something to be true."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.005)


async def measure(stage: Bench, user: str, bare: list[float], seen: dict[str, float]) -> None:
    """Deliver one message at a time and compare."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(ROUNDS):
        before = len(bare)
        done = await asyncio.to_thread(append, stage.dovecot.port, user, number)
        await until(lambda: f"n{number}" in seen and len(bare) > before)  # noqa: B023
        ours.append(max(0.0, seen[f"n{number}"] - done))
        theirs.append(max(0.0, bare[before] - done))
    our_p50, our_p99 = quantiles(ours)
    their_p50, their_p99 = quantiles(theirs)
    report(
        "hot_arrival",
        rounds=ROUNDS,
        p50_ms=our_p50,
        p99_ms=our_p99,
        bare_idle_p50_ms=their_p50,
        bare_idle_p99_ms=their_p99,
        added_p50_ms=our_p50 - their_p50,
    )


async def main() -> None:
    """One hot account."""
    async with bench(partitions=2) as stage:
        stage.dovecot.add_user("hot", "pw")
        account = await stage.add("hot", "pw")
        async with stage.host() as host:
            await until(lambda: host.runner(account) is not None)
            runner = host.runner(account)
            assert runner is not None
            runner.set_tier("hot", "session")
            await until(lambda: runner.watching)
            bare: list[float] = []
            seen: dict[str, float] = {}
            finished = False
            watched, reading = threading.Event(), asyncio.Event()
            idling: Awaitable[None] = asyncio.to_thread(
                bare_idle, stage.dovecot.port, "hot", bare, watched, lambda: finished
            )
            idle_task = asyncio.ensure_future(idling)
            consumer = asyncio.create_task(consume(stage, seen, reading))
            await until(lambda: watched.is_set() and reading.is_set())
            try:
                await measure(stage, "hot", bare, seen)
            finally:
                finished = True
                consumer.cancel()
                await asyncio.gather(idle_task, consumer, return_exceptions=True)


if __name__ == "__main__":
    run(main())
