"""Ids and values shared by several records."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NewType

import msgspec

AccountId = NewType("AccountId", str)
"""UUID in its bare text form; the key of every account topic."""

UserId = NewType("UserId", str)
"""Opaque id of the product's user (any non-empty text up to 200 characters)."""

MailboxId = NewType("MailboxId", str)
"""Our id of a mailbox; survives renames."""

MessageId = NewType("MessageId", str)
"""Our id of a message: the same wherever and however often the message appears in the account."""

Uuid = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        max_length=36,  # to Python's `$` a line break may follow
        description="UUID, lower case with hyphens",
    ),
]
Token = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Uid = Annotated[int, msgspec.Meta(ge=1, le=4294967295, description="IMAP UID (RFC 9051, 2.3.1.1)")]
UidValidity = Annotated[int, msgspec.Meta(ge=0, le=4294967295, description="0 where the server gives none")]
ModSeq = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]{1,19}$", description="63-bit modification sequence as decimal text (RFC 7162)")
]
Timestamp = Annotated[datetime, msgspec.Meta(tz=True, description="RFC 3339, UTC")]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all records: unknown fields are ignored by readers, defaults are omitted by writers."""
