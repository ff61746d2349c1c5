"""The values this package hands out: frozen, made of text that is always valid UTF-8, and ready for JSON as they are.

Invariant: no string in a value holds a NUL, another control character or a lone surrogate, so any of them can be
written to JSON, Kafka and PostgreSQL without a further look.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

LOOP_FRIENDLY_BYTES: Final = 16_384
"""Up to this many octets every function of this package stays near 10 ms on whatever is sent to it, and far below on
ordinary mail. Longer input may hold its thread for longer (about 80 ms for a hostile header block at its limit, two
seconds for a message at its time cap) and belongs in a worker thread."""


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


class MessageCaps(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one MIME tree (cases 94 to 96). Reaching one is a defect, never an error."""

    max_bytes: int = 67_108_864
    """Octets of the message that are looked at."""
    max_parts: int = 1_000
    """Entities, leaves and multiparts together."""
    max_depth: int = 50
    """Multiparts in multiparts. Real mail stays under ten."""
    max_header_bytes: int = 65_536
    """Octets of one part's header block."""
    max_seconds: float = 2.0
    """Time by the clock that the caller gives."""
    max_filename_chars: int = 512


class Attachment(msgspec.Struct, frozen=True, gc=False):
    """A part that is not the message's own text."""

    part: str
    """The part specifier of RFC 9051 6.4.5, as in ``BODY.PEEK[2.1]``."""
    filename: str | None
    """Decoded (RFC 2231, RFC 2047) and cleaned, but no safe path: it may hold ``/`` and ``..``."""
    content_type: str
    """``type/subtype`` in lower case."""
    size: int | None
    """Octets as transferred, that is, base64 and line ends included; None if the server did not say."""
    content_id: str | None
    """Without its angle brackets."""
    inline: bool
    """To be shown within the text (RFC 2183 2.1, or part of a multipart/related), not beside it."""


class Leaf(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part that holds no other part, as a BODYSTRUCTURE or the message itself describes it.

    A message inside a message (message/rfc822) is a leaf: it is an attachment, and its inside is its own affair.
    """

    part: str
    content_type: str = "text/plain"
    charset: str | None = None
    encoding: str = "7bit"
    """The Content-Transfer-Encoding in lower case."""
    size: int | None = None
    """Octets as transferred."""
    disposition: str | None = None
    filename: str | None = None
    content_id: str | None = None
    parent: str = ""
    """The subtype of the multipart around it, ``""`` for a message that is one part."""

    @property
    def subtype(self) -> str:
        """What stands behind the slash of the content type."""
        return self.content_type.partition("/")[2]


class MimePart(Leaf, frozen=True, kw_only=True, gc=False):
    """A leaf of a message at hand: ``raw[start:end]`` is its body, still encoded."""

    start: int
    end: int


class ParsedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message read whole: its headers and, in order, the leaves of its MIME tree."""

    headers: Headers
    parts: tuple[MimePart, ...]
    attachments: tuple[Attachment, ...]
    text: MimePart | None
    """The part that holds the text to read: the first plain one, else the first HTML one."""
    defects: tuple[str, ...]
    """What was wrong with the tree; the headers have their own."""
