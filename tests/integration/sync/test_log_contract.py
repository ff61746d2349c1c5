"""One contract for the shard's log, kept by the real one over Kafka and by the one in memory that other tests use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.contracts import topics
from streams.domain import mirror
from streams.errors import ProducerLost
from streams.observer import NoopObserver
from streams.sync.log import Batch, Outgoing, ShardLog
from streams.sync.store import MirrorStore
from tests.fixtures.memory_log import MemoryPartition
from tests.integration.sync.conftest import eventually

Open = Callable[[], Awaitable[Any]]
Read = Callable[[], Awaitable[list[bytes]]]


def sealed(text: str) -> bytes:
    return mirror.seal(text.encode())


def batch(text: str, **records: str | None) -> Batch:
    """One change, and mirror records by the last part of their key."""
    made = Batch([Outgoing(topics.CHANGES, b"a", text.encode(), [])])
    for name, value in records.items():
        made.mirror[f"a/mailbox/{name}"] = (None if value is None else sealed(value), "test")
    return made


@pytest.fixture
async def memory() -> tuple[Open, Read]:
    """The log in memory."""
    truth = MemoryPartition()

    async def begin() -> Any:
        return truth.open()

    async def read() -> list[bytes]:
        return [r.value or b"" for r in truth.records if r.topic == topics.CHANGES]

    return begin, read


@pytest.fixture
async def real(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Open, Read]]:
    """`ShardLog` over the shared Kafka; each tenure has a store of its own, as on another machine."""
    plane = await _plane(request)
    opened: list[ShardLog] = []
    stores: list[MirrorStore] = []
    topic = plane.settings.topic(topics.CHANGES)

    async def begin() -> Any:
        store = MirrorStore(plane.data / f"tenure{len(stores)}")
        stores.append(store)
        log = ShardLog(0, settings=plane.settings, store=store, observer=NoopObserver(), worker=f"w{len(stores)}")
        await log.fence()
        await log.restore()
        submit = log.submit

        def renamed(made: Batch) -> Any:
            for record in made.records:
                record.topic = topic
            return submit(made)

        log.submit = renamed  # type: ignore[method-assign,assignment]
        opened.append(log)
        return log

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=plane.settings.KAFKA_BOOTSTRAP_SERVERS,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            tp = TopicPartition(topic, 0)
            consumer.assign([tp])
            end = (await consumer.end_offsets([tp]))[tp]
            values: list[bytes] = []
            while await consumer.position(tp) < end:
                fetched = await consumer.getmany(tp, timeout_ms=200)
                values += [record.value for record in fetched.get(tp, ())]
            return values
        finally:
            await consumer.stop()

    yield begin, read
    await asyncio.gather(*(log.close() for log in opened))
    for store in stores:
        store.close()


async def _plane(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("plane")


@pytest.fixture(params=["memory", "real"])
def log(request: pytest.FixtureRequest) -> tuple[Open, Read]:
    """Both."""
    if request.param == "real":
        request.getfixturevalue("plane")
    found: tuple[Open, Read] = request.getfixturevalue(request.param)
    return found


async def logged(read: Read, expected: list[bytes] | int) -> None:
    """A committed transaction shows to readers a moment after its writer knows of it (its markers are written then)."""

    async def shown() -> bool:
        values = await read()
        return (len(values) if isinstance(expected, int) else values) == expected

    await eventually(shown, seconds=10.0, what=f"{expected} in the log")


async def test_what_is_submitted_is_read_at_once_and_committed_soon(log: tuple[Open, Read]) -> None:
    begin, read = log
    tenure = await begin()
    future = tenure.submit(batch("one", x="1", y="2"))
    assert tenure.read("a/mailbox/x") == sealed("1")
    assert [key for key, _ in tenure.scan("a/mailbox/")] == ["a/mailbox/x", "a/mailbox/y"]
    await asyncio.wait_for(future, 10)
    await logged(read, [b"one"])
    assert tenure.read("a/mailbox/y") == sealed("2")


async def test_the_order_of_batches_is_kept(log: tuple[Open, Read]) -> None:
    begin, read = log
    tenure = await begin()
    futures = [tenure.submit(batch(f"{n:03d}", x=str(n))) for n in range(50)]
    await asyncio.wait_for(asyncio.gather(*futures), 20)
    await logged(read, [b"%03d" % n for n in range(50)])
    assert tenure.read("a/mailbox/x") == sealed("49")


async def test_a_successor_reads_exactly_what_was_committed(log: tuple[Open, Read]) -> None:
    begin, _ = log
    first = await begin()
    await asyncio.wait_for(first.submit(batch("one", x="1", y="1")), 10)
    await asyncio.wait_for(first.submit(batch("two", x="2", y=None)), 10)
    second = await begin()
    assert second.read("a/mailbox/x") == sealed("2")
    assert second.read("a/mailbox/y") is None
    assert dict(second.scan("a/")) == {"a/mailbox/x": sealed("2")}
    assert second.writer != first.writer


async def test_scan_sees_changes_and_deletions_not_committed_yet(log: tuple[Open, Read]) -> None:
    begin, _ = log
    tenure = await begin()
    await asyncio.wait_for(tenure.submit(batch("one", a="1", b="1", c="1")), 10)
    future = tenure.submit(batch("two", b=None, c="2", d="2"))
    assert list(tenure.scan("a/mailbox/")) == [
        ("a/mailbox/a", sealed("1")),
        ("a/mailbox/c", sealed("2")),
        ("a/mailbox/d", sealed("2")),
    ]
    await asyncio.wait_for(future, 10)
    assert [key for key, _ in tenure.scan("a/mailbox/")] == ["a/mailbox/a", "a/mailbox/c", "a/mailbox/d"]
    assert list(tenure.scan("a/ids/")) == []


async def test_s3_the_newest_fence_wins(log: tuple[Open, Read]) -> None:
    """An older tenure commits nothing more, learns of it, and refuses to go on."""
    begin, read = log
    old = await begin()
    await asyncio.wait_for(old.submit(batch("one", x="1")), 10)
    new = await begin()
    with pytest.raises(ProducerLost):
        await asyncio.wait_for(old.submit(batch("late", x="9")), 20)
    await asyncio.wait_for(asyncio.shield(old.lost), 5)
    with pytest.raises(ProducerLost):
        old.submit(batch("later"))
    with pytest.raises(ProducerLost):
        await old.room()
    with pytest.raises(ProducerLost):
        old.read("a/mailbox/x")
    with pytest.raises(ProducerLost):
        list(old.scan("a/mailbox/"))
    await asyncio.wait_for(new.submit(batch("two", x="2")), 10)
    await logged(read, [b"one", b"two"])
    assert new.read("a/mailbox/x") == sealed("2")


async def test_everything_queued_behind_a_failure_fails(log: tuple[Open, Read]) -> None:
    begin, read = log
    old = await begin()
    new = await begin()
    futures = [old.submit(batch(str(n), x=str(n))) for n in range(20)]
    outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 20)
    assert all(isinstance(outcome, ProducerLost) for outcome in outcomes)
    assert await read() == []
    assert new.read("a/mailbox/x") is None


async def test_writers_wait_for_room_and_go_on(log: tuple[Open, Read]) -> None:
    begin, read = log
    tenure = await begin()
    for n in range(12):
        await asyncio.wait_for(tenure.room(), 20)
        tenure.submit(batch(f"{n}" + "x" * 500_000))
    await tenure.close(flush_s=20)
    await logged(read, 12)


async def test_close_commits_what_is_queued_when_given_time(log: tuple[Open, Read]) -> None:
    begin, read = log
    tenure = await begin()
    future = tenure.submit(batch("one", x="1"))
    await tenure.close(flush_s=10)
    assert future.done()
    assert future.exception() is None
    await logged(read, [b"one"])
    assert tenure.lost.done()
    with pytest.raises(ProducerLost):
        tenure.submit(batch("two"))
