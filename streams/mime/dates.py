"""Dates of mail: RFC 5322 3.3 and 4.3, and what senders write instead.

Invariant: a date that names no moment in time (month 13, June 31, zone +9900, ten-digit year) is None, never an
exception and never a guess (case 89). Nothing here looks at a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_MONTHS_AS_WRITTEN: Final = _MONTHS | {name.capitalize(): number for name, number in _MONTHS.items()}

# RFC 5322 4.3; military letters and unknown names count as -0000, which is UTC.
_ZONE_HOURS: Final = {"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
_ZONE_HOURS_BEYOND_RFC: Final = {"BST": 1, "CET": 1, "CEST": 2, "MET": 1, "MEST": 2, "EET": 2, "EEST": 3, "JST": 9}

_NOTHING: Final = timedelta()
_OFFSETS: Final[dict[str, timedelta]] = {
    **{
        f"{sign}{hours:02}{minutes:02}": factor * timedelta(hours=hours, minutes=minutes)
        for sign, factor in (("+", 1), ("-", -1))
        for hours in range(24)
        for minutes in range(60)
    },
    **{name: timedelta(hours=hours) for name, hours in (_ZONE_HOURS | _ZONE_HOURS_BEYOND_RFC).items()},
}

# As nearly all senders write it.
_USUAL: Final = re.compile(
    r" ?(?:[A-Z][a-z]{2}, )?(\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) ([+-]\d{4})(?!\d)",
    re.ASCII,
)
# Every repetition is possessive or has a fixed bound, so that no input makes the search go back.
_RFC5322: Final = re.compile(
    r"\s*+(?:[A-Za-z]{2,9}+\.?,?\s*+)?"
    r"(\d{1,2})(?:st|nd|rd|th)?[\s\-.]{1,3}+([A-Za-z]{3})[a-z]{0,6}+\.?,?[\s\-]{1,3}+(\d{4}|\d{2,3})[,\s]\s*+"
    r"(\d{1,2})[:.](\d{1,2})(?:[:.](\d{1,2})(?:[.,]\d{1,9})?+)?+(?!\d)\s*+"
    r"([+-]\d{4}(?!\d)|[+-]\d{2}:\d{2}(?!\d)|[A-Za-z]{1,30}+(?:[+-]\d{4}(?!\d))?|$|\()",
    re.ASCII,
)
_ASCTIME: Final = re.compile(
    r"\s*+[A-Za-z]{3},?\s++([A-Za-z]{3})\s++(\d{1,2})\s++(\d{1,2}):(\d{2}):(\d{2})\s++"
    r"(?:([A-Za-z]{1,5}|[+-]\d{4})\s++)?+(\d{4})(?!\d)\s*+([+-]\d{4}(?!\d))?",
    re.ASCII,
)
_ISO8601: Final = re.compile(
    r"\s*+(\d{4})-(\d{2})-(\d{2})[T\s](\d{2}):(\d{2}):(\d{2})(?:[.,]\d{1,9})?+\s*+(Z|[+-]\d{2}:?\d{2}(?!\d)|UTC|GMT|$)",
    re.ASCII,
)


def parse_date(value: str) -> datetime | None:
    """The moment a Date field names, in UTC, whole seconds; None if it names none.

    Two-digit years are read as RFC 5322 4.3 says (00-49 are 2000 to 2049), a leap second as the second before, a
    missing or unknown zone as UTC.
    """
    match = _USUAL.match(value) or _RFC5322.match(value)
    if match is not None:
        day, month, year, hour, minute, second, zone = match.groups()
        return _moment(year, month, day, hour, minute, second or "0", zone)
    match = _ASCTIME.match(value)
    if match is not None:
        month, day, hour, minute, second, zone, year, offset = match.groups()
        return _moment(year, month, day, hour, minute, second, offset or zone or "")
    match = _ISO8601.match(value)
    if match is not None:
        year, month, day, hour, minute, second, zone = match.groups()
        return _build(int(year), int(month), int(day), int(hour), int(minute), int(second), zone)
    return None


def _moment(year: str, month: str, day: str, hour: str, minute: str, second: str, zone: str) -> datetime | None:
    number = _MONTHS_AS_WRITTEN.get(month) or _MONTHS.get(month.lower())
    if number is None:
        return None
    full_year = int(year)
    if len(year) < 4:
        full_year += 2000 if full_year < 50 else 1900
    return _build(full_year, number, int(day), int(hour), int(minute), int(second), zone)


def _build(year: int, month: int, day: int, hour: int, minute: int, second: int, zone: str) -> datetime | None:
    offset = _OFFSETS.get(zone)
    if offset is None:
        offset = _named_or_odd_offset(zone)
        if offset is None:
            return None
    try:
        return datetime(year, month, day, hour, minute, 59 if second == 60 else second, 0, UTC) - offset
    except (ValueError, OverflowError):
        return None


def _named_or_odd_offset(zone: str) -> timedelta | None:
    """The offset of a zone that is not in the table: None for a numeric one out of range, zero for an unknown name."""
    if zone[:1] in ("+", "-"):
        return _OFFSETS.get(zone.replace(":", ""))
    if len(zone) > 5 and zone[-5] in "+-":  # "GMT+0100"
        return _OFFSETS.get(zone[-5:])
    return _OFFSETS.get(zone.upper(), _NOTHING)
