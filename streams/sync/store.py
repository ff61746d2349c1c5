"""Where restored mirrors lie on this machine, so that memory does not grow with the mail.

One RocksDB for the worker, a key prefix for each partition. It is a cache of `mailbox.mirror` and nothing else: it is
emptied when the process starts, and it holds a record only after the transaction with that record was committed. With
the records lies the offset up to which the partition was read, so that a shard which must start over reads only the
tail.

RocksDB refuses all writes after one has failed, a full disk for instance, until it is opened anew. So after a failure
the next write opens it anew. What was written before is still there, since writes are atomic and logged: shards that
run do not notice, and the one whose write failed starts over as it does after any failure of its writer.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict, ReadOptions, WriteBatch

from streams.errors import ConfigurationError

_BLOCK_CACHE_BYTES = 32 << 20
_WRITE_BUFFER_BYTES = 16 << 20

log = logging.getLogger(__name__)


class MirrorStore:
    """Local key-value store of mirror records, by partition. Keys are the records' own keys."""

    def __init__(self, directory: Path) -> None:
        """Opens an empty store below `directory`. Raises `ConfigurationError` when it cannot be written."""
        self._path = directory / "mirror"
        self._lock = threading.Lock()
        self._failed = False
        self._written_at: dict[int, float] = {}
        try:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._handle: Rdict | None = self._open()
        except Exception as error:
            raise ConfigurationError(f"DATA_DIR: {self._path} cannot be used: {str(error)[:200]}") from None

    @property
    def _db(self) -> Rdict:
        """The database, opened anew when the last try to do so failed. Raises what opening raises."""
        handle = self._handle
        if handle is None:
            with self._lock:
                handle = self._handle or self._reopen()
        return handle

    def get(self, partition: int, key: str) -> bytes | None:
        """Value of a key, if present."""
        value = self._db.get(_key(partition, key))
        return None if value is None else _raw(value)

    def scan(self, partition: int, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Records whose key begins with `prefix`, in key order."""
        start = _key(partition, prefix)
        options = ReadOptions()
        options.set_iterate_upper_bound(start + b"\xff")
        for raw_key, value in self._db.items(from_key=start, read_opt=options):
            key = _raw(raw_key)
            if not key.startswith(start):
                break
            yield key[3:].decode(), _raw(value)

    def accounts(self, partition: int) -> Iterator[str]:
        """Accounts of which there are records, in order; passes over the records themselves."""
        first = _key(partition, "")
        cursor = self._db.iter(ReadOptions())
        cursor.seek(first)
        while cursor.valid():
            key = _raw(cursor.key())
            if not key.startswith(first):
                return
            account_id = key[len(first) :].split(b"/", 1)[0]
            yield account_id.decode()
            cursor.seek(first + account_id + b"0")  # the first key behind "<account>/"

    def position(self, partition: int) -> int:
        """Offset of `mailbox.mirror` up to which this partition has been read here; 0 if never."""
        value = self._db.get(_position_key(partition))
        return 0 if value is None else int(struct.unpack(">q", value)[0])

    def idle_s(self, partition: int) -> float:
        """Seconds since something of this partition was last written here; 0 if nothing ever was."""
        return time.monotonic() - self._written_at.get(partition, time.monotonic())

    def apply(self, partition: int, records: Mapping[str, bytes | None], position: int | None) -> None:
        """Write records (None deletes) and the new position atomically."""
        batch = WriteBatch(raw_mode=True)
        for key, value in records.items():
            if value is None:
                batch.delete(_key(partition, key))
            else:
                batch.put(_key(partition, key), value)
        if position is not None:
            batch.put(_position_key(partition), struct.pack(">q", position))
        self._write(lambda db: db.write(batch))
        self._written_at[partition] = time.monotonic()

    def forget(self, partition: int) -> None:
        """Drop everything of a partition."""
        begin = b"r" + struct.pack(">H", partition)

        def drop(db: Rdict) -> None:
            db.delete_range(begin, begin + b"\xff" * 8)
            db.delete(_position_key(partition))

        self._write(drop)

    def close(self) -> None:
        """Close the database and remove it."""
        if self._handle is not None:
            # A database that failed refuses to close; what it holds is removed anyway.
            with contextlib.suppress(Exception):
                self._handle.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def _write(self, change: Callable[[Rdict], None]) -> None:
        """Make a change; open the database anew before it when an earlier one failed. Writers may be in any thread."""
        with self._lock:
            if self._failed:
                self._reopen()
            assert self._handle is not None
            try:
                change(self._handle)
            except Exception:
                self._failed = True
                raise

    def _reopen(self) -> Rdict:
        """Raises what opening raises; the next read or write tries again."""
        # A database that failed refuses to close, too, and keeps its lock; without a reference to it, it goes away.
        failed, self._handle = self._handle, None
        if failed is not None:
            with contextlib.suppress(Exception):
                failed.close()
        del failed
        gc.collect()
        self._handle = self._open()
        self._failed = False
        log.warning("the local store was opened anew after a write that failed")
        return self._handle

    def _open(self) -> Rdict:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_max_write_buffer_number(2)
        options.set_keep_log_file_num(1)
        table = BlockBasedOptions()
        table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        return Rdict(str(self._path), options, access_type=AccessType.read_write())


def _raw(value: object) -> bytes:
    """A raw-mode store gives bytes; its types say more."""
    assert isinstance(value, bytes)
    return value


def _key(partition: int, key: str) -> bytes:
    return b"r" + struct.pack(">H", partition) + key.encode()


def _position_key(partition: int) -> bytes:
    return b"p" + struct.pack(">H", partition)
