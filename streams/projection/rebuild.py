"""Builds the projection anew from the log, beside the one in use, and puts it in its place.

::

    fresh tables in `mail_rebuild` ─▶ replay to the end ─▶ again, until little is left
        ─▶ hold the live positions (projectors wait) ─▶ replay to exactly those ─▶ rename, commit ─▶ drop the old tables

Invariants: readers see the old tables whole or the new ones whole; until the swap nothing in use is touched, and a
rebuild that fails leaves only `mail_rebuild` behind, which the next one drops; a projector that waited for a position
finds it moved and reads it again; what was granted on the old tables is granted on the new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from streams.contracts import topics
from streams.directory.postgres import CONNECT_TIMEOUT_S, translated
from streams.errors import MailstreamsError, ServiceUnavailable
from streams.projection.batch import LogStartGone, Position, Source
from streams.projection.migrations import migrate
from streams.projection.reading import PROJECTED, Reader
from streams.projection.tables import SCHEMA, Tables, open_projection_pool
from streams.projection.topic_ids import topic_facts
from streams.settings import Settings

FRESH: Final = "mail_rebuild"
LOCK_KEY: Final = 0x6D61696C_72656275
BATCH: Final = 5_000
NEARLY_THERE: Final = 5_000
"""Records left at which projectors may be held up: replaying them takes about a second."""
MAX_ROUNDS: Final = 20
HOLD_S: Final = 60.0
STALLED_S: Final = 60.0
KAFKA_CALL_S: Final = 30.0

OnProgress = Callable[[int, int], None]
"""Records replayed, records to replay."""

_DROP_FRESH: Final = "DROP SCHEMA IF EXISTS mail_rebuild CASCADE"
_DROP_OLD: Final = "DROP SCHEMA IF EXISTS mail_replaced CASCADE"
_CREATE_FRESH: Final = "CREATE SCHEMA mail_rebuild"
_COPIES: Final = """
SELECT format('CREATE TABLE mail_rebuild.%1$I (LIKE mail.%1$I INCLUDING ALL)', tablename)
FROM pg_tables WHERE schemaname = 'mail' ORDER BY tablename
"""
_RETIRE: Final = "ALTER SCHEMA mail RENAME TO mail_replaced"
_INSTALL: Final = "ALTER SCHEMA mail_rebuild RENAME TO mail"
# Views (also materialised ones) and foreign keys of others that hang on our tables; they would hang on the old ones.
_DEPENDENTS: Final = """
SELECT DISTINCT n.nspname || '.' || c.relname
FROM pg_depend d
JOIN pg_class t ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
JOIN pg_namespace tn ON tn.oid = t.relnamespace AND tn.nspname = $1
JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
JOIN pg_class c ON c.oid = r.ev_class
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname <> $1
UNION
SELECT n.nspname || '.' || c.relname
FROM pg_constraint k
JOIN pg_class t ON t.oid = k.confrelid JOIN pg_namespace tn ON tn.oid = t.relnamespace AND tn.nspname = $1
JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND n.nspname <> $1
"""
# Privileges, owner and comments, as statements that give them to the fresh tables.
_GRANTS: Final = """
SELECT format('GRANT %s ON TABLE %I.%I TO %s%s', a.privilege_type, $2::text, c.relname,
    CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
    CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, aclexplode(c.relacl) a
WHERE n.nspname = $1 AND c.relkind = 'r' AND a.grantee <> c.relowner
UNION ALL
SELECT format('GRANT %s ON SCHEMA %I TO %s%s', a.privilege_type, $2::text,
    CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
    CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = $1 AND a.grantee <> n.nspowner
UNION ALL
SELECT format('COMMENT ON SCHEMA %I IS %L', $2::text, obj_description(n.oid, 'pg_namespace'))
FROM pg_namespace n WHERE n.nspname = $1
"""
_HOLD: Final = "SELECT topic, partition, next_offset FROM mail.positions ORDER BY topic, partition FOR UPDATE"
# Whoever waits for one of these rows sees it changed when it gets it, and reads its position again: from the new table.
_MOVE_AWAY: Final = "UPDATE mail.positions SET next_offset = 9223372036854775807"


class RebuildRefused(MailstreamsError):
    """The projection cannot be rebuilt as things are. Nothing was changed."""

    code = "rebuild_refused"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did."""

    records: int
    events: int
    seconds: float
    held_s: float
    """How long projectors had to wait for the swap."""


async def rebuild(settings: Settings, on_progress: OnProgress = lambda done, total: None) -> Rebuilt:
    """Rebuild the projection and swap it in.

    Raises:
        RebuildRefused: another rebuild runs, something of others depends on the tables, or the log stands in the way
            (a malformed event, a gap).
        LogStartGone: the log does not reach back to its start.
        ServiceUnavailable, ConfigurationError: Kafka or PostgreSQL cannot be used.
    """
    dsn = settings.POSTGRES_DSN.get_secret_value()
    await migrate(dsn)
    with translated("rebuilding the projection"):
        connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S, command_timeout=300.0)
    try:
        with translated("rebuilding the projection"):
            if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", LOCK_KEY):
                raise RebuildRefused("another rebuild is running")
            if found := [row[0] for row in await connection.fetch(_DEPENDENTS, SCHEMA)]:
                raise RebuildRefused(f"{', '.join(found)} depend on the tables of {SCHEMA}; drop them first")
            await _fresh_tables(connection)
        async with _reader(settings) as (consumer, sources, begins):
            pool = await open_projection_pool(dsn, 2, schema=FRESH, durable=False)
            try:
                run = _Run(settings, consumer, sources, Tables(pool), on_progress)
                return await run.replay_and_swap(connection, begins)
            finally:
                pool.terminate()
    finally:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            await connection.close(timeout=5.0)


async def _fresh_tables(connection: Any) -> None:
    async with connection.transaction():
        for statement in (_DROP_FRESH, _DROP_OLD, _CREATE_FRESH):
            await connection.execute(statement)
        for row in await connection.fetch(_COPIES):
            await connection.execute(row[0])


@asynccontextmanager
async def _reader(
    settings: Settings,
) -> AsyncIterator[tuple[Any, dict[TopicPartition, Position], dict[TopicPartition, int]]]:
    """A consumer of every partition, their first positions, and where each begins."""
    consumer = AIOKafkaConsumer(
        **settings.kafka_client(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_bytes=16 << 20,
        max_partition_fetch_bytes=4 << 20,
    )
    try:
        try:
            async with asyncio.timeout(KAFKA_CALL_S):
                await consumer.start()
                facts = await topic_facts(consumer, [settings.topic(name) for name in PROJECTED])
                partitions = {
                    TopicPartition(name, number): Position(found.topic_id, 0)
                    for name, found in facts.items()
                    for number in found.partitions
                }
                consumer.assign(list(partitions))
                begins = await consumer.beginning_offsets(list(partitions))
        except (KafkaError, OSError, TimeoutError) as error:
            raise ServiceUnavailable(f"Kafka does not answer ({type(error).__name__})") from None
        yield consumer, partitions, begins
    finally:
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(KAFKA_CALL_S):
                await consumer.stop()


class _Run:
    """One rebuild: where each partition is in the fresh tables."""

    def __init__(
        self,
        settings: Settings,
        consumer: Any,
        positions: Mapping[TopicPartition, Position],
        tables: Tables,
        on_progress: OnProgress,
    ) -> None:
        self._prefix = settings.KAFKA_TOPIC_PREFIX
        self._consumer = consumer
        self._positions = dict(positions)
        self._tables = tables
        self._on_progress = on_progress
        self._reader = Reader(lambda topic, reason: None)
        self._events = 0
        self._done = 0
        self._total = 0

    async def replay_and_swap(self, connection: Any, begins: Mapping[TopicPartition, int]) -> Rebuilt:
        began = time.monotonic()
        for partition, begin in begins.items():
            source = self._source(partition)
            if source.topic == topics.CHANGES and begin > 0:
                raise LogStartGone(
                    f"{source.topic}-{source.partition} begins at offset {begin}: the log's start is gone, "
                    "so the projection cannot be rebuilt from it"
                )
            self._positions[partition] = Position(self._positions[partition].topic_id, begin)
            await self._tables.start_at(source, self._positions[partition])
            self._consumer.seek(partition, begin)
        for _ in range(MAX_ROUNDS):
            if await self._replay(await self._ends()) <= NEARLY_THERE:
                break
        with translated("swapping the projection in"):
            held_s = await self._swap(connection)
            await connection.execute(_DROP_OLD)
        return Rebuilt(self._done, self._events, time.monotonic() - began, held_s)

    async def _ends(self) -> dict[TopicPartition, int]:
        try:
            async with asyncio.timeout(KAFKA_CALL_S):
                found: dict[TopicPartition, int] = await self._consumer.end_offsets(list(self._positions))
        except (KafkaError, OSError, TimeoutError) as error:
            raise ServiceUnavailable(f"Kafka does not answer ({type(error).__name__})") from None
        return found

    async def _replay(self, ends: Mapping[TopicPartition, int]) -> int:
        """Replay every partition to its end; how many records that were, control records included."""
        before = self._done
        open_ = {p for p in self._positions if self._positions[p].next_offset < ends[p]}
        for partition in open_:  # the round before may have read past its end
            self._consumer.seek(partition, self._positions[partition].next_offset)
        self._total = self._done + sum(ends[p] - self._positions[p].next_offset for p in open_)
        last = time.monotonic()
        while open_:
            try:
                found = await self._consumer.getmany(*open_, timeout_ms=200, max_records=BATCH)
            except OffsetOutOfRangeError:
                raise LogStartGone("the log was cut off while it was replayed") from None
            except KafkaError as error:
                raise ServiceUnavailable(f"Kafka does not answer ({type(error).__name__})") from None
            if found:
                await self._write({p: [r for r in records if r.offset < ends[p]] for p, records in found.items()})
                last = time.monotonic()
            elif time.monotonic() - last > STALLED_S:
                raise ServiceUnavailable(f"Kafka gave nothing for {STALLED_S:g} s")
            for partition in list(open_):
                # the consumer's position passes the control records at the end of a log
                at = await asyncio.wait_for(self._consumer.position(partition), KAFKA_CALL_S)
                if at >= ends[partition]:
                    open_.discard(partition)
                    await self._reach(partition, ends[partition])
            self._on_progress(self._done, max(self._total, self._done))
        return self._done - before

    async def _write(self, found: Mapping[TopicPartition, list[Any]]) -> None:
        slices = []
        for partition, records in found.items():
            if not records:
                continue
            piece, malformed = await self._reader.slice_of(self._source(partition), self._positions[partition], records)
            if malformed is not None:
                raise RebuildRefused(str(malformed))
            slices.append((partition, piece))
        if not slices:
            return
        outcome = await self._tables.write([piece for _, piece in slices])
        for error in outcome.failed.values():
            raise RebuildRefused(str(error))
        if outcome.moved:
            raise RebuildRefused("somebody else writes into the fresh tables")
        self._events += outcome.events
        for partition, piece in slices:
            self._advance(partition, piece.next_offset)

    async def _reach(self, partition: TopicPartition, end: int) -> None:
        """Note the end of the partition though only control records precede it."""
        if self._positions[partition].next_offset < end:
            piece, _ = await self._reader.slice_of(self._source(partition), self._positions[partition], [])
            piece.next_offset = end
            await self._tables.write([piece])
            self._advance(partition, end)

    def _advance(self, partition: TopicPartition, next_offset: int) -> None:
        self._done += next_offset - self._positions[partition].next_offset
        self._positions[partition] = Position(self._positions[partition].topic_id, next_offset)

    async def _swap(self, connection: Any) -> float:
        """Hold the live positions, catch up with them, rename. Projectors are held for as long as this takes."""
        began = time.monotonic()
        async with connection.transaction(), asyncio.timeout(HOLD_S):
            ends = {p: position.next_offset for p, position in self._positions.items()}
            for row in await connection.fetch(_HOLD):
                partition = TopicPartition(self._prefix + row["topic"], row["partition"])
                if partition in ends:
                    ends[partition] = max(ends[partition], row["next_offset"])
            await self._replay(ends)
            for row in await connection.fetch(_GRANTS, SCHEMA, FRESH):
                if row[0] is not None:
                    await connection.execute(row[0])
            for statement in (_MOVE_AWAY, _RETIRE, _INSTALL):
                await connection.execute(statement)
        return time.monotonic() - began

    def _source(self, partition: TopicPartition) -> Source:
        return Source(partition.topic.removeprefix(self._prefix), partition.partition)
