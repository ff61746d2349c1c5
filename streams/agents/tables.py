"""The two tables of the control plane and what their rows look like. Rows are changed by agents only.

`accounts`: account_id → whose it is, its state, version and session heat. `users`: user_id → session heat and accounts.
Both have the partitions of the topics that feed them, so an agent finds the row of its event in its own partition.
Values are JSON, so that the changelogs can be read in a Kafka viewer.

Faust gives a whole table or one row, never one partition; `Partitioned` reaches into its store for that. A row that
cannot be read counts as absent: the next event, or the comparison with the database, writes it anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from datetime import datetime
from typing import Any, Final

import msgspec

from streams.contracts.keys import partition_for
from streams.domain.lifecycle import Life
from streams.domain.ownership import AccountEntry
from streams.domain.sessions import UserState
from streams.errors import ServiceUnavailable

_LOGGER: Final = logging.getLogger(__name__)

ROCKSDB_OPTIONS: Final[dict[str, Any]] = {
    # A worker holds up to two tables × (64 active + 64 standby) databases. Faust's defaults (2 GiB of cache, 64 MB
    # write buffers, all file descriptors for each) are meant for one.
    "block_cache_size": 1 << 20,
    "write_buffer_size": 1 << 20,
    "max_write_buffer_number": 2,
    "target_file_size_base": 8 << 20,
    "max_open_files": 16,
    "driver": "rocksdict",
}


class AccountRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of `accounts`."""

    user_id: str
    state: str
    version: int | None = None
    heat_until: datetime | None = None

    @property
    def life(self) -> Life:
        """The part that events about the account's life decide."""
        return Life(self.user_id, self.state, self.version)

    def entry(self, account_id: str) -> AccountEntry:
        """The row as the data plane takes it."""
        return AccountEntry(account_id, self.user_id, self.state, self.version, self.heat_until)


class UserRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of `users`."""

    until: datetime | None = None
    forwarded_at: datetime | None = None
    accounts: dict[str, int | None] = msgspec.field(default_factory=dict)

    @property
    def state(self) -> UserState:
        """The row as the rules take it."""
        return UserState(self.until, self.forwarded_at, self.accounts)

    @classmethod
    def of(cls, state: UserState) -> UserRow:
        """The row of a state."""
        return cls(state.until, state.forwarded_at, dict(state.accounts))


class Rows:
    """Typed access to a table, within the event that changes it."""

    def __init__(self, table: MutableMapping[bytes, bytes], row_type: type[AccountRow] | type[UserRow]) -> None:
        self._table = table
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(row_type)

    def get(self, key: str) -> Any:
        """The row of `key`; None when there is none that can be read."""
        # The table looks into its store twice for each read; a plain dictionary is its own store. To be asked for here
        # and not earlier: a store belongs to the event loop in which it is first asked for.
        store: Any = getattr(self._table, "data", self._table)
        return self.decode(store.get(key.encode()))

    def put(self, key: str, row: msgspec.Struct) -> None:
        """Write a row. Raises `ServiceUnavailable` when the store cannot: a full disk is no fault of the event."""
        encoded = msgspec.json.encode(row)
        try:
            self._table[key.encode()] = encoded
        except Exception as error:
            raise ServiceUnavailable(f"a table cannot be written: {error}") from error

    def drop(self, key: str) -> None:
        """Remove a row, if there is one. Raises `ServiceUnavailable` when the store cannot."""
        try:
            self._table.pop(key.encode(), None)
        except Exception as error:
            raise ServiceUnavailable(f"a table cannot be written: {error}") from error

    def decode(self, value: bytes | None) -> Any:
        """The row that `value` says."""
        if value is None:
            return None
        try:
            return self._decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _LOGGER.error("a table row cannot be read and counts as absent: %s", error)
            return None


class Partitioned:
    """Reads one partition of a Faust table, outside events too."""

    def __init__(self, table: Any, partitions: int) -> None:
        self._table = table
        self._partitions = partitions

    def keys(self, partition: int) -> Iterator[bytes]:
        """Keys of the partition, of a moment not before the call."""
        store = self._table.data
        if hasattr(store, "_db_for_partition"):
            yield from store._visible_keys(store._db_for_partition(partition))
        else:
            # The memory store keeps all partitions in one dictionary.
            for key in list(store.data):
                raw = key.encode() if isinstance(key, str) else key
                if partition_for(raw, self._partitions) == partition:
                    yield raw

    def keys_after(self, partition: int, after: str | None, limit: int) -> list[str]:
        """Up to `limit` keys that come after `after` (None: the first ones). RocksDB only; elsewhere none."""
        store = self._table.data
        if not hasattr(store, "_db_for_partition"):
            return []
        first = None if after is None else after.encode()
        found: list[str] = []
        for key in store._db_for_partition(partition).keys(from_key=first):
            if key != first and key != store.offset_key:
                found.append(bytes(key).decode("utf-8", "replace"))
                if len(found) == limit:
                    break
        return found

    def get(self, partition: int, key: bytes) -> bytes | None:
        """The value of `key` as it is now."""
        store = self._table.data
        if hasattr(store, "_db_for_partition"):
            value = store._db_for_partition(partition).get(key)
            return None if value is None else bytes(value)
        found = self._table.get(key)
        return None if found is None else bytes(found)
