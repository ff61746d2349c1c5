"""The canonical form of a message's identifying header fields, for hashing.

Invariant: the form depends only on the fields' bodies. It is the same however a server folds lines, orders different
fields, writes field names or ends lines, and whichever other fields come along; and it tells an absent field from an
empty one. It is itself a header block, of which it is the canonical form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streams.mime.fields import select, unfolded_block
from streams.mime.values import HeaderLimits

IDENTITY_FIELDS: Final = ("message-id", "from", "to", "cc", "subject", "date", "references", "in-reply-to")
"""The fields that make the canonical form, in its order. Part of stored identities: never to be changed."""

_KNOWN: Final = {spelling: name for name in IDENTITY_FIELDS for spelling in (name, name.title(), name.upper())} | {
    "Message-ID": "message-id"
}

_PREFIX: Final = {name: f"{name}:".encode() for name in IDENTITY_FIELDS}

# Fixed, unlike the limits of parse_headers: a setting must not change what a message is.
_LIMITS: Final = HeaderLimits(max_bytes=1_048_576, max_lines=1_048_576)


def canonical_identity(raw: bytes) -> bytes:
    """The identifying fields of a raw header block in canonical form; ``b""`` if it has none of them (case 46).

    One line ``name:body`` for each field present, in the order of :data:`IDENTITY_FIELDS`, repeated fields in the order
    they stand in. Runs of white space in bodies are one blank, none at the ends. Bytes are otherwise kept as they are.
    Reads the first MiB of the block. Never raises on content.
    """
    return canonical_form(select(unfolded_block(raw, _LIMITS, set()), _KNOWN))


def canonical_form(fields: Iterable[tuple[str, str]]) -> bytes:
    """The same of fields that were selected already; those of other names count for nothing."""
    lines: dict[str, list[bytes]] = {}
    for name, body in fields:
        if name not in _PREFIX:
            continue
        if body.isascii() and body.isprintable() and "  " not in body:
            collapsed = body.strip(" ").encode()  # what the other way gives, of nearly all mail
        else:
            # As bytes: to str.split() the second byte of many a UTF-8 character is a blank.
            collapsed = b" ".join(body.encode("latin-1").split())
        if name in lines:
            lines[name].append(collapsed)
        else:
            lines[name] = [collapsed]
    return b"".join([_PREFIX[name] + body + b"\n" for name in IDENTITY_FIELDS for body in lines.get(name, ())])
