"""Records of the log to events, with text that PostgreSQL can store.

Invariant: an event that leaves here holds valid Unicode without NUL, whatever its bytes were; that it had to be changed
is told (`cleaned`). Only a record that is no event at all is refused, since it stands in our own log.

PostgreSQL's `text` and `jsonb` take no U+0000, and no lone surrogate can be UTF-8.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, get_args

import msgspec

from streams.contracts.mailbox import AnyChange
from streams.contracts.values import Uuid
from streams.errors import MailstreamsError

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_DECODER: Final[msgspec.json.Decoder[AnyChange]] = msgspec.json.Decoder(AnyChange)
_KNOWN_TYPES: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyChange))
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
# What the JSON of such text looks like: escapes of NUL and surrogates. A pair of surrogates is fine, and rare enough.
_SUSPICIOUS: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class MalformedEvent(MailstreamsError):
    """A record of our own log is no event. Its partition stops until a person looks; nothing of it is skipped."""

    code = "malformed_event"


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of a type that this version does not know (the contract only grows). It still counts in the sequence."""

    type: str
    account_id: Uuid
    sequence: int
    at: datetime


_UNKNOWN_DECODER: Final = msgspec.json.Decoder(UnknownEvent)


@dataclass(frozen=True, slots=True)
class Decoded:
    """One event; `cleaned` when text in it was replaced."""

    event: AnyChange | UnknownEvent
    cleaned: bool = False


def decode_change(value: bytes | None) -> Decoded:
    """The event in `value`.

    Raises `MalformedEvent`; its text quotes no content.
    """
    if value is None:
        raise MalformedEvent("a record without value")
    if _SUSPICIOUS.search(value) is None:
        try:
            return Decoded(_DECODER.decode(value))
        except msgspec.ValidationError as error:
            return _of_other_type(value, error)
        except msgspec.DecodeError:
            pass  # perhaps only its text is bad: see below
    return _decode_cleaning(value)


def _of_other_type(value: bytes, error: msgspec.ValidationError) -> Decoded:
    try:
        found = _UNKNOWN_DECODER.decode(value)
    except msgspec.DecodeError:
        raise MalformedEvent(f"a record that is no event: {error}") from None
    if found.type in _KNOWN_TYPES:
        raise MalformedEvent(f"a {found.type} that breaks the contract: {error}") from None
    return Decoded(found)


def _decode_cleaning(value: bytes) -> Decoded:
    text = value.decode("utf-8", "replace")
    cleaned = REPLACEMENT in text and REPLACEMENT.encode() not in value
    try:
        # strict=False lets raw control characters through; they are cleaned like escaped ones
        plain, found = clean(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        raise MalformedEvent("a record that is no JSON") from None
    cleaned = cleaned or found
    try:
        return Decoded(msgspec.convert(plain, AnyChange, strict=True), cleaned)
    except msgspec.ValidationError as error:
        return _of_other_type(msgspec.json.encode(plain), error)


def clean(value: Any) -> tuple[Any, bool]:
    """`value` (as JSON gives it) with every NUL and lone surrogate replaced, and whether there was any."""
    if isinstance(value, str):
        text, count = _UNSTORABLE.subn(REPLACEMENT, value)
        return text, count > 0
    if isinstance(value, list):
        items = [clean(item) for item in value]
        return [item for item, _ in items], any(changed for _, changed in items)
    if isinstance(value, dict):
        pairs = [(clean(key), clean(item)) for key, item in value.items()]
        return {key[0]: item[0] for key, item in pairs}, any(key[1] or item[1] for key, item in pairs)
    return value, False


def clean_text(value: bytes) -> bytes:
    """JSON whose text PostgreSQL can store; what is no JSON stays as it is."""
    if _SUSPICIOUS.search(value) is None:
        return value
    try:
        return msgspec.json.encode(clean(json.loads(value.decode("utf-8", "replace"), strict=False))[0])
    except (ValueError, RecursionError):
        return value
