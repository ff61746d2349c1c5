"""Sending a command and following it to its conclusion, as the command line does and other programs may.

What is followed is what any reader sees: `sync.command_events`, read_committed, from before the command was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from streams.commands.kafka_reading import close_within
from streams.contracts import topics
from streams.contracts.codec import encode
from streams.contracts.commands import AnyCommandEvent, Command, CommandFailure, CommandSuccess
from streams.contracts.keys import partition_for
from streams.errors import ConfigurationError, ServiceUnavailable
from streams.runtime.checks import unreachable
from streams.runtime.logs import muted
from streams.settings import Settings

CONNECT_LIMIT_S: Final = 20.0
CLOSE_LIMIT_S: Final = 2.0
POLL_MS: Final = 250
_EVENTS: Final[msgspec.json.Decoder[AnyCommandEvent]] = msgspec.json.Decoder(AnyCommandEvent)


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a command lies."""

    command_id: str
    topic: str
    partition: int
    offset: int


class CommandClient:
    """Sends commands and follows them. Use `CommandClient.connected`."""

    def __init__(self, settings: Settings, producer: AIOKafkaProducer) -> None:
        self._settings = settings
        self._producer = producer

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, settings: Settings) -> AsyncIterator[CommandClient]:
        """Connect for the block. Raises `ServiceUnavailable` when no broker answers."""
        producer = AIOKafkaProducer(**settings.kafka_client(), acks="all", enable_idempotence=True)
        with muted("aiokafka") as said:
            try:
                async with asyncio.timeout(CONNECT_LIMIT_S):
                    await producer.start()
            except (KafkaError, OSError, TimeoutError) as error:
                await close_within(producer.stop(), CLOSE_LIMIT_S)
                raise unreachable(settings, error, said) from None
        try:
            yield cls(settings, producer)
        finally:
            await close_within(producer.stop(), CLOSE_LIMIT_S)

    async def send(self, topic: str, command: Command) -> Sent:
        """Produce a command to `sync.commands` or `sync.jobs`. Raises `ServiceUnavailable`, `ConfigurationError`."""
        name = self._settings.topic(topic)
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                metadata = await self._producer.send_and_wait(
                    name,
                    encode(command),
                    key=command.account_id.encode(),
                    partition=await self._partition(name, command.account_id),
                )
        except UnknownTopicOrPartitionError:
            raise ConfigurationError(f"there is no topic {name}: `faust -A streams topics` makes it") from None
        except (KafkaError, TimeoutError) as error:
            raise ServiceUnavailable(f"the command could not be sent ({type(error).__name__})") from None
        return Sent(command.command_id, name, int(metadata.partition), int(metadata.offset))

    async def _partition(self, topic: str, account_id: str) -> int:
        return partition_for(account_id, len(await self._producer.partitions_for(topic)))

    @contextlib.asynccontextmanager
    async def events(self, command: Command) -> AsyncIterator[AsyncIterator[AnyCommandEvent]]:
        """Events of a command, its conclusion the last. Enter the block before you send it, so that none is missed."""
        consumer = AIOKafkaConsumer(
            **self._settings.kafka_client(), isolation_level="read_committed", enable_auto_commit=False
        )
        name = self._settings.topic(topics.COMMAND_EVENTS)
        try:
            try:
                async with asyncio.timeout(CONNECT_LIMIT_S):
                    await consumer.start()
                    tp = TopicPartition(name, await self._partition(name, command.account_id))
                    consumer.assign([tp])
                    consumer.seek(tp, (await consumer.end_offsets([tp]))[tp])
            except (KafkaError, OSError, TimeoutError) as error:
                raise ServiceUnavailable(f"events cannot be read ({type(error).__name__})") from None
            yield self._follow(consumer, command)
        finally:
            await close_within(consumer.stop(), CLOSE_LIMIT_S)

    async def _follow(self, consumer: AIOKafkaConsumer, command: Command) -> AsyncIterator[AnyCommandEvent]:
        while True:
            batches: dict[Any, list[Any]] = await consumer.getmany(timeout_ms=POLL_MS)
            for records in batches.values():
                for record in records:
                    event = _decoded(record.value)
                    if event is None or event.command_id != command.command_id:
                        continue
                    if event.account_id != command.account_id:
                        continue
                    yield event
                    if isinstance(event, CommandSuccess | CommandFailure):
                        return


def _decoded(value: bytes | None) -> AnyCommandEvent | None:
    """An event; None for what a newer version may have put there."""
    try:
        return _EVENTS.decode(value or b"")
    except msgspec.MsgspecError:
        return None
