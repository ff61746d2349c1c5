"""What the steps of a look share: the account, the reader, and what is remembered between looks.

Also the two things that any step may have to do: set a mailbox aside, and publish removals.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.domain.identity import message_id_of
from streams.domain.mirror import MailboxRecord
from streams.errors import MailstreamsError
from streams.imap.session import ImapSession
from streams.imap.values import Selected
from streams.observer import RuntimeObserver
from streams.settings import Settings
from streams.sync.reading import Reader, Trouble
from streams.sync.state import AccountState, MailboxState

log = logging.getLogger(__name__)

REMOVALS_PER_BATCH = 500
ASIDE_S = 6 * 3600.0
"""Longest time, and the time for what only a person can change."""
ASIDE_FIRST_S = 60.0
ASKED_AGAIN = 3
"""Looks after which a change of flags is given up that is told in no line that parses."""
_LASTING = frozenset(
    {
        "mailbox_permission",
        "mailbox_not_selectable",
        "mailbox_name_unsafe",
        "uidvalidity_unstable",
        "too_many_unreadable",
    }
)


@dataclass(slots=True)
class PassResult:
    """What a pass did, for status and for the answer of a command."""

    visited: int = 0
    added: int = 0
    removed: int = 0
    moved: int = 0
    flags: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    mailboxes: int = 0
    listing: int = 0
    """Mailboxes that were made, renamed or deleted."""


@dataclass(slots=True)
class Memory:
    """What a runner remembers between passes and connections; losing it costs work, never correctness."""

    trouble: Trouble
    checked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Capabilities that are offered and do not work; the account's sessions share it (`ImapSession.refused`)."""
    unparsed: Counter[str] = field(default_factory=Counter)
    """Looks in a row at a mailbox whose flags were told in lines that do not parse."""

    def asks_again(self, mailbox_id: str, *, whole: bool) -> bool:
        """Whether flags are to be asked for from the same place again: some looks long, should a server tell of one
        message so whenever it is asked.
        """
        if whole:
            self.unparsed.pop(mailbox_id, None)
            return False
        self.unparsed[mailbox_id] += 1
        return self.unparsed[mailbox_id] <= ASKED_AGAIN


@dataclass(frozen=True, slots=True)
class PassContext:
    """One pass over one account. The caller of a step holds the account's lock."""

    state: AccountState
    reader: Reader
    settings: Settings
    observer: RuntimeObserver
    memory: Memory
    wall: Callable[[], float]
    result: PassResult = field(default_factory=PassResult)

    def has_qresync(self, session: ImapSession) -> bool:
        """Whether VANISHED can be asked for: switched on, and never refused."""
        return "QRESYNC" in session.enabled and not self.memory.refused & {"QRESYNC", "CONDSTORE"}

    def has_condstore(self, session: ImapSession) -> bool:
        """Whether CHANGEDSINCE can be asked for."""
        return (session.has("CONDSTORE") or session.has("QRESYNC")) and "CONDSTORE" not in self.memory.refused


def has_open(session: ImapSession, box: MailboxState) -> bool:
    """Whether the session has this very mailbox open. A server may go on to serve one that was deleted, while a look
    over another connection has learnt that its name leads to a new one by now.
    """
    record = box.record
    uidvalidity, object_id = session.opened_as
    return (
        session.selected == record.wire_name
        and (uidvalidity or 0) == box.epoch
        and (object_id is None or record.object_id is None or object_id == record.object_id)
    )


def is_another(selected: Selected, record: MailboxRecord) -> bool:
    """Whether the mailbox that was opened is another one that has taken the name since it was listed."""
    return None not in (selected.mailbox_id, record.object_id) and selected.mailbox_id != record.object_id


def set_aside(ctx: PassContext, box: MailboxState, error: MailstreamsError) -> None:
    """Leave the mailbox alone for some time: for as long as the server asks, or longer with each failure in a row."""
    record = box.record
    record.failures += 1
    wait = min(ASIDE_S, ASIDE_FIRST_S * 2.0 ** min(record.failures - 1, 9))
    if error.code in _LASTING:
        wait = ASIDE_S
    elif error.code == "mailbox_gone" and record.failures == 1:
        wait = 0.0  # most likely it was renamed or deleted since it was listed: the next list tells
    if error.retry_after_s is not None:
        wait = max(wait, error.retry_after_s)
    record.aside = f"{error.code}: {error}"[:300]
    record.aside_at = ctx.wall()
    record.aside_until = record.aside_at + wait * (0.9 + 0.2 * random.random())
    box.dirty = True
    ctx.result.failed[record.name] = record.aside
    ctx.observer.quarantined("mailbox", error.code)
    log.warning("mailbox %s set aside: %s", record.mailbox_id, record.aside)


async def remove(ctx: PassContext, box: MailboxState, uids: BitMap, epoch: int) -> None:
    record = box.record
    for count, uid in enumerate(uids.copy(), 1):
        if uid not in box.known(epoch):
            continue
        ctx.state.emit(
            events.MessageRemoved,
            mailbox_id=record.mailbox_id,
            mailbox=record.name,
            uidvalidity=epoch,
            uid=uid,
            message_id=message_id_of(box.identity(uid, epoch)),
        )
        box.drop(uid, epoch)
        ctx.result.removed += 1
        if count % REMOVALS_PER_BATCH == 0:
            await ctx.reader.flush()
    await ctx.reader.flush()


async def remove_previous(ctx: PassContext, box: MailboxState) -> None:
    """End of a reset: what was not found again in the new epoch is gone."""
    record = box.record
    if record.previous is None:
        return
    await remove(ctx, box, box.known(record.previous).copy(), record.previous)
    record.previous = None
    box.dirty = True
    await ctx.reader.flush()
