"""`mailbox.changes`: the log. Key account_id, in total order per account, `sequence` gapless from 1.

Folding the events of an account from the first gives exactly the mailboxes and messages the server has:

* `mailbox.deleted` takes all places of the mailbox with it;
* `mailbox.reset` changes the mailbox's uidvalidity and leaves its old places standing until `message.moved` or
  `message.removed` names each of them;
* every other event touches the one mailbox or place that it names.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streams.contracts.values import ModSeq, Record, Timestamp, Uid, UidValidity, Uuid

Sequence = Annotated[
    int, msgspec.Meta(ge=1, description="gapless per account; account_id/sequence identifies the event")
]
MessageKey = Annotated[str, msgspec.Meta(min_length=1, max_length=64, description="our id of the message")]
MailboxKey = Annotated[str, msgspec.Meta(min_length=1, max_length=64, description="our id of the mailbox")]


class Address(Record, frozen=True, kw_only=True):
    """One mailbox address of a header field; either part may be missing."""

    name: str | None = None
    address: str | None = None


class MessageHeaders(Record, frozen=True, kw_only=True):
    """Parsed header fields. Absent is absent, never an empty string."""

    from_: tuple[Address, ...] = msgspec.field(default=(), name="from")
    to: tuple[Address, ...] = ()
    cc: tuple[Address, ...] = ()
    reply_to: tuple[Address, ...] = ()
    subject: str | None = None
    date: Timestamp | None = None
    message_id: str | None = None
    in_reply_to: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


class Attachment(Record, frozen=True, kw_only=True):
    """One attachment as the server's BODYSTRUCTURE describes it."""

    part: str
    content_type: str
    filename: str | None = None
    size: int | None = None
    content_id: str | None = None
    inline: bool = False


class Place(Record, frozen=True, kw_only=True):
    """Where a message is: the triple (mailbox, uidvalidity, uid)."""

    mailbox_id: MailboxKey
    mailbox: str
    uidvalidity: UidValidity
    uid: Uid


class Change(Record, frozen=True, kw_only=True, tag_field="type"):
    """What every event carries."""

    account_id: Uuid
    sequence: Sequence
    at: Timestamp


class MailboxDiscovered(Change, frozen=True, kw_only=True, tag="mailbox.discovered"):
    """A mailbox has appeared (or was seen for the first time)."""

    mailbox_id: MailboxKey
    mailbox: str
    wire_name: str
    selectable: bool = True
    uidvalidity: UidValidity | None = None
    delimiter: str | None = None
    special_use: str | None = None
    attributes: tuple[str, ...] = ()


class MailboxRenamed(Change, frozen=True, kw_only=True, tag="mailbox.renamed"):
    """The mailbox, its id and all its messages go on under a new name (or with new attributes)."""

    mailbox_id: MailboxKey
    mailbox: str
    previous: str
    wire_name: str
    delimiter: str | None = None
    special_use: str | None = None
    selectable: bool = True


class MailboxDeleted(Change, frozen=True, kw_only=True, tag="mailbox.deleted"):
    """The mailbox and every place in it are gone: deleted at the server, or its account was removed."""

    mailbox_id: MailboxKey
    mailbox: str


class MailboxReset(Change, frozen=True, kw_only=True, tag="mailbox.reset"):
    """UIDVALIDITY changed (or UIDs proved wrong): new epoch. Moves and removals of the old places follow."""

    mailbox_id: MailboxKey
    mailbox: str
    previous_uidvalidity: UidValidity
    uidvalidity: UidValidity
    reason: str = "uidvalidity_changed"


class MessageAdded(Change, frozen=True, kw_only=True, tag="message.added"):
    """A message has a new place."""

    mailbox_id: MailboxKey
    mailbox: str
    uidvalidity: UidValidity
    uid: Uid
    message_id: MessageKey
    flags: tuple[str, ...] = ()
    modseq: ModSeq | None = None
    internal_date: Timestamp | None = None
    size: int | None = None
    headers: MessageHeaders = MessageHeaders()
    attachments: tuple[Attachment, ...] | None = None
    preview: str | None = None
    thread_id: str | None = None
    labels: tuple[str, ...] | None = None
    origin: Literal["live", "backfill", "repair"] = "live"
    defects: tuple[str, ...] = ()
    truncated: bool = False


class MessageMoved(Change, frozen=True, kw_only=True, tag="message.moved"):
    """The same message, one place given up for another."""

    message_id: MessageKey
    from_: Place = msgspec.field(name="from")
    to: Place
    flags: tuple[str, ...] = ()
    modseq: ModSeq | None = None
    labels: tuple[str, ...] | None = None


class MessageFlagsChanged(Change, frozen=True, kw_only=True, tag="message.flags_changed"):
    """The full set of flags after the change, and what changed."""

    mailbox_id: MailboxKey
    mailbox: str
    uidvalidity: UidValidity
    uid: Uid
    message_id: MessageKey
    flags: tuple[str, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    modseq: ModSeq | None = None
    labels: tuple[str, ...] | None = None


class MessageRemoved(Change, frozen=True, kw_only=True, tag="message.removed"):
    """The place is gone. The message may have others. Ends `message.unreadable`, too: `message_id` is new then."""

    mailbox_id: MailboxKey
    mailbox: str
    uidvalidity: UidValidity
    uid: Uid
    message_id: MessageKey


class MessageUnreadable(Change, frozen=True, kw_only=True, tag="message.unreadable"):
    """The server has a message here that could not be read; it is tried again on its own schedule."""

    mailbox_id: MailboxKey
    mailbox: str
    uidvalidity: UidValidity
    uid: Uid
    reason: str
    attempts: int = 1


class AccountCaughtUp(Change, frozen=True, kw_only=True, tag="account.caught_up"):
    """Every mailbox has been looked at once since this account was first seen; live from here on."""

    mailboxes: int
    messages: int


class BackfillCompleted(Change, frozen=True, kw_only=True, tag="backfill.completed"):
    """The history of one mailbox is in the log, back to `since` (all of it when absent)."""

    mailbox_id: MailboxKey
    mailbox: str
    messages: int
    since: Timestamp | None = None


AnyChange = (
    MailboxDiscovered
    | MailboxRenamed
    | MailboxDeleted
    | MailboxReset
    | MessageAdded
    | MessageMoved
    | MessageFlagsChanged
    | MessageRemoved
    | MessageUnreadable
    | AccountCaughtUp
    | BackfillCompleted
)
