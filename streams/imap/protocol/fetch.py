"""FETCH data: the shape that nearly every answer has in one regular expression, everything else by tokens.

Invariant: both ways give the same message for the same bytes (a property test holds them together). A value that does
not parse costs only itself and what follows it in its response: it is named in `damaged`, never replaced by an empty
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from streams.imap.protocol.framing import Raw
from streams.imap.protocol.tokens import Cursor, TokenError, Value
from streams.imap.values import FetchedMessage

# RFC 3501 section 7.4.2, RFC 7162 (MODSEQ), RFC 8474 (EMAILID, THREADID) and Gmail's numbers, in any order; then one
# body section as a literal, or the end. Possessive, so that what does not match is refused in linear time.
_COMMON = re.compile(
    rb"\* (\d{1,10}) FETCH \("
    rb"(?:(?:"
    rb"UID (\d{1,10})"
    rb'|FLAGS \(([^()"{\r]*+)\)'
    rb"|MODSEQ \((\d{1,19})\)"
    rb"|RFC822\.SIZE (\d{1,19})"
    rb'|INTERNALDATE "([^"\\\r]{1,40}+)"'
    rb"|EMAILID \(([A-Za-z0-9_-]{1,255}+)\)"
    rb"|THREADID \(([A-Za-z0-9_-]{1,255}+)\)"
    rb"|X-GM-MSGID (\d{1,20})"
    rb"|X-GM-THRID (\d{1,20})"
    rb")(?: |(?=\))))*+"
    rb'(?:BODY\[([A-Z0-9.]*+)(?: \([^()\]"{\r]*+\))?\](?:<\d{1,19}>)? \{(\d{1,19})\}\r\n|\)\Z)'
)
_DATE = re.compile(
    rb" ?(\d{1,2})-([A-Za-z]{3})-(\d{4}) (\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d) ?",
)
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        (b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"), start=1
    )
}
_ITEM = re.compile(rb"[ \t\r\n]*([A-Za-z0-9][A-Za-z0-9.-]*)(\[[^\]]*\])?(<\d+>)?")
_OPEN = re.compile(rb"\* *(\d{1,10}) +FETCH *\(", re.IGNORECASE)
_LATE_UID = re.compile(rb"[ )]UID (\d{1,10})(?: MODSEQ \(\d+\))? ?\)\Z")
_ID_LIST = re.compile(rb"[A-Za-z0-9_-]{1,255}\Z")

_RECENT: Final = frozenset({b"\\Recent"})
_SYSTEM_FLAGS: Final = {
    flag.lower(): flag for flag in (b"\\Seen", b"\\Answered", b"\\Flagged", b"\\Deleted", b"\\Draft", b"\\Recent")
}
_MAX_UID: Final = 0xFFFFFFFF
_MAX_FLAG_BYTES: Final = 64 << 10  # of one list; a mailbox with a thousand keywords needs 20 KiB
_CACHED_FLAG_BYTES: Final = 1024
_CACHED_FLAG_LISTS: Final = 4096  # distinct flag lists kept; mailboxes use a handful, a hostile one is bounded

_flag_lists: dict[bytes, frozenset[bytes]] = {}
_zones: dict[bytes, timezone] = {}


def flags_from(raw: bytes) -> frozenset[bytes]:
    """The flags of a list without its parentheses. Equal lists share one set. Raises `TokenError` for too many."""
    known = _flag_lists.get(raw)
    if known is None:
        if len(raw) > _MAX_FLAG_BYTES:
            raise TokenError("too many flags")
        known = normal_flags(raw.split())
        if len(raw) <= _CACHED_FLAG_BYTES:
            if len(_flag_lists) >= _CACHED_FLAG_LISTS:
                _flag_lists.clear()
            _flag_lists[raw] = known
    return known


def normal_flags(flags: Iterable[bytes]) -> frozenset[bytes]:
    """Flags as we keep them: without \\Recent, which is about the session and not the message (RFC 9051 drops it), and
    system flags in one writing, since their case means nothing (RFC 3501 section 2.3.2).
    """
    return frozenset(_SYSTEM_FLAGS.get(flag.lower(), flag) for flag in flags) - _RECENT


def internal_date(raw: bytes) -> datetime | None:
    """An INTERNALDATE (RFC 3501 section 9, date-time). None where it is no date (case 89)."""
    match = _DATE.fullmatch(raw)
    if match is None:
        return None
    day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = match.groups()
    key = sign + zone_hours + zone_minutes
    zone = _zones.get(key)
    try:
        if zone is None:
            offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
            zone = timezone(-offset if sign == b"-" else offset)
            if len(_zones) < 1000:
                _zones[key] = zone
        found = datetime(int(year), _MONTHS[month.lower()], int(day), int(hour), int(minute), int(second), tzinfo=zone)
        if year in (b"0001", b"9999"):
            found.astimezone(UTC)  # a moment outside of all years that have one: nobody could compare or store it
        return found
    except (ValueError, KeyError, OverflowError):
        return None


def parse_fetch(raw: Raw) -> tuple[int, FetchedMessage | None]:
    """Sequence number and message of a FETCH response; the message is None when no UID was told.

    Raises:
        TokenError: it is no FETCH response that says anything.
    """
    data = raw.data
    match = _COMMON.match(data)
    if match is not None:
        (sequence, uid, flags, modseq, size, date, email, thread, gm_msgid, gm_thrid, section, length) = match.groups()
        if section is None:
            sections = {}
        elif data.endswith(b")") and len(raw.literals) == 1 and raw.literals[0][1] == len(data) - 1:
            end = match.end()
            sections = {section: data[end : end + int(length)]}
        else:
            return parse_by_tokens(raw)
        if uid is None:
            return int(sequence), None
        number = int(uid)
        if not 0 < number <= _MAX_UID:
            raise TokenError("a UID out of bounds")
        known = _flag_lists.get(flags)
        return int(sequence), FetchedMessage(
            uid=number,
            flags=known if known is not None or flags is None else flags_from(flags),
            modseq=None if modseq is None else int(modseq),
            size=None if size is None else int(size),
            internal_date=None if date is None else internal_date(date),
            email_id=None if email is None else email.decode(),
            thread_id=None if thread is None else thread.decode(),
            gm_msgid=None if gm_msgid is None else int(gm_msgid),
            gm_thrid=None if gm_thrid is None else int(gm_thrid),
            sections=sections,
        )
    return parse_by_tokens(raw)


def _number(cursor: Cursor) -> int:
    value = cursor.string()
    if value is None or not value.isdigit() or len(value) > 20:
        raise TokenError("a number is missing")
    return int(value)


def _uid(cursor: Cursor) -> int:
    number = _number(cursor)
    if not 0 < number <= _MAX_UID:
        raise TokenError("a UID out of bounds")
    return number


def _strings(cursor: Cursor) -> tuple[bytes, ...]:
    values = cursor.items()
    if not all(isinstance(value, bytes) for value in values):
        raise TokenError("a list holds something else than strings")
    return values  # type: ignore[return-value]


def _flags(cursor: Cursor) -> frozenset[bytes]:
    flags = _strings(cursor)
    if sum(map(len, flags)) + len(flags) > _MAX_FLAG_BYTES:
        raise TokenError("too many flags")
    return normal_flags(flags)


def _modseq(cursor: Cursor) -> int:
    if cursor.peek() != 0x28:  # "(" is in the grammar, and missing from some servers
        return _number(cursor)
    (value,) = cursor.items() or (None,)
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > 19:
        raise TokenError("a modification sequence is missing")
    return int(value)


def _date(cursor: Cursor) -> datetime | None:
    return internal_date(cursor.string() or b"")


def _object_id(cursor: Cursor) -> str | None:
    value: Value = cursor.value()
    if isinstance(value, tuple):
        value = value[0] if len(value) == 1 else None
    if value is None:  # NIL: the server keeps none (RFC 8474 section 5.3)
        return None
    if not isinstance(value, bytes) or _ID_LIST.match(value) is None:
        raise TokenError("an object id is missing")
    return value.decode()


def _structure(cursor: Cursor) -> Value:
    value = cursor.value()
    if isinstance(value, bytes):
        raise TokenError("a structure that is no list")
    return value


# Item name -> (field of FetchedMessage, parser of its value).
_ITEMS: Final[dict[bytes, tuple[str, Callable[[Cursor], Any]]]] = {
    b"UID": ("uid", _uid),
    b"FLAGS": ("flags", _flags),
    b"MODSEQ": ("modseq", _modseq),
    b"INTERNALDATE": ("internal_date", _date),
    b"RFC822.SIZE": ("size", _number),
    b"EMAILID": ("email_id", _object_id),
    b"THREADID": ("thread_id", _object_id),
    b"X-GM-MSGID": ("gm_msgid", _number),
    b"X-GM-THRID": ("gm_thrid", _number),
    b"X-GM-LABELS": ("gm_labels", _strings),
    b"BODYSTRUCTURE": ("structure", _structure),
}
# RFC 822 items are body sections under another name (RFC 3501 section 6.4.5).
_OLD_SECTIONS: Final = {b"RFC822": b"", b"RFC822.HEADER": b"HEADER", b"RFC822.TEXT": b"TEXT"}


def parse_by_tokens(raw: Raw) -> tuple[int, FetchedMessage | None]:
    """As `parse_fetch`, without its short cut."""
    data = raw.data
    opening = _OPEN.match(data)
    if opening is None:
        raise TokenError("a FETCH response without its list")
    sequence = int(opening[1])
    cursor = Cursor(data, opening.end(), raw.literals)
    fields: dict[str, Any] = {}
    sections: dict[bytes, bytes] = {}
    damaged: bytes | None = None
    while True:
        name_match = _ITEM.match(data, cursor.at)
        if name_match is None:
            if cursor.peek() != 0x29 or cursor.at != len(data.rstrip()) - 1:
                damaged = b"?"
            break
        cursor.at = name_match.end()
        name = name_match[1].upper()
        try:
            known = _ITEMS.get(name)
            if name_match[2] is not None and known is None:
                _take_section(name, name_match[2], cursor, sections)
            elif name in _OLD_SECTIONS:
                _keep(sections, _OLD_SECTIONS[name], cursor.string())
            elif known is not None:
                fields[known[0]] = known[1](cursor)
            else:
                cursor.value()
        except TokenError:
            damaged = name
            break
    if damaged is not None and "uid" not in fields:
        late = _LATE_UID.search(data, max(cursor.at, len(data) - 60))
        if late is not None and 0 < int(late[1]) <= _MAX_UID:
            fields["uid"] = int(late[1])
    if "uid" not in fields:
        if damaged is not None and not fields and not sections:
            raise TokenError(f"a FETCH response that breaks at {damaged.decode('ascii', 'replace')[:40]}")
        return sequence, None
    return sequence, FetchedMessage(sections=sections, damaged=damaged, **fields)


def _take_section(name: bytes, spec: bytes, cursor: Cursor, sections: dict[bytes, bytes]) -> None:
    value = cursor.value()
    if not isinstance(value, bytes):
        if value is None:
            return
        raise TokenError("a section that is no string")
    section = spec[1:-1].split(b" ", 1)[0].split(b"(", 1)[0].upper()
    if name == b"BODY":
        sections[section] = value
    elif name == b"BINARY":
        sections[b"BINARY " + section] = value


def _keep(sections: dict[bytes, bytes], section: bytes, value: bytes | None) -> None:
    if value is not None:  # NIL: not told, which is not an empty section (case 48)
        sections[section] = value
