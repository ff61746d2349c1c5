"""Mailboxes in memory, with the bookkeeping of RFC 3501, 7162 and 8474.

Invariant: what a test does here is at once what a client would see of a correct server: each change takes the next
modification sequence, a UID is never used twice within one UIDVALIDITY, and every session is told.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Message:
    """One message in one mailbox. `email_id` and `gm_msgid` stay with its copies."""

    uid: int
    raw: bytes
    flags: set[str]
    internal_date: datetime
    modseq: int
    email_id: str
    gm_msgid: int
    gm_thrid: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """What sessions with the mailbox selected are told."""

    kind: str  # "new", "flags", "gone"
    uid: int


@dataclass(eq=False, slots=True)
class Mailbox:
    """One mailbox. `name` is the wire name."""

    name: str
    account: Account
    uidvalidity: int
    mailbox_id: str
    attributes: tuple[str, ...] = ()
    selectable: bool = True
    messages: list[Message] = field(default_factory=list)
    uidnext: int = 1
    highestmodseq: int = 1
    vanished: dict[int, int] = field(default_factory=dict)  # uid -> modseq of its going
    listeners: list[Callable[[Change], None]] = field(default_factory=list)

    def _tell(self, change: Change) -> None:
        for listener in list(self.listeners):
            listener(change)
        self.account.tell_mailbox(self)

    def by_uid(self, uid: int) -> Message:
        """The message of that UID; KeyError where there is none."""
        for message in self.messages:
            if message.uid == uid:
                return message
        raise KeyError(uid)

    @property
    def uids(self) -> list[int]:
        """All UIDs, ascending."""
        return [message.uid for message in self.messages]

    def deliver(
        self,
        raw: bytes,
        *,
        flags: Iterable[str] = (),
        internal_date: datetime | None = None,
        uid: int | None = None,
        email_id: str | None = None,
        gm_msgid: int | None = None,
        labels: tuple[str, ...] = (),
    ) -> Message:
        """A message arrives. `uid` above UIDNEXT leaves a gap."""
        number = self.uidnext if uid is None else uid
        if number < self.uidnext:
            raise ValueError("a UID is not used twice")
        self.uidnext = number + 1
        self.highestmodseq += 1
        serial = next(self.account.serial)
        message = Message(
            uid=number,
            raw=raw,
            flags=set(flags),
            internal_date=internal_date or _EPOCH + timedelta(seconds=serial),
            modseq=self.highestmodseq,
            email_id=email_id or "M" + hashlib.sha256(b"%d%b" % (serial, raw)).hexdigest()[:20],
            gm_msgid=gm_msgid or 1_700_000_000_000_000_000 + serial,
            gm_thrid=gm_msgid or 1_700_000_000_000_000_000 + serial,
            labels=labels,
        )
        self.messages.append(message)
        self._tell(Change("new", number))
        return message

    def set_flags(self, uid: int, flags: Iterable[str]) -> None:
        """The message has exactly these flags now."""
        message = self.by_uid(uid)
        self.highestmodseq += 1
        message.flags = set(flags)
        message.modseq = self.highestmodseq
        self._tell(Change("flags", uid))

    def expunge(self, *uids: int) -> None:
        """These messages go."""
        for uid in uids:
            message = self.by_uid(uid)
            self._tell_gone(message)

    def _tell_gone(self, message: Message) -> None:
        self.highestmodseq += 1
        self.vanished[message.uid] = self.highestmodseq
        for listener in list(self.listeners):  # they need its sequence number, so before it goes
            listener(Change("gone", message.uid))
        self.messages.remove(message)
        self.account.tell_mailbox(self)

    def copy_to(self, uid: int, other: Mailbox) -> Message:
        """A copy arrives in another mailbox, with the ids of the original."""
        message = self.by_uid(uid)
        return other.deliver(
            message.raw,
            flags=message.flags,
            internal_date=message.internal_date,
            email_id=message.email_id,
            gm_msgid=message.gm_msgid,
            labels=message.labels,
        )

    def move_to(self, uid: int, other: Mailbox) -> Message:
        """Copy and expunge."""
        copy = self.copy_to(uid, other)
        self.expunge(uid)
        return copy

    def new_epoch(self, uidvalidity: int | None = None) -> None:
        """Another UIDVALIDITY and UIDs from 1 on, same messages in the same order."""
        self.uidvalidity = self.uidvalidity + 1 if uidvalidity is None else uidvalidity
        self._number_from(1)
        self.vanished.clear()

    def renumber(self, first: int) -> None:
        """Other UIDs under the same UIDVALIDITY, as broken bridges do (case 34)."""
        self._number_from(first)

    def lose_history(self, highestmodseq: int) -> None:
        """HIGHESTMODSEQ goes back, as after a restored index (case 6)."""
        self.highestmodseq = highestmodseq
        for message in self.messages:
            message.modseq = min(message.modseq, highestmodseq)
        self.vanished.clear()

    def _number_from(self, first: int) -> None:
        for uid, message in enumerate(self.messages, start=first):
            message.uid = uid
        self.uidnext = first + len(self.messages)
        self.highestmodseq += 1
        for message in self.messages:
            message.modseq = self.highestmodseq


class Account:
    """A user with mailboxes. INBOX is there from the start."""

    def __init__(self, username: str = "user", password: str = "secret", *, delimiter: str = "/") -> None:
        self.username = username
        self.password = password
        self.token = password  # what XOAUTH2 and OAUTHBEARER accept
        self.delimiter = delimiter
        self.serial = itertools.count(1)
        self._numbers = itertools.count(1000)
        self.mailboxes: dict[str, Mailbox] = {}
        self.watchers: list[Callable[[str, Mailbox, str | None], None]] = []  # NOTIFY: kind, mailbox, old name
        self.create("INBOX")

    def create(self, name: str, *, attributes: tuple[str, ...] = (), selectable: bool = True) -> Mailbox:
        """A new mailbox. `name` as on the wire."""
        number = next(self._numbers)
        mailbox = Mailbox(name, self, number, f"F{number}", attributes, selectable)
        self.mailboxes[name] = mailbox
        self._tell("created", mailbox, None)
        return mailbox

    def rename(self, old: str, new: str) -> Mailbox:
        """UIDs, UIDVALIDITY and mailbox id go along."""
        mailbox = self.mailboxes.pop(old)
        mailbox.name = new
        self.mailboxes[new] = mailbox
        self._tell("renamed", mailbox, old)
        return mailbox

    def delete(self, name: str) -> None:
        """The mailbox goes with all that is in it."""
        self._tell("deleted", self.mailboxes.pop(name), None)

    def tell_mailbox(self, mailbox: Mailbox) -> None:
        """Its STATUS changed."""
        self._tell("status", mailbox, None)

    def _tell(self, kind: str, mailbox: Mailbox, old: str | None) -> None:
        for watcher in list(self.watchers):
            watcher(kind, mailbox, old)


def date_time(moment: datetime) -> str:
    """As INTERNALDATE is written (RFC 3501 section 9)."""
    zone = moment.astimezone(moment.tzinfo or timezone.utc)  # noqa: UP017
    return f"{zone.day:2d}-{MONTHS[zone.month - 1]}-{zone:%Y %H:%M:%S %z}"
