"""What is beyond doubt in the header of a message: fields that can be read in one way only.

One value, plain ASCII, and for a subject one line. What is odd about a header is for the product's own tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

Facts = Mapping[str, Any]
"""Name of a field of `message.added` (of its headers: `headers.name`) → value. What is in doubt is missing."""

_ID: Final = re.compile(r"<([^<>\s]+)>")
_IDS: Final = re.compile(r"\s*(?:<[^<>\s]+>\s*)+")
_SUBJECT: Final = re.compile(r" ?(?P<text>\S+(?: \S+)*)")
_HEADER_MAX: Final = 100_000


def facts(size: int, arrived: datetime, header: bytes) -> Facts:
    """What is beyond doubt of a message of this size, arrival and header."""
    found: dict[str, Any] = {"size": size, "internal_date": arrived}
    if len(header) > _HEADER_MAX:
        return found
    fields = _fields(header)
    match fields.get("message-id", []):
        case []:
            found["headers.message_id"] = None
        case [one] if _IDS.fullmatch(one) and len(ids := _ID.findall(one)) == 1:
            found["headers.message_id"] = ids[0]
    for name in ("in_reply_to", "references"):
        match fields.get(name.replace("_", "-"), []):
            case []:
                found[f"headers.{name}"] = []
            case [one] if _IDS.fullmatch(one):
                found[f"headers.{name}"] = _ID.findall(one)
    match fields.get("subject", []):
        case []:
            found["headers.subject"] = None
        case [one] if one.isprintable() and "=?" not in one and len(one) < 1000 and (text := _SUBJECT.fullmatch(one)):
            found["headers.subject"] = text["text"]
    return found


def _fields(header: bytes) -> dict[str, list[str]]:
    """Bodies by name in lower case; bodies that are folded keep their line ends, bytes that are no ASCII break them."""
    found: dict[str, list[str]] = {}
    for line in re.split(rb"\r?\n(?![ \t])", header):
        name, colon, body = line.partition(b":")
        if colon:
            found.setdefault(name.decode("ascii", "replace").strip().lower(), []).append(
                body.decode("ascii", "replace")
            )
    return {name: ["\x00" if "\ufffd" in body else body for body in bodies] for name, bodies in found.items()}
