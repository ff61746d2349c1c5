"""The header block of a message, as typed values.

What comes in is the answer to ``FETCH BODY.PEEK[HEADER.FIELDS (...)]`` or the start of a whole message. The block is
decoded and unfolded once, split into fields once, and each value has a fast path for what nearly all mail
looks like; only the rest pays for tolerance.

Invariants: nothing a message holds makes :func:`parse_headers` raise, its time is linear in the bytes and bounded by
the limits, and what was lost is named in ``Headers.defects``.
"""

from __future__ import annotations

import re
from typing import Final

from streams.mime import defects as d
from streams.mime.addresses import parse_addresses
from streams.mime.dates import parse_date
from streams.mime.fields import select, unfolded_block
from streams.mime.identity import canonical_form, canonical_identity
from streams.mime.text import clean, collapse, decode_field, decode_words, limit
from streams.mime.values import Address, HeaderLimits, Headers

HEADER_FIELDS: Final = (
    b"FROM",
    b"TO",
    b"CC",
    b"BCC",
    b"REPLY-TO",
    b"SUBJECT",
    b"DATE",
    b"MESSAGE-ID",
    b"IN-REPLY-TO",
    b"REFERENCES",
    b"LIST-ID",
    b"CONTENT-TYPE",
)
"""The fields :func:`parse_headers` reads, in the form a ``HEADER.FIELDS`` request wants them."""

DEFAULT_LIMITS: Final = HeaderLimits()

_WITHIN_ALL_LIMITS: Final = DEFAULT_LIMITS.max_lines
"""Octets of a block that no limit of this module or of the identity cuts, whatever it holds."""

# As senders write them, so that most names need no lower().
_KNOWN: Final[dict[str, str]] = {
    spelling: name.decode().lower()
    for name in HEADER_FIELDS
    for spelling in (name.decode(), name.decode().lower(), name.decode().title())
} | {"Message-ID": "message-id", "List-ID": "list-id", "CC": "cc", "BCC": "bcc"}

# RFC 5322 3.6: address fields of receivers are merged when repeated (4.5 tells readers to), the others count once.
_LISTS_OF_IDS: Final = frozenset({"references", "in-reply-to"})
_MERGED: Final = frozenset({"to", "cc", "bcc", "reply-to"}) | _LISTS_OF_IDS

_ADDRESS_FIELDS: Final = ("from", "reply-to", "to", "cc", "bcc")

_MESSAGE_ID: Final = re.compile(r"<([^<>]*)>")
_MEDIA_TYPE: Final = re.compile(r"\s*+([A-Za-z0-9!#$&^_.+-]{1,127})\s*+/\s*+([A-Za-z0-9!#$&^_.+-]{1,127})")
_CHARSET: Final = re.compile(r";\s*+charset\s*+=\s*+\"?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)


def parse_headers(raw: bytes, *, limits: HeaderLimits = DEFAULT_LIMITS) -> Headers:
    """The headers in ``raw``: a header block, with or without what follows it.

    Reads the fields of :data:`HEADER_FIELDS` in any order, among any other fields or junk. Never raises on content.
    A message without any of them gives a ``Headers`` of absent values (cases 46, 91, 93).

    Sources: RFC 5322 (with its obsolete syntax), RFC 2047, RFC 6532, RFC 2919.
    """
    defects: set[str] = set()
    block = unfolded_block(raw, limits, defects)
    return _values(block, select(block, _KNOWN), limits, defects)


def parse_headers_and_identity(raw: bytes) -> tuple[Headers, bytes]:
    """What :func:`parse_headers` and :func:`canonical_identity` say of ``raw``; the fields are split only once."""
    if len(raw) > _WITHIN_ALL_LIMITS:
        return parse_headers(raw), canonical_identity(raw)
    defects: set[str] = set()
    block = unfolded_block(raw, DEFAULT_LIMITS, defects)
    selected = select(block, _KNOWN)
    return _values(block, selected, DEFAULT_LIMITS, defects), canonical_form(selected)


def _values(block: str, selected: list[tuple[str, str]], limits: HeaderLimits, defects: set[str]) -> Headers:
    fields: dict[str, str] = {}
    repeated: dict[str, list[str]] = {}
    for name, body in selected:
        if name in fields:
            repeated.setdefault(name, []).append(body)
        else:
            fields[name] = body
    if repeated:
        _merge(fields, repeated, defects)
    content_type = fields.get("content-type")
    if not block.isascii():
        hint = None
        if content_type is not None and (named := _CHARSET.search(content_type)):
            hint = named.group(1)
        fields = {name: decode_field(body, hint, defects) for name, body in fields.items()}
    elif "\x1b" in block:
        fields = {name: decode_field(body, None, defects) for name, body in fields.items()}

    get = fields.get
    # The limit on addresses is one for all fields: those that matter most come first.
    room = limits.max_addresses
    lists: dict[str, tuple[Address, ...]] = {}
    for name in _ADDRESS_FIELDS:
        listed = get(name)
        if listed is not None:
            lists[name] = found = parse_addresses(listed, limits, defects, room)
            room -= len(found)

    subject = get("subject")
    if subject is not None:
        subject = _text(subject, limits, defects)

    date = None
    written_date = get("date")
    if written_date is not None:
        date = parse_date(written_date)
        if date is None and written_date.strip():
            defects.add(d.DATE)

    message_id = get("message-id")
    if message_id is not None:
        message_id = _first_id(message_id, limits, defects)

    in_reply_to: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    replied = get("in-reply-to")
    if replied is not None:
        in_reply_to = _ids(replied, limits, defects)
    referred = get("references")
    if referred is not None:
        references = _ids(referred, limits, defects)

    list_id = get("list-id")
    if list_id is not None:
        list_id = _list_id(list_id, limits, defects)

    if content_type is not None:
        content_type = media_type(content_type)

    return Headers(
        from_=lists.get("from", ()),
        to=lists.get("to", ()),
        cc=lists.get("cc", ()),
        bcc=lists.get("bcc", ()),
        reply_to=lists.get("reply-to", ()),
        subject=subject,
        date=date,
        message_id=message_id,
        in_reply_to=in_reply_to,
        references=references,
        list_id=list_id,
        content_type=content_type,
        defects=tuple(sorted(defects)) if defects else (),
    )


def media_type(value: str) -> str | None:
    """``type/subtype`` of a Content-Type body in lower case (RFC 2045 5.1); None if it holds none."""
    match = _MEDIA_TYPE.match(value)
    if match is None:
        return None
    main, sub = match.groups()
    return f"{main}/{sub}".lower()


def _merge(fields: dict[str, str], repeated: dict[str, list[str]], defects: set[str]) -> None:
    for name, bodies in repeated.items():
        bodies = [fields[name], *bodies]
        if name in _MERGED:
            fields[name] = (" " if name in _LISTS_OF_IDS else ",").join(bodies)
        else:
            defects.add(d.DUPLICATE_FIELD)
            fields[name] = next((body for body in bodies if body.strip()), bodies[0])


def _text(value: str, limits: HeaderLimits, defects: set[str]) -> str:
    if "=?" in value or not value.isprintable():
        value = decode_words(value, defects)
    value = value.strip()
    return value if len(value) <= limits.max_value_chars else limit(value, limits.max_value_chars, defects)


def _ids(value: str, limits: HeaderLimits, defects: set[str]) -> tuple[str, ...]:
    """The message ids of a field (RFC 5322 3.6.4): those in angle brackets, or else the words that hold an ``@``."""
    found = _MESSAGE_ID.findall(value) or [word for word in value.split() if "@" in word]
    if len(found) > limits.max_references:
        defects.add(d.TOO_MANY_REFERENCES)
        # The first is the root of the thread, the last ones are the nearest ancestors.
        found = found[:1] + found[len(found) - limits.max_references + 1 :]
    if not value.isprintable() or len(value) > limits.max_id_chars or "< " in value or " >" in value:
        found = [_id(item, limits, defects) for item in found]
        return tuple(item for item in found if item)
    return tuple(found) if "<>" not in value else tuple(item for item in found if item)


def _first_id(value: str, limits: HeaderLimits, defects: set[str]) -> str | None:
    match = _MESSAGE_ID.search(value)
    found = match.group(1) if match is not None else value
    if found.isprintable() and " " not in found and len(found) <= limits.max_id_chars:
        return found or None
    return _id(found, limits, defects) or None


def _id(value: str, limits: HeaderLimits, defects: set[str]) -> str:
    """A message id cleaned, and without the blanks that folding may have left in it."""
    return limit("".join(clean(value, defects).split()), limits.max_id_chars, defects)


def _list_id(value: str, limits: HeaderLimits, defects: set[str]) -> str | None:
    start, end = value.rfind("<"), value.rfind(">")
    inner = value[start + 1 : end] if 0 <= start < end else value
    return limit(collapse(decode_words(inner, defects)), limits.max_id_chars, defects) or None
