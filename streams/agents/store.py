"""The store of our tables: Faust's RocksDB store, opened and closed off the event loop.

Faust opens and closes the databases of a rebalance on the loop: 15 to 40 ms for each, over a second for a third of 64
partitions, during which no account could write. RocksDB needs no interpreter lock for either, so threads do it.

Invariants: a database is open before its partition's recovery begins, and closed before `on_rebalance` returns, so that
nobody who opens it next finds it locked by us.
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

_LOGGER: Final = logging.getLogger(__name__)

STORES.aliases[SCHEME] = "streams.agents.store:Store"


def store_url(table: str) -> str:
    """What a table names as its store. Without a path the URL would count as empty, and Faust take its default."""
    return f"{SCHEME}:{table}"


class Store(RocksStore):
    """RocksDB, one database per partition."""

    async def on_rebalance(
        self, assigned: set[Any], revoked: set[Any], newly_assigned: set[Any], generation_id: int = 0
    ) -> None:
        """Close what went, open what came, active or standby."""
        changelogs = self.table.changelog_topic.topics
        async with self.db_lock:
            began = time.monotonic()
            closed = [self._dbs.pop(tp.partition, None) for tp in revoked if tp.topic in changelogs]
            await _in_threads(_close, [(db,) for db in closed if db is not None])
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
        """Close everything."""
        databases = list(self._dbs.values())
        self._dbs.clear()
        await _in_threads(_close, [(db,) for db in databases])

    def _open(self, partition: int) -> None:
        deadline = time.monotonic() + LOCKED_FOR_S
        while True:
            try:
                self._dbs[partition] = self._open_for_partition(partition)
                return
            except Exception as error:
                # rocksdict raises plain exceptions; only the text tells a lock from a damage.
                if "lock" not in str(error).lower() or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)


def _close(database: Any) -> None:
    database.close()


async def _in_threads(function: Any, calls: Iterable[tuple[Any, ...]]) -> None:
    gate = asyncio.Semaphore(OPENED_AT_ONCE)

    async def one(arguments: tuple[Any, ...]) -> None:
        async with gate:
            await asyncio.to_thread(function, *arguments)

    await asyncio.gather(*(one(arguments) for arguments in calls))
