"""The log as it grows: a consumer of our own in the background, its events folded as they come.

What is waited for is a state of the log, looked at anew whenever something arrives; nothing sleeps for a fixed time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tests.storm.checker.fold import FoldedAccount, Folder
from tests.storm.checker.log import Event, Kafka, partitions_of

LOOK_S: Final = 0.5
"""A condition may depend on more than the log; so often it is looked at without an event."""
RETRY_S: Final = 0.5


class LogWatch:
    """`mailbox.changes`, committed records only, from the beginning. `async with` starts and stops it."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._folders: dict[str, Folder] = {}
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next: dict[int, int] = {}
        self.events: list[Event] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow(), name="log watch")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task], timeout=20)

    @property
    def accounts(self) -> dict[str, FoldedAccount]:
        """What the events so far add up to."""
        return {name: folder.state for name, folder in self._folders.items()}

    def account(self, name: str) -> FoldedAccount:
        """One of them; an empty one while the log knows nothing."""
        folder = self._folders.get(name)
        return folder.state if folder is not None else FoldedAccount(name)

    def of(self, account: str, *kinds: str) -> list[Event]:
        """Events of an account, of these kinds when given, in order."""
        return [event for event in self.events if event.account == account and (not kinds or event.kind in kinds)]

    async def until(self, condition: Callable[[], Any], *, within_s: float, what: str) -> Any:
        """Wait until `condition` holds and return what it gave. Raises `AssertionError` with the latest events."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            self._arrived.clear()
            if result := condition():
                return result
            if (left := deadline - loop.time()) <= 0:
                latest = "\n".join(f"  {event}" for event in self.events[-15:])
                raise AssertionError(
                    f"not within {within_s:g} s: {what}\nlatest of {len(self.events)} events:\n{latest}"
                )
            try:
                await asyncio.wait_for(self._arrived.wait(), min(LOOK_S, left))
            except TimeoutError:
                continue

    async def _follow(self) -> None:
        """Read for ever; a broker that goes away is met again when it is back."""
        while True:
            try:
                await self._read()
            except (KafkaError, OSError, TimeoutError):
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        topic = self._kafka.topic("mailbox.changes")
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._kafka.bootstrap,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=4 * 1024 * 1024,
        )
        await consumer.start()
        try:
            while not (numbers := await partitions_of(self._kafka, "mailbox.changes")):
                await asyncio.sleep(RETRY_S)
            partitions = [TopicPartition(topic, number) for number in numbers]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, self._next.get(partition.partition, 0))
            while True:
                for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                    for record in records:
                        self._take(record)
                        self._next[partition.partition] = record.offset + 1
                    self._arrived.set()
        finally:
            await consumer.stop()

    def _take(self, record: Any) -> None:
        body = json.loads(record.value)
        writer = next((value.decode() for key, value in record.headers if key == "writer"), None)
        event = Event(
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            account=body["account_id"],
            sequence=body["sequence"],
            kind=body["type"],
            writer=writer,
            body=body,
        )
        self.events.append(event)
        self._folders.setdefault(event.account, Folder(event.account)).take(event)
