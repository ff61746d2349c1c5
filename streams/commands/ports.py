"""What the engine needs from the outside, and the values that pass between them.

A *lane* is one partition of commands together with the place where everything about them is written. The invariant
every lane keeps: an `Entry` (events, consequences, the command's state, the position) becomes visible as a whole or not
at all, entries become visible in the order they were submitted, and of a lane that was lost nothing does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from streams.contracts.codec import Headers


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A record of a command topic as it came."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class OutRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to publish. `topic` is without prefix, `partition` None goes by the key, `kind` is for the metrics."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    kind: str
    partition: int | None = None


class CommandState(msgspec.Struct, frozen=True, gc=False):
    """What a lane remembers of a command: how many attempts have begun, and whether it is concluded."""

    account_id: str
    command_id: str
    attempts: int
    concluded: Literal["success", "failure"] | None
    offset: int
    at: datetime


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What is written at once. `position` None leaves the position alone.

    `otherwise` tells what is to be written in its place when the records are refused for good, given the reason.
    """

    records: tuple[OutRecord, ...] = ()
    state: CommandState | None = None
    position: int | None = None
    otherwise: Callable[[str], Entry] | None = None


class Lane(Protocol):
    """One partition of commands, from the moment it is ours until it is lost."""

    @property
    def topic(self) -> str:
        """Name of the command topic, without prefix."""
        ...

    @property
    def partition(self) -> int: ...

    @property
    def position(self) -> int:
        """The offset from which deliveries come when the lane opens."""
        ...

    def known(self, account_id: str, command_id: str) -> CommandState | None:
        """What was committed about a command, by us or by an owner before us."""
        ...

    def submit(self, entry: Entry) -> asyncio.Future[None]:
        """Queue an entry. The future is done when it is committed; a `ShardError` in it means that the lane is lost."""
        ...
