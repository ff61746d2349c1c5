"""What Kafka refuses for good costs the command whose record it is, and no other (rows W13, W15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from streams.commands.handlers import Handlers, Task
from streams.commands.job_lane import JobLane
from streams.commands.job_writer import JobWriter
from streams.commands.ports import Delivery
from streams.commands.session import Session
from streams.contracts.codec import header
from streams.contracts.commands import AnyCommandEvent, CommandFailure, CommandSuccess
from tests.fixtures.engine import engine_settings
from tests.unit.commands.rig import ACCOUNT, Anything, Rig, command_of, conclusions, running

NARROW = "narrow"
NARROW_BYTES = 1000
Record = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
_EVENTS: msgspec.json.Decoder[AnyCommandEvent] = msgspec.json.Decoder(AnyCommandEvent)


class Batch:
    """A produce batch."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(
        self, *, timestamp: int | None, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> object:
        self.records.append((key, value, headers))
        return self

    def size(self) -> int:
        return sum(len(value or b"") for _, value, _ in self.records)


class Broker:
    """Topics of one partition. One of them takes small batches only."""

    def __init__(self) -> None:
        self.committed: dict[str, list[Record]] = {}
        self.transactions = 0


class Producer:
    """A transactional producer of it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: list[tuple[str, Batch]] = []

    def create_batch(self) -> Batch:
        return Batch()

    async def partitions_for(self, topic: str) -> set[int]:
        return {0}

    async def begin_transaction(self) -> None:
        self._open = []

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if topic.endswith(NARROW) and batch.size() > NARROW_BYTES:
            future.set_exception(MessageSizeTooLargeError())
        else:
            self._open.append((topic, batch))
            future.set_result(None)
        return future

    async def send_offsets_to_transaction(self, offsets: object, group: str) -> None:
        """It is always the group's."""

    async def commit_transaction(self) -> None:
        self._broker.transactions += 1
        for topic, batch in self._open:
            self._broker.committed.setdefault(topic, []).extend(batch.records)


class Writer(JobWriter):
    """The writer of `sync.jobs` on that broker."""

    broker: Broker

    async def _fence(self) -> None:
        self._producer = cast(AIOKafkaProducer, Producer(self.broker))

    async def _drop_producer(self) -> None:
        self._producer = None

    async def _read_state(self) -> None:
        self._read_to = 0
        for key, value, _ in self.broker.committed.get("sync.jobs.state", []):
            self.memory.load(key, value)


async def emits(args: Anything, task: Task) -> dict[str, int]:
    """Emits a record of so many bytes."""
    task.emit(NARROW, b"x" * args.number, key=b"k")
    return {}


@asynccontextmanager
async def jobs(broker: Broker) -> AsyncIterator[tuple[Rig, Session]]:
    """An engine on a lane of that broker."""
    handlers = Handlers()
    handlers.add("emits", emits, args=Anything, emits=[NARROW])
    async with running(Rig(handlers, concurrency=50)) as rig:

        async def prove() -> int:
            return 0

        writer = Writer(engine_settings(), 0, "jobs", prove)
        writer.broker = broker
        await writer.open()
        yield rig, rig.engine.attach(JobLane(writer, 0))
        await writer.close()


def deliver(session: Session, *sizes: int) -> list[str]:
    """Commands that emit records of these sizes; returns their ids."""
    commands = [command_of("emits", number=size) for size in sizes]
    session.deliver(
        [Delivery(0, n, ACCOUNT.encode(), msgspec.json.encode(command)) for n, command in enumerate(commands)]
    )
    return [command.command_id for command in commands]


def outcomes(broker: Broker) -> dict[str, str]:
    """How each command was concluded: `success`, or the code of its failure."""
    events = [_EVENTS.decode(value or b"") for _, value, _ in broker.committed["sync.command_events"]]
    found = {}
    for event in conclusions(events):
        assert event.command_id not in found
        found[event.command_id] = "success" if isinstance(event, CommandSuccess) else event.code
        assert not isinstance(event, CommandFailure) or event.attempts == 1
    return found


async def test_a_record_that_its_topic_refuses_fails_its_command_alone() -> None:
    """The topic has a smaller `max.message.bytes` than the limit that is checked here."""
    broker = Broker()
    async with jobs(broker) as (rig, session):
        ids = deliver(session, 10, NARROW_BYTES + 1, 20)
        await rig.until(lambda: session.settled or session.over)
        assert not session.over
    assert outcomes(broker) == {ids[0]: "success", ids[1]: "result_invalid", ids[2]: "success"}
    assert [len(value or b"") for _, value, _ in broker.committed[NARROW]] == [10, 20]
    letters = broker.committed["sync.jobs.dlq"]
    assert [header(headers, "dlq_reason") for _, _, headers in letters] == [b"handler_failed"]
    assert rig.observer.counts["finished", "emits", "failure", "result_invalid"] == 1


async def test_records_that_are_refused_together_are_sent_apart() -> None:
    """The limit of a topic holds for a batch; each of the records would fit."""
    broker = Broker()
    async with jobs(broker) as (rig, session):
        ids = deliver(session, *[NARROW_BYTES // 2] * 10)
        await rig.until(lambda: session.settled or session.over)
        assert not session.over
    assert outcomes(broker) == dict.fromkeys(ids, "success")
    assert len(broker.committed[NARROW]) == 10
