"""The rows of the projection as the fold makes them. Field names are column names.

They are written as JSON, a whole batch in one parameter, hence msgspec structs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from streams.contracts.mailbox import Attachment, MessageHeaders

MAX_BIGINT: Final = 2**63 - 1
# An index entry of a btree may have 2,704 bytes; who sends mail chooses these texts. The full ones stand in `headers`.
MAX_ADDRESS_CHARS: Final = 320
MAX_INTERNET_ID_CHARS: Final = 500
MAX_THREAD_ID_CHARS: Final = 255


class MailboxRef(NamedTuple):
    """Key of a mailbox."""

    account_id: str
    mailbox_id: str


class MessageRef(NamedTuple):
    """Key of a message."""

    account_id: str
    message_id: str


class Uidref(NamedTuple):
    """Key of a place within its mailbox."""

    uidvalidity: int
    uid: int


class MailboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A mailbox in full."""

    account_id: str
    mailbox_id: str
    name: str
    wire_name: str
    delimiter: str | None
    special_use: str | None
    selectable: bool
    attributes: tuple[str, ...]
    uidvalidity: int | None
    discovered_at: datetime
    backfilled_at: datetime | None = None
    backfilled_to: datetime | None = None
    cleaned: bool = False


class MailboxName(msgspec.Struct, frozen=True, kw_only=True):
    """What a rename replaces."""

    account_id: str
    mailbox_id: str
    name: str
    wire_name: str
    delimiter: str | None
    special_use: str | None
    selectable: bool
    cleaned: bool


class MailboxEpoch(msgspec.Struct, frozen=True):
    """The uidvalidity that a mailbox has."""

    account_id: str
    mailbox_id: str
    uidvalidity: int


class MailboxBackfilled(msgspec.Struct, frozen=True):
    """How far back the mailbox's history goes (`backfilled_to` None: all of it)."""

    account_id: str
    mailbox_id: str
    backfilled_at: datetime
    backfilled_to: datetime | None


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message, wherever and however often it is."""

    account_id: str
    message_id: str
    thread_id: str | None
    subject: str | None
    from_name: str | None
    from_address: str | None
    sent_at: datetime | None
    sort_at: datetime
    size: int | None
    internet_message_id: str | None
    in_reply_to: tuple[str, ...]
    references: tuple[str, ...]
    headers: MessageHeaders
    attachments: tuple[Attachment, ...] | None
    preview: str | None
    defects: tuple[str, ...]
    truncated: bool
    cleaned: bool
    first_seen_at: datetime


class PlaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is. `sort_at` None: as the message has it (a move does not say)."""

    account_id: str
    mailbox_id: str
    uidvalidity: int
    uid: int
    message_id: str
    flags: tuple[str, ...]
    labels: tuple[str, ...] | None
    modseq: int | None
    sort_at: datetime | None
    since: datetime


class FlagsRow(msgspec.Struct, frozen=True, kw_only=True):
    """New flags of a place that stands; `labels` and `modseq` None are kept as they are."""

    account_id: str
    mailbox_id: str
    uidvalidity: int
    uid: int
    message_id: str
    flags: tuple[str, ...]
    labels: tuple[str, ...] | None
    modseq: int | None


class GoneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A place that a message has left."""

    account_id: str
    mailbox_id: str
    uidvalidity: int
    uid: int
    message_id: str


class UnreadableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A place whose message cannot be read."""

    account_id: str
    mailbox_id: str
    uidvalidity: int
    uid: int
    reason: str
    attempts: int
    at: datetime


class AccountRow(msgspec.Struct, frozen=True):
    """How far an account's events are in."""

    account_id: str
    sequence: int
    changed_at: datetime
    caught_up_at: datetime | None = None


def storable(number: int | None) -> int | None:
    """A server's number as a bigint holds it; None for what cannot be right."""
    return number if number is None or 0 <= number <= MAX_BIGINT else None


def modseq_of(text: str | None) -> int | None:
    """A modification sequence (decimal text, RFC 7162: 63 bits) as a number."""
    return None if text is None else min(int(text), MAX_BIGINT)
