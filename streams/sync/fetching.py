"""What is asked of the server about a message, and what of the answer goes into `message.added`.

A missing item is not an empty one: a message whose answer lacks what was asked for is reported as incomplete, never
published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from functools import lru_cache
from typing import Any, Final, NamedTuple

from streams.contracts import mailbox as events
from streams.domain import mirror
from streams.domain.identity import Basis, identity_from_content, identity_from_server_id
from streams.imap.values import FetchedMessage
from streams.mime import LOOP_FRIENDLY_BYTES, attachments_from_structure, parse_headers_and_identity
from streams.mime.values import Headers

_SYSTEM_FLAGS: Final = {
    name.lower(): name for name in ("\\Seen", "\\Answered", "\\Flagged", "\\Deleted", "\\Draft", "$Forwarded")
}
_HEADERS: Final = b"BODY.PEEK[HEADER.FIELDS (FROM TO CC REPLY-TO SUBJECT DATE MESSAGE-ID IN-REPLY-TO REFERENCES)]"
_HEADER_SECTION: Final = b"HEADER.FIELDS"
LABEL: Final = mirror.LABEL
_USUAL_FLAG_CHARS: Final = 256
_REMEMBERED: Final = 1_024
"""Sets of flags kept in their other forms: most messages of a mailbox have one of a few."""


def flag_items(capabilities: Set[str]) -> list[bytes]:
    """Items that tell the flags of known messages."""
    items = [b"UID", b"FLAGS"]
    if "CONDSTORE" in capabilities or "QRESYNC" in capabilities:
        items.append(b"MODSEQ")
    if "X-GM-EXT-1" in capabilities:
        items.append(b"X-GM-LABELS")
    return items


def message_items(capabilities: Set[str], *, structure: bool) -> list[bytes]:
    """Items that tell all of a message that an event carries. Bodies are never part of it; nothing sets a flag."""
    items = [*flag_items(capabilities), b"INTERNALDATE", b"RFC822.SIZE", _HEADERS]
    if "OBJECTID" in capabilities:
        items += [b"EMAILID", b"THREADID"]
    if "X-GM-EXT-1" in capabilities:
        items += [b"X-GM-MSGID", b"X-GM-THRID"]
    if structure:
        items.append(b"BODYSTRUCTURE")
    return items


def flags_of(message: FetchedMessage) -> frozenset[str] | None:
    """Flags (and labels) as the mirror keeps them: system flags in their canonical spelling, without \\Recent."""
    if message.flags is None:
        return None
    usual = sum(map(len, message.flags)) <= _USUAL_FLAG_CHARS
    names = _usual_flags(message.flags) if usual else _flags(message.flags)
    if message.gm_labels:
        names |= {LABEL + label.decode("utf-8", "replace") for label in message.gm_labels}
    return names


def _flags(told: frozenset[bytes]) -> frozenset[str]:
    names: set[str] = set()
    for raw in told:
        text = raw.decode("utf-8", "replace").replace("\x00", "�")
        lower = text.lower()
        if lower != "\\recent" and text:
            names.add(_SYSTEM_FLAGS.get(lower, text))
    return frozenset(names)


_usual_flags = lru_cache(maxsize=_REMEMBERED)(_flags)


def split_labels(flags: frozenset[str], *, labelled: bool) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Flags and labels as events show them; labels None where the server told none (`labelled` False) and none are
    known.
    """
    plain, labels = _usual_split(flags) if sum(map(len, flags)) <= _USUAL_FLAG_CHARS else _split(flags)
    return plain, labels if labels or labelled else None


def _split(flags: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    plain = tuple(sorted(f for f in flags if not f.startswith(LABEL)))
    return plain, tuple(sorted(f[len(LABEL) :] for f in flags if f.startswith(LABEL)))


_usual_split = lru_cache(maxsize=_REMEMBERED)(_split)


def is_complete(message: FetchedMessage) -> bool:
    """Whether everything that makes an event and an identity is there."""
    return message.flags is not None and _HEADER_SECTION in message.sections and message.damaged is None


class ReadHeaders(NamedTuple):
    """What a message's header block holds: the typed values, and the canonical bytes of the identifying fields."""

    parsed: Headers
    canonical: bytes


async def read_headers(message: FetchedMessage) -> ReadHeaders:
    """Parse the header block; a large one in a thread, since whoever wrote it decides how long that takes (cases 94,
    95).
    """
    small = small_headers(message)
    if small is not None:
        return small
    return await asyncio.to_thread(_read_headers, message.sections[_HEADER_SECTION])


def small_headers(message: FetchedMessage) -> ReadHeaders | None:
    """What `read_headers` gives, at once; None for a large block."""
    raw = message.sections.get(_HEADER_SECTION, b"")
    return _read_headers(raw) if len(raw) <= LOOP_FRIENDLY_BYTES else None


def _read_headers(raw: bytes) -> ReadHeaders:
    parsed, canonical = parse_headers_and_identity(raw)
    return ReadHeaders(parsed, canonical)


def identity_of(account_id: str, basis: Basis, message: FetchedMessage, canonical: bytes, *, place: str) -> bytes:
    """Identity of a fetched message on the account's basis; the content where the server leaves the id out."""
    if basis == "email_id" and message.email_id:
        return identity_from_server_id(account_id, basis, message.email_id)
    if basis == "gm_msgid" and message.gm_msgid is not None:
        return identity_from_server_id(account_id, basis, str(message.gm_msgid))
    return identity_from_content(
        account_id,
        size=message.size,
        internal_date=message.internal_date,
        canonical_headers=canonical,
        fallback=place,
    )


def event_fields(message: FetchedMessage, parsed: Headers, flags: frozenset[str], *, structure: bool) -> dict[str, Any]:
    """Fields of `message.added` that come from the message itself."""
    plain, labels = split_labels(flags, labelled=message.gm_labels is not None)
    thread = message.thread_id or (None if message.gm_thrid is None else str(message.gm_thrid))
    attachments = attachments_from_structure(message.structure) if structure and message.structure is not None else None
    return {
        "flags": plain,
        "labels": labels,
        "modseq": None if message.modseq is None else str(message.modseq),
        "internal_date": message.internal_date,
        "size": message.size,
        "headers": _headers(parsed),
        "attachments": None
        if attachments is None
        else tuple(
            events.Attachment(
                part=a.part,
                content_type=a.content_type,
                filename=a.filename,
                size=a.size,
                content_id=a.content_id,
                inline=a.inline,
            )
            for a in attachments
        ),
        "thread_id": thread,
        "defects": parsed.defects,
    }


def _headers(parsed: Headers) -> events.MessageHeaders:
    # Address of the parser and of the contract have the same two fields; the encoder only looks at those
    return events.MessageHeaders(
        from_=parsed.from_,  # type: ignore[arg-type]
        to=parsed.to,  # type: ignore[arg-type]
        cc=parsed.cc,  # type: ignore[arg-type]
        reply_to=parsed.reply_to,  # type: ignore[arg-type]
        subject=parsed.subject,
        date=parsed.date,
        message_id=parsed.message_id,
        in_reply_to=parsed.in_reply_to,
        references=parsed.references,
    )
