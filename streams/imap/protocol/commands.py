"""Encodes what we send.

Invariant: an argument cannot end its command or begin another (case 107): NUL, CR and LF are refused, quotes are
escaped, what cannot be quoted goes as a literal. No command shows its arguments: `repr` is its name (cases 103, 104).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

_FORBIDDEN = re.compile(rb"[\x00\r\n]")
_QUOTABLE = re.compile(rb"[\x20-\x7e]*\Z")
_SEQUENCE_SET = re.compile(
    r"(?:\d{1,10}|\*)(?::(?:\d{1,10}|\*))?(?:,(?:\d{1,10}|\*)(?::(?:\d{1,10}|\*))?)*\Z", re.ASCII
)
_FETCH_ITEM = re.compile(
    rb"(?:[A-Z][A-Z0-9.-]*|(?:BODY|BODY\.PEEK|BINARY\.PEEK)\[[A-Z0-9. ()-]*\](?:<\d{1,19}\.\d{1,19}>)?)\Z",
    re.IGNORECASE,
)
_LITERAL_MINUS_BYTES: Final = 4096  # RFC 7888 section 5
# 8,192 bytes are what servers must take in a line (RFC 7162 section 4); some refuse more.
MAX_LINE_BYTES: Final = 8000


class LiteralMode(Enum):
    """Whether the server takes literals without asking (RFC 7888)."""

    SYNCHRONISING = "sync"
    PLUS = "LITERAL+"
    MINUS = "LITERAL-"


class Literal(NamedTuple):
    """An argument sent by length."""

    data: bytes


Part = bytes | Literal


class UnsafeArgument(ValueError):
    """An argument holds NUL, CR or LF. Its text is not in the message."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command without its tag. Parts are separated by blanks."""

    name: str
    parts: tuple[Part, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for part in self.parts:
            if _FORBIDDEN.search(part.data if isinstance(part, Literal) else part) is not None:
                raise UnsafeArgument(f"NUL, CR and LF are not allowed in an argument of {self.name}")


def encode(tag: bytes, command: Command, mode: LiteralMode) -> list[bytes]:
    """The command as chunks; before each chunk but the first the server's `+` must have come."""
    chunks: list[bytes] = []
    line = bytearray(tag + b" " + command.name.encode())
    for part in command.parts:
        line += b" "
        if not isinstance(part, Literal):
            line += part
            continue
        unasked = mode is LiteralMode.PLUS or (mode is LiteralMode.MINUS and len(part.data) <= _LITERAL_MINUS_BYTES)
        line += b"{%d%s}\r\n" % (len(part.data), b"+" if unasked else b"")
        if not unasked:
            chunks.append(bytes(line))
            line = bytearray()
        line += part.data
    chunks.append(bytes(line) + b"\r\n")
    return chunks


def quoted(value: bytes) -> bytes:
    """A quoted string (RFC 3501 section 9). Only for what can be quoted."""
    if _FORBIDDEN.search(value) is not None:
        raise UnsafeArgument("NUL, CR and LF are not allowed in an argument")
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def astring(value: bytes) -> Part:
    """A string argument: always quoted where possible (case 57), else a literal."""
    if _FORBIDDEN.search(value) is not None:
        raise UnsafeArgument("NUL, CR and LF are not allowed in an argument")
    return quoted(value) if len(value) <= 1024 and _QUOTABLE.match(value) is not None else Literal(value)


def sequence_set(uids: str) -> bytes:
    """A checked UID set such as `1:5,7,20:*`."""
    if _SEQUENCE_SET.match(uids) is None:
        raise UnsafeArgument("not a set of UIDs")
    return uids.encode()


def fetch_item(item: bytes) -> bytes:
    """A checked FETCH item. Sections only by PEEK, since fetching must not set \\Seen."""
    if _FETCH_ITEM.match(item) is None:
        raise UnsafeArgument("not a FETCH item")
    name = item.split(b"[", 1)[0].upper()
    if (name in (b"BODY", b"BINARY") and b"[" in item) or name in (b"RFC822", b"RFC822.TEXT"):
        raise UnsafeArgument("a FETCH item that would set \\Seen")
    return item
