"""What is in Kafka, read by a plain consumer without a group: committed records, from the first to the last stable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

_SILENCE_S: Final = 60.0
"""A broker that sends nothing for so long while records are owed is a failure of the set-up, not a finding."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One record as it lies in a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    def header(self, name: str) -> str | None:
        """First header of that name, as text."""
        return next((value.decode("utf-8", "replace") for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class Event:
    """One record of `mailbox.changes`."""

    partition: int
    offset: int
    timestamp_ms: int
    account: str
    sequence: int
    kind: str
    writer: str | None
    body: dict[str, Any] = field(repr=False)
    headers: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        shown = {
            name: value
            for name, value in self.body.items()
            if name
            in ("mailbox", "previous", "uidvalidity", "uid", "flags", "from", "to", "message_id", "reason", "origin")
        }
        return f"{self.partition}@{self.offset} #{self.sequence} {self.kind} {json.dumps(shown)} by {self.writer}"


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the topics are."""

    bootstrap: str
    prefix: str = ""

    def topic(self, name: str) -> str:
        """Full name."""
        return f"{self.prefix}{name}"


_ATTEMPTS: Final = 5
_PARTITIONS: dict[tuple[str, str], list[int]] = {}
"""Known numbers of partitions, by broker and topic: they never change while a topic lives."""


async def partitions_of(kafka: Kafka, name: str) -> list[int]:
    """Numbers of a topic's partitions, as the broker says; empty for a topic that does not exist."""
    topic = kafka.topic(name)
    if known := _PARTITIONS.get((kafka.bootstrap, topic)):
        return known
    for attempt in range(_ATTEMPTS):
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        try:
            await admin.start()
            described = await admin.describe_topics([topic])
            break
        except KafkaError:
            # A broker that has just come back may need a moment to say anything.
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(2.0)
        finally:
            await admin.close()
    numbers = sorted(n["partition"] for each in described if not each["error_code"] for n in each["partitions"])
    if numbers:
        _PARTITIONS[kafka.bootstrap, topic] = numbers
    return numbers


async def topics_of(kafka: Kafka) -> list[str]:
    """Names, without the prefix, of all topics that have it; of none without a prefix, since all would be meant."""
    if not kafka.prefix:
        return []
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        names = await admin.list_topics()
    finally:
        await admin.close()
    return sorted(name.removeprefix(kafka.prefix) for name in names if name.startswith(kafka.prefix))


async def read_raw(kafka: Kafka, name: str, *, committed: bool = True) -> AsyncIterator[Raw]:
    """Every record of a topic, partition by partition in order. A missing topic has no records."""
    topic = kafka.topic(name)
    owed = [TopicPartition(topic, number) for number in await partitions_of(kafka, name)]
    if not owed:
        return
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed" if committed else "read_uncommitted",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 * 1024 * 1024,
    )
    await consumer.start()
    try:
        consumer.assign(owed)
        ends = await consumer.end_offsets(owed)
        await consumer.seek_to_beginning(*owed)
        left = {partition for partition in owed if await consumer.position(partition) < ends[partition]}
        deadline = asyncio.get_running_loop().time() + _SILENCE_S
        while left:
            batches = await consumer.getmany(*left, timeout_ms=500)
            for partition, records in batches.items():
                for record in records:
                    if record.offset < ends[partition]:
                        yield Raw(
                            topic=name,
                            partition=partition.partition,
                            offset=record.offset,
                            timestamp_ms=record.timestamp,
                            key=record.key,
                            value=record.value,
                            headers=tuple(record.headers),
                        )
            for partition in tuple(left):
                if await consumer.position(partition) >= ends[partition]:
                    left.discard(partition)
            if batches:
                deadline = asyncio.get_running_loop().time() + _SILENCE_S
            elif asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"no record of {topic} for {_SILENCE_S:g} s, still owed: {sorted(left)}")
    finally:
        await consumer.stop()


async def read_events(kafka: Kafka) -> tuple[list[Event], list[Raw]]:
    """Every committed change, and the records that are none although they lie in the topic."""
    if not await partitions_of(kafka, "mailbox.changes"):
        raise LookupError(f"there is no topic {kafka.topic('mailbox.changes')}")
    events: list[Event] = []
    strange: list[Raw] = []
    async for raw in read_raw(kafka, "mailbox.changes"):
        try:
            body = json.loads(raw.value or b"")
            account, sequence, kind = body["account_id"], body["sequence"], body["type"]
        except (ValueError, KeyError, TypeError):
            strange.append(raw)
            continue
        if raw.key != str(account).encode() or not isinstance(sequence, int):
            strange.append(raw)
            continue
        events.append(
            Event(
                partition=raw.partition,
                offset=raw.offset,
                timestamp_ms=raw.timestamp_ms,
                account=account,
                sequence=sequence,
                kind=kind,
                writer=raw.header("writer"),
                body=body,
                headers=raw.headers,
            )
        )
    return events, strange


async def end_offsets(kafka: Kafka, name: str) -> dict[int, int]:
    """Last stable offset of each partition."""
    topic = kafka.topic(name)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, enable_auto_commit=False, isolation_level="read_committed"
    )
    await consumer.start()
    try:
        numbers = await partitions_of(kafka, name)
        ends = await consumer.end_offsets([TopicPartition(topic, number) for number in numbers])
        return {partition.partition: offset for partition, offset in ends.items()}
    finally:
        await consumer.stop()


async def committed_offsets(kafka: Kafka, group: str) -> dict[tuple[str, int], int]:
    """Offsets that a consumer group has committed, by topic without prefix and partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        committed = await admin.list_consumer_group_offsets(group)
    finally:
        await admin.close()
    return {
        (partition.topic.removeprefix(kafka.prefix), partition.partition): int(state.offset)
        for partition, state in committed.items()
    }
