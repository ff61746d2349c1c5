"""Dead letters: looking at them, sending them again, setting them aside.

A dead letter stays where it is (Kafka deletes no single record); that it was dealt with is a record behind it in the
same partition, with the headers `dlq_resolved` (its offset) and `dlq_resolution`. Invariants: what is sent again and
the note of it are one transaction, so a letter is sent again once however often one tries; two people at a time exclude
each other by the fence of the transactional id.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, ProducerFenced

from streams.commands.kafka_reading import close_within, read_to_end
from streams.contracts import topics
from streams.contracts.codec import Headers, encode, header
from streams.contracts.commands import Command
from streams.contracts.keys import partition_for
from streams.errors import ConfigurationError, MailstreamsError, ServiceUnavailable
from streams.settings import Settings

CONNECT_LIMIT_S: Final = 20.0
TRANSACTION_LIMIT_S: Final = 30.0
CLOSE_LIMIT_S: Final = 2.0
AT_ONCE: Final = 200
RESOLVED: Final = "dlq_resolved"
RESOLUTION: Final = "dlq_resolution"
REDRIVEN_FROM: Final = "redriven_from"
SOURCES: Final = tuple(spec.name for spec in topics.TOPICS if spec.dead_letters)
"""Topics that have dead letters, without prefix."""

Resolution = Literal["redriven", "discarded"]


class LetterUnknown(MailstreamsError):
    """There is no such dead letter, or it has been dealt with."""

    code = "letter_unknown"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be handled. `topic` is where it came from; `partition` and `offset` are its own."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    at: datetime
    resolution: str | None = None

    @property
    def letter_id(self) -> str:
        """`partition:offset`."""
        return f"{self.partition}:{self.offset}"

    @property
    def reason(self) -> str:
        return _text(header(self.headers, "dlq_reason")) or "unknown"

    @property
    def error(self) -> str:
        return _text(header(self.headers, "dlq_error")) or ""

    @property
    def origin(self) -> str:
        """Topic, partition and offset it came from."""
        return "/".join(_text(header(self.headers, f"dlq_{part}")) or "?" for part in ("topic", "partition", "offset"))

    @property
    def cut(self) -> bool:
        """Whether it is not whole: then it cannot be sent again."""
        return any(header(self.headers, name) is not None for name in ("dlq_cut_from_bytes", "dlq_truncated"))


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if value is not None else None


async def read_letters(settings: Settings, topic: str) -> list[DeadLetter]:
    """All letters of a topic, oldest first within each partition. Raises `ServiceUnavailable`, `ConfigurationError`."""
    name = settings.topic(topics.dead_letter_name(topic))
    records: list[ConsumerRecord] = []
    try:
        for partition in sorted(await _partitions(settings, name)):
            await read_to_end(settings.kafka_client(), name, partition, records.append)
    except (KafkaError, OSError, TimeoutError) as error:
        raise ServiceUnavailable(f"dead letters cannot be read ({type(error).__name__})") from None
    letters: dict[tuple[int, int], DeadLetter] = {}
    for record in records:
        resolved = header(record.headers, RESOLVED)
        if resolved is None:
            letters[record.partition, record.offset] = DeadLetter(
                topic,
                record.partition,
                record.offset,
                record.key,
                record.value,
                tuple(record.headers),
                datetime.fromtimestamp(record.timestamp / 1000, UTC),
            )
            continue
        place = (record.partition, int(resolved))
        if place in letters:
            resolution = _text(header(record.headers, RESOLUTION))
            before = letters[place]
            letters[place] = DeadLetter(
                before.topic, *place, before.key, before.value, before.headers, before.at, resolution
            )
    return list(letters.values())


async def _partitions(settings: Settings, name: str) -> set[int]:
    client = AIOKafkaClient(**settings.kafka_client())
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            await client.bootstrap()
            found: set[int] | None = (await client.fetch_all_metadata()).partitions_for_topic(name)
    finally:
        await close_within(client.close(), CLOSE_LIMIT_S)
    if not found:
        raise ConfigurationError(f"there is no topic {name}: `faust -A streams topics` makes it")
    return found


def again(letter: DeadLetter, now: datetime) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers with which a letter is sent again. Raises `LetterUnknown` for one that is not whole.

    A command gets another id, since the old one may be concluded (its failure was published), and loses a deadline that
    has passed; a key that is not the account's is put right.
    """
    if letter.cut:
        raise LetterUnknown(f"{letter.letter_id} is not whole: it was too large to be kept", code="letter_cut")
    headers: Headers = [(name, value) for name, value in letter.headers if not name.startswith("dlq_")]
    headers.append((REDRIVEN_FROM, f"{topics.dead_letter_name(letter.topic)}/{letter.letter_id}".encode()))
    if letter.topic not in (topics.COMMANDS, topics.JOBS):
        return letter.key, letter.value, headers
    try:
        command = msgspec.json.decode(letter.value or b"", type=Command)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return letter.key, letter.value, headers
    deadline = command.deadline if command.deadline is not None and command.deadline > now else None
    base = command.command_id.split("~again~", 1)[0][:150]
    renewed = msgspec.structs.replace(command, command_id=f"{base}~again~{uuid.uuid4().hex[:12]}", deadline=deadline)
    return command.account_id.encode(), encode(renewed), headers


class LetterDesk:
    """Deals with letters. Use `LetterDesk.opened`."""

    def __init__(self, settings: Settings, producer: AIOKafkaProducer) -> None:
        self._settings = settings
        self._producer = producer

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, settings: Settings) -> AsyncIterator[LetterDesk]:
        """Open for the block; whoever had it open is locked out. Raises `ServiceUnavailable`."""
        producer = AIOKafkaProducer(
            **settings.kafka_client(),
            transactional_id=f"{settings.KAFKA_TOPIC_PREFIX}{settings.KAFKA_GROUP}.dead-letters",
            transaction_timeout_ms=int(settings.KAFKA_TRANSACTION_TIMEOUT_S * 1000),
            max_request_size=topics.MAX_RECORD_BYTES * 2,
        )
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await producer.start()
                await producer.begin_transaction()
                await producer.abort_transaction()
        except (KafkaError, OSError, TimeoutError) as error:
            await close_within(producer.stop(), CLOSE_LIMIT_S)
            raise ServiceUnavailable(f"Kafka: {type(error).__name__}") from None
        try:
            yield cls(settings, producer)
        finally:
            await close_within(producer.stop(), CLOSE_LIMIT_S)

    async def resolve(self, topic: str, wanted: Iterable[str], resolution: Resolution) -> list[DeadLetter]:
        """Send letters again, or set them aside, by their ids; returns them. Those dealt with before are left out.

        Raises `LetterUnknown` before anything is done when one does not exist or is not whole.
        """
        open_letters = {letter.letter_id: letter for letter in await read_letters(self._settings, topic)}
        ids = list(dict.fromkeys(wanted))
        for letter_id in ids:
            if letter_id not in open_letters:
                raise LetterUnknown(f"{topics.dead_letter_name(topic)} has no letter {letter_id}")
        todo = [open_letters[letter_id] for letter_id in ids if open_letters[letter_id].resolution is None]
        now = datetime.now(UTC)
        prepared = [(letter, again(letter, now) if resolution == "redriven" else None) for letter in todo]
        for first in range(0, len(prepared), AT_ONCE):
            await self._commit(topic, prepared[first : first + AT_ONCE], resolution)
        return todo

    async def _commit(
        self,
        topic: str,
        prepared: Sequence[tuple[DeadLetter, tuple[bytes | None, bytes | None, Headers] | None]],
        resolution: Resolution,
    ) -> None:
        producer, name = self._producer, self._settings.topic(topic)
        letters = self._settings.topic(topics.dead_letter_name(topic))
        try:
            async with asyncio.timeout(TRANSACTION_LIMIT_S):
                partitions = len(await producer.partitions_for(name))
                await producer.begin_transaction()
                futures = []
                for letter, sending in prepared:
                    if sending is not None:
                        key, value, headers = sending
                        partition = partition_for(key, partitions) if key is not None else letter.partition % partitions
                        futures.append(
                            await producer.send(
                                name, b"" if key is None and value is None else value,
                                key=key, partition=partition, headers=headers,
                            )
                        )  # fmt: skip
                    note: Headers = [
                        (RESOLVED, str(letter.offset).encode()),
                        (RESOLUTION, resolution.encode()),
                    ]
                    futures.append(
                        await producer.send(letters, b"", key=letter.key, partition=letter.partition, headers=note)
                    )
                await asyncio.gather(*futures)
                await producer.commit_transaction()
        except ProducerFenced:
            raise ServiceUnavailable("somebody else deals with dead letters at the moment") from None
        except (KafkaError, OSError, TimeoutError) as error:
            raise ServiceUnavailable(f"Kafka: {type(error).__name__}; look which letters are left") from None
