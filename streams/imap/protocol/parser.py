"""Turns one complete response into a value.

Invariant: never raises on what a server sends. A kind we do not know is `Unknown`, a known one that does not parse is
`Malformed`, and neither is ever taken for an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pyroaring import BitMap

from streams.imap.protocol.fetch import flags_from, parse_fetch
from streams.imap.protocol.framing import Raw
from streams.imap.protocol.responses import (
    Capability,
    Code,
    Condition,
    Continuation,
    Enabled,
    Exists,
    Expunged,
    Fetched,
    Flags,
    Found,
    FoundExtended,
    Listed,
    Malformed,
    Namespaces,
    Recent,
    Response,
    ServerId,
    StatusTold,
    Tagged,
    Unknown,
    Untagged,
    Vanished,
)
from streams.imap.protocol.tokens import Cursor, TokenError, Value
from streams.imap.protocol.utf7 import display_name
from streams.imap.values import ListedMailbox, MailboxStatus

_TAGGED = re.compile(rb"([^\s\"(){}*%+\\]+) +(OK|NO|BAD)(?: +|\Z)", re.IGNORECASE)
_CONDITION = re.compile(rb"\* *(OK|NO|BAD|BYE|PREAUTH)(?: +|\Z)", re.IGNORECASE)
_KIND = re.compile(rb"\* *(?:(\d{1,10}) +)?([A-Za-z][A-Za-z0-9.-]*) *")
_CODE = re.compile(
    rb"\[([A-Za-z0-9][^\s\]\[]*)(?: +(\((?:[^()\"]|\"(?:[^\"\\]|\\.)*+\"|\([^()]*+\))*+\)|[^\]]*))?\s*\] ?"
)
_FETCH = re.compile(rb"\* \d{1,10} FETCH \(")
_NUMBERS = re.compile(rb"[ \d]*+(?:\(MODSEQ (\d{1,19})\) *)?\Z", re.IGNORECASE)
_UID_SET = re.compile(rb"\d{1,10}(?::\d{1,10})?(?:,\d{1,10}(?::\d{1,10})?)*\Z")
_LABEL = re.compile(rb"[A-Za-z0-9._\[-]{1,24}")
_CORRELATOR = re.compile(rb" *\( *TAG +\"?([^\s\"()]+)\"? *\)", re.IGNORECASE)
_ESEARCH_ITEM = re.compile(rb" *(MIN|MAX|COUNT|MODSEQ|ALL) +([\d:,]+)", re.IGNORECASE)
_OBJECT_ID = re.compile(rb"\(?([A-Za-z0-9_-]{1,255})\)?\Z")

_CONDITIONS: Final[dict[bytes, Condition]] = {
    b"OK": "OK",
    b"NO": "NO",
    b"BAD": "BAD",
    b"BYE": "BYE",
    b"PREAUTH": "PREAUTH",
}
_MAX_NUMBER: Final = 0xFFFFFFFF
_MAX_MODSEQ: Final = 10**19 - 1  # as many digits as are read elsewhere
_MAX_NAME_BYTES: Final = 4096  # of a mailbox; the longest that servers make are a few hundred
_MAX_NAMED_BYTES: Final = 64 << 10  # of a whole LIST or STATUS line
_MAX_CAPABILITY_BYTES: Final = 64 << 10

# RFC 6154 and RFC 8457; \AllMail, \Spam, \Starred are XLIST's names for the same.
_SPECIAL_USE: Final = {
    "\\all": "\\all",
    "\\archive": "\\archive",
    "\\drafts": "\\drafts",
    "\\flagged": "\\flagged",
    "\\important": "\\important",
    "\\junk": "\\junk",
    "\\sent": "\\sent",
    "\\trash": "\\trash",
    "\\inbox": "\\inbox",
    "\\allmail": "\\all",
    "\\spam": "\\junk",
    "\\starred": "\\flagged",
}


def parse_uid_set(raw: bytes) -> BitMap:
    """A UID set with ranges and without `*`. Raises `TokenError` on anything else, and on 0."""
    if _UID_SET.match(raw) is None:
        raise TokenError("a set of numbers is malformed")
    numbers = BitMap()
    singles: list[int] = []
    for part in raw.split(b","):
        first, colon, last = part.partition(b":")
        low = int(first)
        high = int(last) if colon else low
        if low > high:  # RFC 3501 section 9, seq-range: both orders mean the same
            low, high = high, low
        if not low > 0 or high > _MAX_NUMBER:
            raise TokenError("a number is out of bounds")
        if colon:
            numbers.add_range(low, high + 1)
        else:
            singles.append(low)
    if singles:
        numbers.update(singles)
    return numbers


def canonical_name(wire_name: bytes) -> bytes:
    """The key of a mailbox: verbatim, but INBOX in one writing (RFC 3501 section 5.1)."""
    return b"INBOX" if len(wire_name) == 5 and wire_name.upper() == b"INBOX" else wire_name


def parse(raw: Raw) -> Response:
    """The value of one response."""
    data = raw.data
    first = data[:1]
    if first == b"*":
        if _FETCH.match(data) is not None:  # nearly all there is to parse
            try:
                return Fetched(*parse_fetch(raw))
            except (TokenError, ValueError) as error:
                return Malformed("FETCH", str(error)[:120])
        return _parse_untagged(raw)
    if first == b"+":
        return Continuation(data[1:].strip())
    match = _TAGGED.match(data)
    if match is not None:
        code, text = _code_and_text(data[match.end() :])
        return Tagged(match[1], _CONDITIONS[match[2].upper()], code, text)
    return _unknown(data)


def _parse_untagged(raw: Raw) -> Response:
    data = raw.data
    match = _KIND.match(data)
    if match is None:
        return _unknown(data[1:].lstrip())
    number, kind = match.groups()
    kind = kind.upper()
    try:
        if number is not None:
            if kind == b"FETCH":
                return Fetched(*parse_fetch(raw))
            numbered = _NUMBERED.get(kind)
            return _unknown(kind) if numbered is None else numbered(int(number))
        handler = _KINDS.get(kind)
        if handler is not None:
            return handler(raw, match.end())
    except (TokenError, ValueError) as error:
        return Malformed(kind.decode(), str(error)[:120])
    condition = _CONDITION.match(data)
    if condition is not None:
        code, text = _code_and_text(data[condition.end() :])
        return Untagged(_CONDITIONS[condition[1].upper()], code, text)
    return _unknown(kind)


def _unknown(data: bytes) -> Unknown:
    match = _LABEL.match(data)
    return Unknown(match[0].decode() if match is not None else "?")


def _code_and_text(rest: bytes) -> tuple[Code | None, bytes]:
    if not rest.startswith(b"["):
        return None, rest
    match = _CODE.match(rest)
    if match is None:  # brackets that hold no code (case 59)
        return None, rest
    return Code(match[1].decode("ascii", "replace").upper(), (match[2] or b"").strip()), rest[match.end() :]


def capability_names(raw: bytes) -> frozenset[str]:
    """Names of a capability list, in upper case. What is beyond any sensible length is not looked at."""
    raw = raw[:_MAX_CAPABILITY_BYTES]
    return frozenset(name.decode("ascii", "replace").upper() for name in raw.split())


def _capability(raw: Raw, at: int) -> Response:
    return Capability(capability_names(raw.data[at:]))


def _enabled(raw: Raw, at: int) -> Response:
    return Enabled(capability_names(raw.data[at:]))


def _flags(raw: Raw, at: int) -> Response:
    return Flags(flags_from(raw.data[at:].strip().removeprefix(b"(").removesuffix(b")")))


def _search(raw: Raw, at: int) -> Response:
    rest = raw.data[at:]
    match = _NUMBERS.match(rest)
    if match is None:  # words are no ids (cases 24, 25)
        raise TokenError("a search result that holds something else than numbers")
    numbers = [int(number) for number in rest.partition(b"(")[0].split()]
    if numbers and not (min(numbers) > 0 and max(numbers) <= _MAX_NUMBER):
        raise TokenError("a number is out of bounds")
    return Found(BitMap(numbers), None if match[1] is None else int(match[1]))


def _esearch(raw: Raw, at: int) -> Response:
    data = raw.data
    tag = None
    correlator = _CORRELATOR.match(data, at)
    if correlator is not None:
        tag = correlator[1]
        at = correlator.end()
    words = data[at:].lstrip()
    by_uid = words[:3].upper() == b"UID" and words[3:4] in (b"", b" ")
    at = len(data) - len(words) + (3 if by_uid else 0)
    told: dict[bytes, bytes] = {}
    while True:
        item = _ESEARCH_ITEM.match(data, at)
        if item is None:
            break
        told[item[1].upper()] = item[2]
        at = item.end()
    if data[at:].strip():
        raise TokenError("an extended search result that does not parse")
    numbers = {name: int(value[:20]) for name, value in told.items() if name != b"ALL"}
    if any(number > (_MAX_MODSEQ if name == b"MODSEQ" else _MAX_NUMBER) for name, number in numbers.items()):
        raise TokenError("a number is out of bounds")
    return FoundExtended(
        tag=tag,
        uid=by_uid,
        numbers=parse_uid_set(told[b"ALL"]) if b"ALL" in told else None,
        minimum=numbers.get(b"MIN"),
        maximum=numbers.get(b"MAX"),
        count=numbers.get(b"COUNT"),
        modseq=numbers.get(b"MODSEQ"),
    )


def _vanished(raw: Raw, at: int) -> Response:
    rest = raw.data[at:].strip()
    earlier = rest[:9].upper() == b"(EARLIER)"
    if earlier:
        rest = rest[9:].strip()
    return Vanished(parse_uid_set(rest) if rest else BitMap(), earlier)


def _named(raw: Raw, name: bytes) -> bytes:
    """The canonical name of a line about a mailbox: such values are kept in numbers, so each has to be small."""
    if len(raw.data) > _MAX_NAMED_BYTES or len(name) > _MAX_NAME_BYTES:
        raise TokenError("a line about a mailbox is too long")
    return canonical_name(name)


def _list(raw: Raw, at: int) -> Response:
    cursor = Cursor(raw.data, at, raw.literals)
    attributes = frozenset(
        value.decode("ascii", "replace").lower() for value in cursor.items() if isinstance(value, bytes)
    )
    delimiter = cursor.string()
    wire_name = _named(raw, _mailbox_name(cursor))
    old_name = None
    if cursor.peek() == 0x28:
        try:
            old_name = _old_name(cursor.items())
        except TokenError:
            old_name = None  # extended data is optional; the mailbox is not lost for it
    special_use = next((_SPECIAL_USE[a] for a in sorted(attributes) if a in _SPECIAL_USE), None)
    return Listed(
        ListedMailbox(
            wire_name=wire_name,
            display_name=display_name(wire_name),
            delimiter=delimiter.decode("utf-8", "replace") if delimiter else None,
            attributes=attributes,
            special_use="\\inbox" if wire_name == b"INBOX" else special_use,
            selectable="\\noselect" not in attributes and "\\nonexistent" not in attributes,
            old_name=old_name,
        )
    )


def _mailbox_name(cursor: Cursor) -> bytes:
    quoted = cursor.peek() in b'"{'
    start = cursor.at
    name = cursor.string()
    if name is None:
        if quoted:
            raise TokenError("a mailbox name is missing")
        name = cursor.data[start : cursor.at]  # a mailbox that is called NIL
    if not quoted and cursor.peek() not in (-1, 0x28):  # unquoted, with blanks in it
        name = cursor.data[start:].rstrip()
        cursor.at = len(cursor.data)
    if not name:
        raise TokenError("a mailbox name is empty")
    return name


def _old_name(extended: tuple[Value, ...]) -> bytes | None:
    for tag, value in zip(extended[::2], extended[1::2], strict=False):
        if isinstance(tag, bytes) and tag.upper() == b"OLDNAME":
            inner = value[0] if isinstance(value, tuple) and value else value
            return canonical_name(inner) if isinstance(inner, bytes) else None
    return None


def object_id(raw: bytes) -> str | None:
    """MAILBOXID's argument (RFC 8474 section 4.2)."""
    match = _OBJECT_ID.match(raw.strip())
    return match[1].decode() if match is not None else None


_STATUS_FIELDS: Final = {
    b"MESSAGES": "messages",
    b"UIDNEXT": "uidnext",
    b"UIDVALIDITY": "uidvalidity",
    b"HIGHESTMODSEQ": "highestmodseq",
    b"UNSEEN": "unseen",
}


def _status(raw: Raw, at: int) -> Response:
    cursor = Cursor(raw.data, at, raw.literals)
    if cursor.peek() in b'"{':
        name = cursor.string()
    else:  # perhaps with blanks in it: up to the first list
        end = raw.data.find(b" (", at)
        if end < 0:
            raise TokenError("STATUS without items")
        name = raw.data[cursor.at : end].strip()
        cursor.at = end
    if not name:
        raise TokenError("STATUS without a mailbox")
    return StatusTold(_named(raw, name), _status_items(cursor))


def _status_items(cursor: Cursor) -> MailboxStatus:
    """Item by item: Cyrus 3.6 writes stray memory where MAILBOXID should stand, so it is asked for last and may be
    anything; what was told before it holds.
    """
    if cursor.peek() != 0x28:
        raise TokenError("STATUS without items")
    cursor.at += 1
    numbers: dict[str, int] = {}
    mailbox_id = None
    while cursor.peek() not in (-1, 0x29):
        item = (cursor.string() or b"").upper()
        if item == b"MAILBOXID":
            try:
                value = cursor.value()
            except TokenError:
                break
            inner = value[0] if isinstance(value, tuple) and len(value) == 1 else value
            mailbox_id = object_id(inner) if isinstance(inner, bytes) else None
            continue
        value = cursor.value()
        if item in _STATUS_FIELDS:
            if not isinstance(value, bytes) or not value.isdigit() or len(value) > 19:
                raise TokenError("a number is missing")
            numbers[_STATUS_FIELDS[item]] = int(value)
    return MailboxStatus(mailbox_id=mailbox_id, **numbers)


def _namespace(raw: Raw, at: int) -> Response:
    cursor = Cursor(raw.data, at, raw.literals)
    return Namespaces(*(_namespace_class(cursor.value()) for _ in range(3)))


def _namespace_class(value: Value) -> tuple[tuple[bytes, str | None], ...]:
    if not isinstance(value, tuple):
        return ()
    entries = []
    for entry in value:
        if isinstance(entry, tuple) and len(entry) >= 2 and isinstance(entry[0], bytes):
            delimiter = entry[1]
            entries.append((entry[0], delimiter.decode("utf-8", "replace") if isinstance(delimiter, bytes) else None))
    return tuple(entries)


def _id(raw: Raw, at: int) -> Response:
    value = Cursor(raw.data, at, raw.literals).value()
    fields = {}
    if isinstance(value, tuple):
        for key, text in zip(value[::2], value[1::2], strict=False):
            if isinstance(key, bytes) and isinstance(text, bytes):
                fields[key.decode("utf-8", "replace").lower()] = text.decode("utf-8", "replace")
    return ServerId(fields)


_NUMBERED: Final[dict[bytes, Callable[[int], Response]]] = {
    b"EXISTS": Exists,
    b"RECENT": Recent,
    b"EXPUNGE": Expunged,
}
_KINDS: Final[dict[bytes, Callable[[Raw, int], Response]]] = {
    b"CAPABILITY": _capability,
    b"ENABLED": _enabled,
    b"FLAGS": _flags,
    b"SEARCH": _search,
    b"ESEARCH": _esearch,
    b"VANISHED": _vanished,
    b"LIST": _list,
    b"LSUB": _list,
    b"XLIST": _list,
    b"STATUS": _status,
    b"NAMESPACE": _namespace,
    b"ID": _id,
}
