"""How arguments and answers are written: strings, sets of UIDs, sections of a message, search criteria."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime

from tests.scripted_imap.model import MONTHS, Message

_SYSTEM = {
    "SEEN": "\\Seen",
    "ANSWERED": "\\Answered",
    "FLAGGED": "\\Flagged",
    "DELETED": "\\Deleted",
    "DRAFT": "\\Draft",
}
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()]|[^\s()"]+')


class Refused(Exception):
    """A handler ends its command with this text: `NO ...` or `BAD ...`."""


def quoted(text: str) -> str:
    """A quoted string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquoted(token: str) -> str:
    """The text of a quoted string or an atom."""
    token = token.strip()
    return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL) if token.startswith('"') else token


def uid_test(uids: str, highest: int) -> Callable[[int], bool]:
    """Whether a UID is in a set; `*` is `highest`."""
    ranges = []
    for part in uids.split(","):
        first, _, last = part.partition(":")
        low = highest if first == "*" else int(first)
        high = low if not last else highest if last == "*" else int(last)
        ranges.append((min(low, high), max(low, high)))
    return lambda uid: any(low <= uid <= high for low, high in ranges)


def ranges(uids: Sequence[int]) -> str:
    """A set as servers write it."""
    parts: list[str] = []
    start = previous = uids[0]
    for uid in [*uids[1:], -1]:
        if uid == previous + 1:
            previous = uid
            continue
        parts.append(str(start) if start == previous else f"{start}:{previous}")
        start = previous = uid
    return ",".join(parts)


def section(raw: bytes, section: str) -> bytes:
    """A body section of a message."""
    head, separator, body = raw.partition(b"\r\n\r\n")
    header = head + separator
    if section == "":
        return raw
    if section == "HEADER":
        return header
    if section.startswith("HEADER.FIELDS"):
        names = {name.upper() for name in re.sub(r"[()\"]", " ", section).split()[1:]}
        lines = re.findall(rb"(?m)^[^\s:]+:.*(?:\r\n[ \t].*)*\r\n", header)
        kept = [line for line in lines if line.split(b":", 1)[0].decode("latin-1").upper() in names]
        return b"".join(kept) + b"\r\n"
    if section in ("TEXT", "1"):
        return body
    raise Refused("BAD unknown section")


def criteria(tokens: list[str], view: list[Message]) -> Callable[[Message], bool]:
    """A test for a list of search criteria; takes its tokens away."""
    tests: list[Callable[[Message], bool]] = []
    while tokens and tokens[0] != ")":
        tests.append(criterion(tokens, view))
    return lambda message: all(test(message) for test in tests)


def criterion(tokens: list[str], view: list[Message]) -> Callable[[Message], bool]:
    """A test for one search criterion; takes its tokens away."""
    word = tokens.pop(0).upper()
    if word == "(":
        inner = criteria(tokens, view)
        tokens.pop(0)
        return inner
    if word == "ALL":
        return lambda _: True
    if word == "NOT":
        negated = criterion(tokens, view)
        return lambda message: not negated(message)
    if word == "OR":
        one, other = criterion(tokens, view), criterion(tokens, view)
        return lambda message: one(message) or other(message)
    if word in _SYSTEM:
        flag = _SYSTEM[word]
        return lambda message: flag in message.flags
    if word.startswith("UN") and word[2:] in _SYSTEM:
        flag = _SYSTEM[word[2:]]
        return lambda message: flag not in message.flags
    if word in ("KEYWORD", "UNKEYWORD"):
        keyword, wanted = unquoted(tokens.pop(0)), word == "KEYWORD"
        return lambda message: (keyword in message.flags) is wanted
    if word == "UID":
        inside = uid_test(tokens.pop(0), max((message.uid for message in view), default=0))
        return lambda message: inside(message.uid)
    if word == "MODSEQ":
        least = int(tokens.pop(0))
        return lambda message: message.modseq >= least
    if word in ("SINCE", "BEFORE"):
        limit = day(unquoted(tokens.pop(0)))
        since = word == "SINCE"
        return lambda message: (message.internal_date.date() >= limit) is since
    if word in ("LARGER", "SMALLER"):
        size, larger = int(tokens.pop(0)), word == "LARGER"
        return lambda message: len(message.raw) > size if larger else len(message.raw) < size
    if re.fullmatch(r"[\d:,*]+", word):
        inside = uid_test(word, len(view))
        numbers = {id(message): number for number, message in enumerate(view, 1)}
        return lambda message: inside(numbers[id(message)])
    raise Refused("BAD unknown criterion")


def day(text: str) -> date:
    """A search date."""
    day, month, year = text.split("-")
    return datetime(int(year), MONTHS.index(month.title()) + 1, int(day), tzinfo=UTC).date()
