"""The values this package hands out: frozen, made of text that is always valid UTF-8, and ready for JSON as they are.

Invariant: no string in a value holds a NUL, another control character or a lone surrogate, so any of them can be
written to JSON, Kafka and PostgreSQL without a further look.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class HeaderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one header block. What is over is left out and named in ``Headers.defects``.

    With the defaults one message's headers come to at most about 400 KB of UTF-8, because a byte that cannot be decoded
    becomes a replacement character of three bytes.
    """

    max_bytes: int = 131_072
    """Octets of the raw block that are read at all."""
    max_lines: int = 4_000
    """Lines of the raw block that are read at all; bounds the work for a block of tiny fields."""
    max_addresses: int = 1_000
    """Addresses kept, over all address fields of the message together."""
    max_references: int = 100
    """Message ids kept of References: the first (the thread's root) and the newest."""
    max_comment_depth: int = 64
    """Nesting of RFC 5322 comments that is still read as comments."""
    max_value_chars: int = 4_096
    """Characters kept of a subject or of a display name."""
    max_id_chars: int = 998
    """Characters kept of an address, message id or list id; RFC 5322 2.1.1 allows no longer line."""


class Address(msgspec.Struct, frozen=True, gc=False):
    """One mailbox of an address field (RFC 5322 3.4). Groups are flattened to their members."""

    name: str | None
    """Display name, decoded; of the old form ``a@b.example (Name)`` the comment. None if there is none."""
    address: str | None
    """``local@domain`` as the sender wrote it. None if the entry holds no address at all, only text."""


class Headers(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is read of a message's header block. An absent field is None or empty, which is never an error (case 93)."""

    from_: tuple[Address, ...] = msgspec.field(default=(), name="from")
    to: tuple[Address, ...] = ()
    cc: tuple[Address, ...] = ()
    bcc: tuple[Address, ...] = ()
    reply_to: tuple[Address, ...] = ()
    subject: str | None = None
    """Decoded and unfolded. An empty Subject field is ``""``, an absent one None."""
    date: datetime | None = None
    """The Date field in UTC; None if it is absent or names no moment in time (case 89)."""
    message_id: str | None = None
    """Without its angle brackets, as in RFC 8621 4.1.2.5. Never a key (case 91)."""
    in_reply_to: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    list_id: str | None = None
    """The identifier of RFC 2919 without brackets and description."""
    content_type: str | None = None
    """``type/subtype`` in lower case; None if the field is absent or is not a media type."""
    defects: tuple[str, ...] = ()
    """Names out of :mod:`streams.mime.defects`, sorted, each once."""
