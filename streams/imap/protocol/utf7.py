"""Modified UTF-7 (RFC 3501 section 5.1.3), for showing mailbox names.

Invariant: display only. A decoded name is never encoded again to be sent: the wire name is the key (case 62). Names
that do not decode are shown as they are, never refused.
"""

from __future__ import annotations

import binascii
import re

_SHIFTED = re.compile(rb"&([A-Za-z0-9+,]*)-")


def _decode_shifted(match: re.Match[bytes]) -> bytes:
    inner = match[1]
    if not inner:
        return b"&"
    try:
        packed = binascii.a2b_base64(inner.replace(b",", b"/") + b"=" * (-len(inner) % 4))
        return packed.decode("utf-16-be").encode()
    except (binascii.Error, UnicodeError):
        return match[0]


def display_name(wire_name: bytes) -> str:
    """The name as a person reads it: decoded where it is valid, else the bytes as they stand, never with controls."""
    try:
        decoded = _SHIFTED.sub(_decode_shifted, wire_name)
        text = decoded.decode()
    except UnicodeDecodeError:
        text = wire_name.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
