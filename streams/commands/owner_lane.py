"""The lane over one partition of `sync.commands`, written by the shard that owns the partition.

Everything about a command goes into the shard's own `changes-p` transaction: events, the command's state and the
position are written with whatever else the shard commits, the latter two as mirror records. So a command dies with its
shard, and the next owner finds in the restored mirror which commands are concluded and where reading goes on.

Mirror keys: `<partition>/command/<account_id>/<command_id>` and `<partition>/lane/commands`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

import msgspec

from streams.commands.job_state import CommandMemory, encode_state
from streams.commands.ports import CommandState, Entry
from streams.contracts import topics
from streams.contracts.codec import Headers
from streams.domain import mirror
from streams.errors import MirrorDamaged

EXPIRE_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record for `topic` (full name); `partition` None is the shard's own."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None


class OwnerLog(Protocol):
    """The shard's log, as far as commands need it."""

    @property
    def partition(self) -> int: ...

    def read(self, key: str) -> bytes | None:
        """Mirror record of that key."""
        ...

    def scan(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Mirror records whose key begins with `prefix`."""
        ...

    def write(
        self, records: Sequence[LogRecord], mirror_records: Mapping[str, tuple[bytes | None, str]]
    ) -> asyncio.Future[None]:
        """Commit it in one transaction, in the order of the calls. Mirror records (None deletes) have a few words each.

        The future fails with a `ShardError` when the shard is lost. Raises a `ShardError` when it is lost already.
        """
        ...


class PositionRecord(msgspec.Struct, frozen=True):
    """Where reading of `sync.commands` goes on."""

    offset: int


_POSITION: Final = msgspec.json.Decoder(PositionRecord)


class OwnerLane:
    """A partition of `sync.commands` while its shard runs. See `streams.commands.ports.Lane`.

    `full_name` gives a topic's name with prefix.
    """

    def __init__(
        self,
        log: OwnerLog,
        *,
        remembered: int,
        full_name: Callable[[str], str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._log = log
        self._full_name = full_name
        self._now = now
        self._memory = CommandMemory(remembered)
        self._prefix = f"{log.partition}/command/"
        self._position_key = f"{log.partition}/lane/commands"
        for key, value in log.scan(self._prefix):
            self._memory.load(key.removeprefix(self._prefix).encode(), mirror.unseal(value))
        self._memory.sort()
        self._position = self._read_position()

    @property
    def topic(self) -> str:
        return topics.COMMANDS

    @property
    def partition(self) -> int:
        return self._log.partition

    @property
    def position(self) -> int:
        return self._position

    def known(self, account_id: str, command_id: str) -> CommandState | None:
        return self._memory.get(account_id, command_id)

    def submit(self, entry: Entry) -> asyncio.Future[None]:
        records = [
            LogRecord(
                self._full_name(record.topic), record.key, record.value, record.headers, partition=record.partition
            )
            for record in entry.records
        ]
        mirror_records: dict[str, tuple[bytes | None, str]] = {}
        if (state := entry.state) is not None:
            key, value = encode_state(state)
            what = f"command {state.concluded or 'begun'}"
            mirror_records[self._prefix + key.decode()] = (mirror.seal(value), what)
        if entry.position is not None:
            value = msgspec.json.encode(PositionRecord(entry.position))
            mirror_records[self._position_key] = (mirror.seal(value), "position in sync.commands")
            for key in self._memory.expire(self._now(), entry.position, EXPIRE_AT_ONCE):
                mirror_records[self._prefix + key.decode()] = (None, "command forgotten")
        try:
            future = self._log.write(records, mirror_records)
        except Exception as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            return future
        future.add_done_callback(partial(self._written, entry))
        return future

    def _written(self, entry: Entry, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is None and entry.state is not None:
            self._memory.put(entry.state)

    def _read_position(self) -> int:
        value = self._log.read(self._position_key)
        if value is None:
            return 0
        try:
            return _POSITION.decode(mirror.unseal(value)).offset
        except msgspec.MsgspecError:
            raise MirrorDamaged(f"the position of partition {self.partition} cannot be read") from None
