"""The store of our tables: Faust's RocksDB store, opened and closed off the event loop.

Faust opens and closes the databases of a rebalance on the loop: 15 to 40 ms for each, over a second for a third of 64
partitions, during which no account could write. RocksDB needs no interpreter lock for either, so threads do it.

Faust also writes the changelog's offset into the database with each record; here it is written now and then, and before
a database closes. After a crash a few records more are read again.

Invariants: a database is open before its partition's recovery begins, and closed before `on_rebalance` returns, so that
nobody who opens it next finds it locked by us. After `stop()` none is opened any more, by a rebalance that still runs
neither. The offset in a database is never ahead of its records.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

from faust.stores import STORES
from faust.stores.rocksdb import Store as RocksStore

SCHEME: Final = "mailstreams"

OPENED_AT_ONCE: Final = 4
"""Threads that open or close; the work is waiting for the disk."""

LOCKED_FOR_S: Final = 10.0
"""How long a database may still be locked: by an iterator of ours, or by a predecessor that is on its way out."""

OFFSET_EVERY_S: Final = 5.0
"""Between two writes of a partition's offset."""

_LOGGER: Final = logging.getLogger(__name__)

STORES.aliases[SCHEME] = "streams.agents.store:Store"


def store_url(table: str) -> str:
    """What a table names as its store. Without a path the URL would count as empty, and Faust take its default."""
    return f"{SCHEME}:{table}"


class Store(RocksStore):
    """RocksDB, one database per partition."""

    _ended = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offsets: dict[int, int] = {}
        self._offset_written_at: dict[int, float] = {}

    def persisted_offset(self, tp: Any) -> int | None:
        """The changelog's offset up to which the partition's database has its records."""
        if self._ended and tp.partition not in self._dbs:
            # Asked by a rebalance that a stop came into: Faust would open each again on the loop, or find it locked by
            # its closing, and call that a crash.
            return None
        remembered = self._offsets.get(tp.partition)
        written: int | None = super().persisted_offset(tp) if remembered is None else remembered
        return written

    def set_persisted_offset(self, tp: Any, offset: int) -> None:
        """The database has the records up to `offset`."""
        if tp.partition not in self._dbs:
            # Acknowledged after the partition went. Faust would open the database again, perhaps under a new owner.
            return
        now = time.monotonic()
        if now - self._offset_written_at.get(tp.partition, 0.0) < OFFSET_EVERY_S:
            self._offsets[tp.partition] = offset
            return
        self._offset_written_at[tp.partition] = now
        self._offsets.pop(tp.partition, None)
        super().set_persisted_offset(tp, offset)

    def reset_state(self) -> None:
        """Forget everything; the databases are removed."""
        self._offsets.clear()
        self._offset_written_at.clear()
        super().reset_state()

    def _let_go(self, partition: int) -> tuple[Any, bytes, int | None] | None:
        """What `_close` needs to close a partition's database."""
        database = self._dbs.pop(partition, None)
        self._offset_written_at.pop(partition, None)
        offset = self._offsets.pop(partition, None)
        return None if database is None else (database, self.offset_key, offset)

    async def on_rebalance(
        self, assigned: set[Any], revoked: set[Any], newly_assigned: set[Any], generation_id: int = 0
    ) -> None:
        """Close what went, open what came, active or standby."""
        changelogs = self.table.changelog_topic.topics
        async with self.db_lock:
            began = time.monotonic()
            closed = [self._let_go(tp.partition) for tp in revoked if tp.topic in changelogs]
            await _in_threads(_close, [each for each in closed if each is not None])
            wanted = {tp.partition for tp in assigned if tp.topic in changelogs} - set(self._dbs)
            await _in_threads(self._open, [(partition,) for partition in sorted(wanted)])
            _LOGGER.info(
                "table %s: closed %d and opened %d databases in %.3f s",
                self.table_name,
                len(closed),
                len(wanted),
                time.monotonic() - began,
            )

    async def stop(self) -> None:
        """Close everything, for good."""
        self._ended = True
        closed = [self._let_go(partition) for partition in list(self._dbs)]
        await _in_threads(_close, [each for each in closed if each is not None])

    def _open(self, partition: int) -> None:
        deadline = time.monotonic() + LOCKED_FOR_S
        while not self._ended:
            try:
                self._dbs[partition] = self._open_for_partition(partition)
                return
            except Exception as error:
                # rocksdict raises plain exceptions; only the text tells a lock from a damage.
                if "lock" not in str(error).lower() or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)


def _close(database: Any, offset_key: bytes, offset: int | None) -> None:
    if offset is not None:
        database.put(offset_key, str(offset).encode())
    database.close()


async def _in_threads(function: Any, calls: Iterable[tuple[Any, ...]]) -> None:
    gate = asyncio.Semaphore(OPENED_AT_ONCE)

    async def one(arguments: tuple[Any, ...]) -> None:
        async with gate:
            await asyncio.to_thread(function, *arguments)

    await asyncio.gather(*(one(arguments) for arguments in calls))
