"""What `sync.jobs.state` says of the commands of one partition, and how long it is remembered.

Records are JSON, keyed `account_id/command_id`; the record keyed `writer` says which run of a lane wrote last and how
many entries it has written. Invariants: a record that cannot be read is never taken for "nothing known"; what is
remembered is bounded, by age and by count, and a command that may come again by itself (it lies beyond the position) is
never forgotten. A command that a *producer* sends again later than that is a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final

import msgspec

from streams.commands.ports import CommandState
from streams.contracts.codec import encode
from streams.contracts.commands import AnyJobState, JobState, JobWriterState
from streams.errors import MirrorDamaged

WRITER_KEY: Final = b"writer"
REMEMBERED_FOR: Final = timedelta(days=8)
"""Longer than a command is kept in its topic (7 days)."""


_DECODER: Final[msgspec.json.Decoder[AnyJobState]] = msgspec.json.Decoder(AnyJobState)


def state_key(account_id: str, command_id: str) -> bytes:
    """Key of a command's record."""
    return f"{account_id}/{command_id}".encode()


def encode_state(state: CommandState) -> tuple[bytes, bytes]:
    """Key and value."""
    return state_key(state.account_id, state.command_id), encode(
        JobState(
            account_id=state.account_id,
            command_id=state.command_id,
            attempts=state.attempts,
            offset=state.offset,
            at=state.at,
            concluded=state.concluded,
        )
    )


def encode_writer(run: str, entries: int, worker: str) -> tuple[bytes, bytes]:
    """Key and value."""
    return WRITER_KEY, encode(JobWriterState(run=run, entries=entries, worker=worker))


class CommandMemory:
    """The commands of one partition, in the order in which they were last written."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._states: OrderedDict[bytes, CommandState] = OrderedDict()
        self.writer: JobWriterState | None = None

    def __len__(self) -> int:
        return len(self._states)

    def get(self, account_id: str, command_id: str) -> CommandState | None:
        """What is known of a command."""
        return self._states.get(state_key(account_id, command_id))

    def put(self, state: CommandState) -> None:
        """Note what was committed."""
        key = state_key(state.account_id, state.command_id)
        self._states[key] = state
        self._states.move_to_end(key)

    def load(self, key: bytes | None, value: bytes | None) -> None:
        """Take over a record of the topic. Raises `MirrorDamaged`."""
        if key is None:
            raise MirrorDamaged("a record of sync.jobs.state has no key")
        if value is None:
            self._states.pop(key, None)
            return
        try:
            record = _DECODER.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise MirrorDamaged(f"the record {key[:100]!r} of sync.jobs.state cannot be read") from None
        match record:
            case JobWriterState():
                self.writer = record
            case JobState():
                if key != state_key(record.account_id, record.command_id):
                    raise MirrorDamaged(f"the record {key[:100]!r} of sync.jobs.state is of another command")
                self._states[key] = CommandState(
                    record.account_id, record.command_id, record.attempts, record.concluded, record.offset, record.at
                )
                self._states.move_to_end(key)

    def sort(self) -> None:
        """Put them into the order of their age, after they were loaded in another one."""
        self._states = OrderedDict(sorted(self._states.items(), key=lambda item: item[1].at))

    def expire(self, now: datetime, position: int, at_most: int) -> list[bytes]:
        """Forget what is too old or too much, never what lies beyond the position; returns keys for tombstones."""
        expired: list[bytes] = []
        for key, state in self._states.items():
            if len(expired) >= at_most:
                break
            if now - state.at <= REMEMBERED_FOR and len(self._states) - len(expired) <= self._limit:
                break
            if state.offset < position:
                expired.append(key)
        for key in expired:
            del self._states[key]
        return expired
