"""A log to project: a transactional writer, and eyes on the rows."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streams.contracts.keys import partition_for
from streams.projection.reading import PROJECTED
from streams.settings import Settings, load_settings

PARTITIONS = 4
DEADLINE_S = 30.0


class LogWriter:
    """Writes events as shards do: in transactions, each account in one partition, numbered without gaps."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._producer = AIOKafkaProducer(
            bootstrap_servers=settings.KAFKA_BOOTSTRAP_SERVERS,
            transactional_id=f"test-{uuid.uuid4()}",
            transaction_timeout_ms=20_000,
        )

    async def start(self) -> None:
        await self._producer.start()

    async def stop(self) -> None:
        await self._producer.stop()

    def partition(self, key: str) -> int:
        """Where records of this key go."""
        return partition_for(key, PARTITIONS)

    async def write(self, *events: Any, abort: bool = False) -> None:
        """One transaction of `mailbox.changes`."""
        await self.write_raw("mailbox.changes", [(e.account_id, msgspec.json.encode(e)) for e in events], abort=abort)

    async def write_raw(self, topic: str, records: list[tuple[str, bytes | None]], *, abort: bool = False) -> None:
        """One transaction of any topic, values as they are."""
        await self._producer.begin_transaction()
        futures = [
            await self._producer.send(
                self.settings.topic(topic), value, key.encode(), partition=partition_for(key, PARTITIONS)
            )
            for key, value in records
        ]
        await asyncio.gather(*futures)
        await (self._producer.abort_transaction() if abort else self._producer.commit_transaction())


class Rows:
    """Looks at the database, and waits for it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def value(self, query: str, *arguments: Any) -> Any:
        return await self.connection.fetchval(query, *arguments)

    async def all(self, query: str, *arguments: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.connection.fetch(query, *arguments)]

    async def until(self, query: str, wanted: Any, *arguments: Any, deadline_s: float = DEADLINE_S) -> None:
        """Wait until `query` gives `wanted`; fails with what it gave last."""
        found: Any = None

        async def right() -> bool:
            nonlocal found
            found = await self.value(query, *arguments)
            return bool(found == wanted)

        assert await eventually(right, deadline_s=deadline_s), f"{query}: {found!r}, wanted {wanted!r}"


async def eventually(condition: Callable[[], Awaitable[bool]], *, deadline_s: float = DEADLINE_S) -> bool:
    """Whether `condition` comes true before the deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        return False
    return True


def deployment(bootstrap: str, dsn: str, prefix: str, **more: Any) -> Settings:
    """Settings for tests: few partitions, short time-outs."""
    return load_settings(
        KAFKA_BOOTSTRAP_SERVERS=bootstrap,
        KAFKA_TOPIC_PREFIX=prefix,
        POSTGRES_DSN=dsn,
        PARTITIONS=PARTITIONS,
        KAFKA_SESSION_TIMEOUT_S=6,
        **more,
    )


async def create_topics(settings: Settings) -> None:
    """The topics that are projected."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.KAFKA_BOOTSTRAP_SERVERS)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(settings.topic(name), num_partitions=PARTITIONS, replication_factor=1) for name in PROJECTED]
        )
    finally:
        await admin.close()
