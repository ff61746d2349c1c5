"""The records of one transaction of `JobWriter`, gathered by partition and sent as few batches.

Invariant: `send` returns only when every record has been accepted, and raises otherwise: nothing is committed before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaProducer

from streams.commands.ports import OutRecord
from streams.contracts import topics
from streams.contracts.codec import Headers
from streams.contracts.keys import partition_for
from streams.errors import MirrorDamaged
from streams.settings import Settings


class Batches:
    """The records of one transaction, in batches by partition: several times cheaper than sending each by itself."""

    def __init__(
        self, producer: AIOKafkaProducer, settings: Settings, partition: int, *, loose_apart: bool = False
    ) -> None:
        """`loose_apart`: what is not for the partition gets batches of its own, record by record, since a topic's
        limit holds for batches.
        """
        self._producer = producer
        self._loose_apart = loose_apart
        self._settings = settings
        self._partition = partition
        self._batches: dict[tuple[str, int], list[Any]] = {}
        self._loose: list[OutRecord] = []
        self.count = 0

    def add(self, record: OutRecord) -> None:
        if record.partition is None:
            self._loose.append(record)
        else:
            self._append(record.topic, record.partition, record.key, record.value, record.headers)

    def add_state(self, key: bytes, value: bytes | None, what: bytes) -> None:
        self._append(topics.JOB_STATE, self._partition, key, value, [("what", what)])

    def _append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        batches = self._batches.setdefault((self._settings.topic(topic), partition), [])
        for _ in range(2):
            if batches and batches[-1].append(timestamp=None, key=key, value=value, headers=headers) is not None:
                self.count += 1
                return
            batches.append(self._producer.create_batch())
        raise MirrorDamaged(f"a record for {topic} does not fit into a batch")

    async def send(self) -> None:
        for record in self._loose:
            partitions = len(await self._producer.partitions_for(self._settings.topic(record.topic)))
            partition = partition_for(record.key or b"", partitions)
            if self._loose_apart:
                self._batches.setdefault((self._settings.topic(record.topic), partition), []).append(
                    self._producer.create_batch()
                )
            self._append(record.topic, partition, record.key, record.value, record.headers)
        futures: list[asyncio.Future[Any]] = []
        for (topic, partition), batches in self._batches.items():
            for batch in batches:
                future = await self._producer.send_batch(batch, topic, partition=partition)
                future.add_done_callback(seen)  # a later send may fail before this one is looked at
                futures.append(future)
        # Every one of them, before the commit: aiokafka would commit a transaction whose records were refused.
        raise_first(await asyncio.gather(*futures, return_exceptions=True))


def raise_first(results: Iterable[Any]) -> None:
    """Raise the first exception among the results of `asyncio.gather`."""
    for result in results:
        if isinstance(result, BaseException):
            raise result


def seen(future: asyncio.Future[Any]) -> None:
    """Look at what a future holds, so that nobody complains that it was never looked at."""
    if not future.cancelled():
        future.exception()
