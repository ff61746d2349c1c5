"""Commands and what is said about them: `sync.commands`, `sync.jobs`, `sync.command_events`, `sync.jobs.state`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from streams.contracts.values import Record, Timestamp, Token, Uuid

OwnerCommandKind = Literal["sync_now", "resync", "backfill", "verify"]
JobKind = Literal["export"]


class Command(Record, frozen=True, kw_only=True):
    """`sync.commands` and `sync.jobs`, key account_id. `kind` decides what `args` may hold."""

    command_id: Token
    account_id: Uuid
    kind: Token
    at: Timestamp
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    deadline: Timestamp | None = None


class CommandEvent(Record, frozen=True, kw_only=True, tag_field="type"):
    """What every event of a command carries."""

    command_id: Token
    account_id: Uuid
    kind: Token
    at: Timestamp
    attempt: int = 1
    worker: str | None = None


class CommandStarted(CommandEvent, frozen=True, kw_only=True, tag="started"):
    """A worker has begun (published once; an execution repeated after a crash says so by its attempt)."""


class CommandProgress(CommandEvent, frozen=True, kw_only=True, tag="progress"):
    """How far it is: `fraction` only ever grows within an attempt."""

    fraction: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    message: str | None = None


class CommandSuccess(CommandEvent, frozen=True, kw_only=True, tag="success"):
    """Concluded: done. Exactly one success or failure is published for a command."""

    result: dict[str, Any] = msgspec.field(default_factory=dict)


class CommandFailure(CommandEvent, frozen=True, kw_only=True, tag="failure"):
    """Concluded: not done. `retryable` tells the sender whether sending it again may help."""

    code: str
    message: str
    retryable: bool = False
    attempts: int = 1


class JobState(Record, frozen=True, kw_only=True, tag_field="what", tag="command"):
    """`sync.jobs.state`, key account_id/command_id, internal: how many attempts of a job have begun, and how it ended.

    `offset` is its place in `sync.jobs`.
    """

    account_id: Uuid
    command_id: Token
    attempts: Annotated[int, msgspec.Meta(ge=0)]
    offset: Annotated[int, msgspec.Meta(ge=0)]
    at: Timestamp
    concluded: Literal["success", "failure"] | None = None


class JobWriterState(Record, frozen=True, kw_only=True, tag_field="what", tag="writer"):
    """`sync.jobs.state`, key `writer`, internal: which opening of a partition wrote last, how many entries."""

    run: str
    entries: Annotated[int, msgspec.Meta(ge=0)]
    worker: str


AnyJobState = JobState | JobWriterState
AnyCommandEvent = CommandStarted | CommandProgress | CommandSuccess | CommandFailure
