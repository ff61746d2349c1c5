"""Commands for the owner of an account: what they may be asked, and the port that does them.

The shard that owns the account implements `AccountOperations`; the handlers here check arguments and pass results on.
Failure codes that an operation raises as `TaskFailed` (or that its `MailstreamsError` has) are public; those of the
product are in `FAILURE_CODES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec

from streams.commands.handlers import Handlers, Task, TaskFailed
from streams.contracts.values import UidValidity

MailboxName = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]

NOT_LIVE: Final = "not_live"
NOT_OWNED: Final = "not_owned"
MAILBOX_UNKNOWN: Final = "mailbox_unknown"
UIDVALIDITY_MISMATCH: Final = "uidvalidity_mismatch"
BUSY: Final = "busy"

FAILURE_CODES: Final[Mapping[str, str]] = {
    NOT_LIVE: "the account is disabled, deleted or in error; nothing was done",
    NOT_OWNED: "the account is not run here at the moment; tried again by itself",
    MAILBOX_UNKNOWN: "there is no such mailbox",
    UIDVALIDITY_MISMATCH: "the mailbox was numbered anew since the sender looked; nothing was done",
    BUSY: "another command of that kind works on the mailbox; tried again by itself",
}


class SyncNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`sync_now`: look at the server now, whatever the tier. `mailbox` by name; None is all of them."""

    mailbox: MailboxName | None = None
    uidvalidity: UidValidity | None = None


class Resync(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`resync`: compare everything anew, trusting neither modification sequences nor counts."""

    mailbox: MailboxName | None = None
    uidvalidity: UidValidity | None = None


class Backfill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`backfill`: fetch older history: back to the day `since`, the newest `count` per mailbox, or (neither) all."""

    mailbox: MailboxName | None = None
    uidvalidity: UidValidity | None = None
    since: date | None = None
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.count is not None:
            raise ValueError("either since or count, not both")


class Verify(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`verify`: compare server, mirror and database, with `deep` also the log; changes nothing.

    What differs is looked at again after `recheck_s` seconds, so that mail on its way is no finding.
    """

    mailbox: MailboxName | None = None
    deep: bool = False
    recheck_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 10.0
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    """Findings listed at most; all are counted."""


class Reporter(Protocol):
    """How an operation says how far it is: `Task.progress`."""

    def __call__(
        self, fraction: float, *, counts: Mapping[str, int] | None = None, message: str | None = None
    ) -> None: ...


class AccountOperations(Protocol):
    """What the owner of accounts can be asked. Results are JSON objects.

    Raise `TaskFailed` with a code of `FAILURE_CODES`, or errors of `streams.errors`: `RetryLater` is tried again,
    `AccountError` and `MailboxError` conclude, `ShardError` leaves the command to the shard that comes next.
    """

    async def sync_now(self, account_id: str, args: SyncNow, progress: Reporter) -> Mapping[str, Any]: ...

    async def resync(self, account_id: str, args: Resync, progress: Reporter) -> Mapping[str, Any]: ...

    async def backfill(self, account_id: str, args: Backfill, progress: Reporter) -> Mapping[str, Any]: ...

    async def verify(self, account_id: str, args: Verify, progress: Reporter) -> Mapping[str, Any]: ...


OwnerKind = Literal["sync_now", "resync", "backfill", "verify"]
OWNER_ARGS: Final[Mapping[OwnerKind, type[msgspec.Struct]]] = {
    "sync_now": SyncNow,
    "resync": Resync,
    "backfill": Backfill,
    "verify": Verify,
}


def owner_handlers(operations: AccountOperations) -> Handlers:
    """Handlers of `sync.commands`, done by `operations`."""
    handlers = Handlers()
    for kind, args in OWNER_ARGS.items():
        handlers.add(kind, _handler(getattr(operations, kind)), args=args)
    return handlers


def _handler(operation: Callable[..., Any]) -> Callable[..., Any]:
    async def run(args: msgspec.Struct, task: Task) -> Mapping[str, Any]:
        result: Mapping[str, Any] = await operation(task.account_id, args, task.progress)
        return result

    return run


def not_live(state: str | None) -> TaskFailed:
    """The refusal for an account that is not live."""
    return TaskFailed(NOT_LIVE, f"the account is {state}" if state else "the account is not known here")


def uidvalidity_mismatch(given: int, found: int | None) -> TaskFailed:
    """The refusal for a mailbox that was numbered anew."""
    return TaskFailed(UIDVALIDITY_MISMATCH, f"the mailbox has uidvalidity {found}, not {given}")


def mailbox_unknown(name: str) -> TaskFailed:
    """The refusal for a mailbox that does not exist."""
    return TaskFailed(MAILBOX_UNKNOWN, f"there is no mailbox {name[:200]!r}")
