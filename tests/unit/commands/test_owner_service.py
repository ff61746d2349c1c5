"""Commands of a shard that starts over are read again from its position, and none of them is passed over (W15)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import ConsumerRecord

from streams.commands import owner_service
from streams.commands.operations import AccountOperations
from streams.commands.owner_lane import LogRecord
from streams.commands.owner_service import OwnerService
from streams.contracts.commands import AnyCommandEvent, Command
from streams.observer import NoopObserver
from tests.fixtures.engine import engine_settings
from tests.unit.commands.rig import ACCOUNT, command_of, conclusions

_EVENTS: msgspec.json.Decoder[AnyCommandEvent] = msgspec.json.Decoder(AnyCommandEvent)


class Topic:
    """`sync.commands` with one partition."""

    def __init__(self) -> None:
        self.records: list[ConsumerRecord[bytes, bytes]] = []

    def produce(self, command: Command) -> str:
        offset, value = len(self.records), msgspec.json.encode(command)
        self.records.append(
            ConsumerRecord("sync.commands", 0, offset, 0, 0, command.account_id.encode(), value, None, 0, 0, ())
        )
        return command.command_id


class Consumer:
    """Reads it from where it was set, a moment after it was asked."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._positions: dict[TopicPartition, int] = {}
        self._assigned: list[TopicPartition] = []

    async def start(self) -> None:
        """It is there."""

    async def stop(self) -> None:
        """It goes."""

    def unsubscribe(self) -> None:
        self._assigned = []
        self._positions = {}

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._assigned = partitions

    def assignment(self) -> list[TopicPartition]:
        return self._assigned

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, len(self._topic.records))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    def pause(self, partition: TopicPartition) -> None:
        """There is room for all of them."""

    def resume(self, partition: TopicPartition) -> None:
        """It never pauses."""

    async def getmany(self, **_: int) -> dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]:
        await asyncio.sleep(0.02)
        found: dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]] = {}
        for partition in self._assigned:
            position = self._positions.get(partition, 0)
            self._positions[partition] = len(self._topic.records)
            if records := self._topic.records[position:]:
                found[partition] = records
        return found


class NoBroker(Consumer):
    """Does not come as far as reading."""

    async def start(self) -> None:
        raise KafkaConnectionError("nobody answers")


class Log:
    """A shard's log, in which `committing` says whether anything is committed."""

    partition = 0

    def __init__(self, *, committing: bool) -> None:
        self._committing = committing
        self.records: list[LogRecord] = []

    def read(self, key: str) -> bytes | None:
        return None

    def scan(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        return iter(())

    def write(
        self, records: Sequence[LogRecord], mirror_records: Mapping[str, tuple[bytes | None, str]]
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._committing:
            self.records += records
            future.set_result(None)
        return future

    def concluded(self) -> set[str]:
        events = [_EVENTS.decode(record.value or b"") for record in self.records if "events" in record.topic]
        return {event.command_id for event in conclusions(events)}


class Looks:
    """Operations of which the first looks do not end."""

    def __init__(self) -> None:
        self.endless = True
        self.begun = 0

    async def sync_now(self, account_id: str, args: object, progress: object) -> Mapping[str, Any]:
        self.begun += 1
        if self.endless:
            await asyncio.Event().wait()
        return {}

    resync = backfill = verify = sync_now


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_w15_what_was_under_way_is_read_again_when_the_shard_has_started_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shard runs again while the consumer still reads behind what it had given to the shard's former log."""
    topic, looks = Topic(), Looks()
    monkeypatch.setattr(owner_service, "AIOKafkaConsumer", lambda **_: Consumer(topic))
    service = OwnerService(engine_settings(PARTITIONS=1), cast(AccountOperations, looks), NoopObserver())
    await service.start()
    ids = {topic.produce(command_of("sync_now", ACCOUNT)) for _ in range(2)}
    service.opened(Log(committing=False))
    await until(lambda: looks.begun == 1)
    looks.endless = False
    after = Log(committing=True)
    service.opened(after)
    ids.add(topic.produce(command_of("sync_now", ACCOUNT)))
    try:
        await until(lambda: len(after.concluded()) == len(ids))
        assert after.concluded() == ids
    finally:
        await service.stop(1.0)


async def test_w9_a_broker_that_is_away_when_the_first_shard_opens_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that had no partitions for hours gets one: its accounts must not pay for a broker with a restart."""
    monkeypatch.setattr(owner_service, "AIOKafkaConsumer", lambda **_: NoBroker(Topic()))
    monkeypatch.setattr(owner_service, "ERROR_PAUSE_S", 0.01)
    service = OwnerService(engine_settings(PARTITIONS=1), cast(AccountOperations, Looks()), NoopObserver())
    await service.start()
    await asyncio.sleep(0)
    service._read_at -= 10 * owner_service.STANDSTILL_S
    service.opened(Log(committing=True))
    try:
        await asyncio.sleep(0.05)
        assert service.health().alive
    finally:
        await service.stop(1.0)
