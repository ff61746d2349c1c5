"""`sync.jobs` on a real Kafka: topics of its own, workers in this process, and the outcome as a reader sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from streams.commands.engine import Engine
from streams.commands.handlers import Handlers
from streams.commands.job_group import JobGroup, job_group
from streams.commands.service import surroundings
from streams.contracts import topics
from streams.contracts.commands import AnyCommandEvent, Command, CommandFailure, CommandSuccess
from streams.contracts.keys import partition_for
from streams.domain.retry import RetryLimits
from streams.runtime.topics import TopicAdmin, wanted_topics
from streams.settings import Settings, load_settings
from tests.unit.commands.rig import CountingObserver, accounts, command_of, conclusions, tested_limits

DEADLINE_S = 60.0
RETRY = RetryLimits(retries=3, backoff_s=0.05, backoff_max_s=0.2, attempt_s=30.0, give_up_s=300.0)
_EVENTS: msgspec.json.Decoder[AnyCommandEvent] = msgspec.json.Decoder(AnyCommandEvent)
USED = (topics.JOBS, topics.JOB_STATE, topics.COMMAND_EVENTS, topics.COMMANDS, topics.MIRROR)


class Jobs:
    """The lane on one broker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.accounts: Iterator[str] = accounts()

    @property
    def environment(self) -> dict[str, str]:
        """The same for another process."""
        return {
            name: str(getattr(self.settings, name))
            for name in (
                "KAFKA_BOOTSTRAP_SERVERS",
                "KAFKA_TOPIC_PREFIX",
                "KAFKA_GROUP",
                "PARTITIONS",
                "KAFKA_SESSION_TIMEOUT_S",
            )
        }

    async def create_topics(self) -> None:
        names = {self.settings.topic(name) for name in USED}
        names |= {self.settings.topic(spec.name) for spec in topics.TOPICS if spec.name.endswith(".dlq")}
        async with TopicAdmin.connected(self.settings) as admin:
            await admin.create([wanted for wanted in wanted_topics(self.settings) if wanted.name in names])

    @contextlib.asynccontextmanager
    async def producer(self) -> AsyncIterator[AIOKafkaProducer]:
        """A producer as other services have it."""
        producer = AIOKafkaProducer(**self.settings.kafka_client(), acks="all")
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    async def send(self, *commands: Command, topic: str = topics.JOBS) -> list[str]:
        """Produce commands; returns their ids."""
        async with self.producer() as producer:
            futures = [
                await producer.send(
                    self.settings.topic(topic), msgspec.json.encode(command), key=command.account_id.encode()
                )
                for command in commands
            ]
            await asyncio.gather(*futures)
        return [command.command_id for command in commands]

    async def send_raw(self, records: Sequence[tuple[bytes | None, bytes | None]], topic: str = topics.JOBS) -> None:
        """Produce anything at all."""
        async with self.producer() as producer:
            futures = [await producer.send(self.settings.topic(topic), value, key=key) for key, value in records]
            await asyncio.gather(*futures)

    @contextlib.asynccontextmanager
    async def reader(self, *names: str) -> AsyncIterator[AIOKafkaConsumer]:
        """A consumer of whole topics as other services have it: read_committed."""
        consumer = AIOKafkaConsumer(
            **self.settings.kafka_client(),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            consumer.assign(
                [
                    TopicPartition(self.settings.topic(name), partition)
                    for name in names
                    for partition in range(self.settings.PARTITIONS)
                ]
            )
            yield consumer
        finally:
            await consumer.stop()

    async def records(self, name: str) -> list[ConsumerRecord]:
        """Everything that a topic holds now, partition by partition."""
        found: list[ConsumerRecord] = []
        async with self.reader(name) as consumer, asyncio.timeout(DEADLINE_S):
            ends = await consumer.end_offsets(list(consumer.assignment()))
            await consumer.seek_to_beginning()
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found.extend(records)
        return found

    async def events(self) -> list[AnyCommandEvent]:
        """All events there are now, in order within each account."""
        return [_EVENTS.decode(record.value) for record in await self.records(topics.COMMAND_EVENTS)]

    async def concluded(self, count: int, within_s: float = DEADLINE_S) -> list[AnyCommandEvent]:
        """Wait until `count` conclusions are in the log, then a moment for one too many; returns all events."""
        seen: list[AnyCommandEvent] = []
        async with self.reader(topics.COMMAND_EVENTS) as consumer:
            async with asyncio.timeout(within_s):
                while len(conclusions(seen)) < count:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        seen.extend(_EVENTS.decode(record.value) for record in records)
            for records in (await consumer.getmany(timeout_ms=300)).values():
                seen.extend(_EVENTS.decode(record.value) for record in records)
        return seen

    async def until_event(self, condition: Callable[[AnyCommandEvent], bool], within_s: float = DEADLINE_S) -> None:
        """Wait until an event of that kind is in the log."""
        async with self.reader(topics.COMMAND_EVENTS) as consumer, asyncio.timeout(within_s):
            while True:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    if any(condition(_EVENTS.decode(record.value)) for record in records):
                        return

    def partition_of(self, account_id: str) -> int:
        """Where an account's commands lie."""
        return partition_for(account_id, self.settings.PARTITIONS)

    async def committed(self, name: str, partition: int) -> int:
        """The group's position in a partition."""
        consumer = AIOKafkaConsumer(
            **self.settings.kafka_client(), group_id=job_group(self.settings), enable_auto_commit=False
        )
        await consumer.start()
        try:
            tp = TopicPartition(self.settings.topic(name), partition)
            consumer.assign([tp])
            return await consumer.committed(tp) or 0
        finally:
            await consumer.stop()

    async def lag(self) -> int:
        """Records of `sync.jobs` beyond the committed offsets, as an autoscaler counts them."""
        consumer = AIOKafkaConsumer(
            **self.settings.kafka_client(), group_id=job_group(self.settings), enable_auto_commit=False
        )
        await consumer.start()
        try:
            tps = [
                TopicPartition(self.settings.topic(topics.JOBS), partition)
                for partition in range(self.settings.PARTITIONS)
            ]
            consumer.assign(tps)
            ends = await consumer.end_offsets(tps)
            return sum([ends[tp] - (await consumer.committed(tp) or 0) for tp in tps])
        finally:
            await consumer.stop()


class JobWorker:
    """An engine that reads `sync.jobs`, in this process."""

    def __init__(
        self, jobs: Jobs, handlers: Handlers, *, name: str = "w1", one_by_one: bool = False, **limits: Any
    ) -> None:
        settings = jobs.settings.model_copy(update={"WORKER_NAME": name})
        self.observer = CountingObserver()
        self.engine = Engine(
            handlers,
            surroundings(settings, tested_limits(**{"retry": RETRY, **limits}), self.observer, resources={}),
        )
        self.group = JobGroup(settings, self.engine, one_by_one=one_by_one, observer=self.observer)

    async def __aenter__(self) -> JobWorker:
        async with asyncio.timeout(DEADLINE_S):
            await self.group.start()
            await self.group.assigned.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.timeout(DEADLINE_S):
            self.group.stop_reading()
            await self.engine.drain(0.0)
            await self.group.stop()

    async def until(self, condition: Callable[[], Any], within_s: float = DEADLINE_S) -> None:
        """Wait until it is true, looking whenever the engine has changed."""
        async with asyncio.timeout(within_s):
            while not condition():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self.engine.changed()


def outcome(events: Sequence[AnyCommandEvent]) -> Counter[str]:
    """How often each command was concluded."""
    return Counter(event.command_id for event in events if isinstance(event, CommandSuccess | CommandFailure))


def once(ids: Sequence[str]) -> Counter[str]:
    """What `outcome` is when each of these was concluded exactly once."""
    return Counter(dict.fromkeys(ids, 1))


def settings_for(bootstrap: str, prefix: str, **changes: Any) -> Settings:
    """Settings of a test."""
    return load_settings(
        **{
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "KAFKA_TOPIC_PREFIX": prefix,
            "KAFKA_GROUP": "g",
            "PARTITIONS": 4,
            "KAFKA_SESSION_TIMEOUT_S": 6.0,
            "KAFKA_TRANSACTION_TIMEOUT_S": 10.0,
            **changes,
        }
    )


__all__ = ["JobWorker", "Jobs", "command_of", "job_group", "once", "outcome", "settings_for"]
