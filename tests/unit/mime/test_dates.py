"""Dates of mail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.mime.dates import parse_date


def utc(*fields: int) -> datetime:
    year, month, day, hour, minute, second = fields
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("Tue, 14 Jul 2026 09:12:33 +0200", utc(2026, 7, 14, 7, 12, 33)),
        (" Tue, 14 Jul 2026 09:12:33 -0730 (comment)", utc(2026, 7, 14, 16, 42, 33)),
        ("14 Jul 2026 09:12 GMT", utc(2026, 7, 14, 9, 12, 0)),
        ("Tue,14 Jul 2026 9:02:03 EST", utc(2026, 7, 14, 14, 2, 3)),
        ("Tue, 14 jul 26 09:12:33 UT", utc(2026, 7, 14, 9, 12, 33)),
        ("Tue, 14 Jul 94 09:12:33 Z", utc(1994, 7, 14, 9, 12, 33)),
        ("Tue, 14 Jul 126 09:12:33 Z", utc(2026, 7, 14, 9, 12, 33)),
        ("Tuesday, 14-July-2026 09:12:33 PDT", utc(2026, 7, 14, 16, 12, 33)),
        ("Tue, 14 Jul 2026 09:12:60 +0000", utc(2026, 7, 14, 9, 12, 59)),
        ("Tue, 14 Jul 2026 09:12:33 GMT+0100", utc(2026, 7, 14, 8, 12, 33)),
        ("Tue, 14 Jul 2026 09:12:33 +01:00", utc(2026, 7, 14, 8, 12, 33)),
        ("Tue, 14 Jul 2026 09:12:33", utc(2026, 7, 14, 9, 12, 33)),
        ("Tue, 14 Jul 2026 09:12:33 -0000", utc(2026, 7, 14, 9, 12, 33)),
        ("Tue, 14 Jul 2026 09:12:33 Pacific Standard Time", utc(2026, 7, 14, 9, 12, 33)),
        ("Tue, 14 Jul 2026 09:12:33 XYZ", utc(2026, 7, 14, 9, 12, 33)),
        ("Tue, 14 Jul 2026 09.12.33 +0000", utc(2026, 7, 14, 9, 12, 33)),
        ("Tue Jul 14 09:12:33 2026", utc(2026, 7, 14, 9, 12, 33)),
        ("Tue Jul  4 09:12:33 CEST 2026", utc(2026, 7, 4, 7, 12, 33)),
        ("2026-07-14T09:12:33Z", utc(2026, 7, 14, 9, 12, 33)),
        ("2026-07-14 09:12:33.123 +02:00", utc(2026, 7, 14, 7, 12, 33)),
        ("Tue, 14 Jul 2026 23:30:00 -2359", utc(2026, 7, 15, 23, 29, 0)),
    ],
)
def test_forms_of_dates(value: str, moment: datetime) -> None:
    assert parse_date(value) == moment


@pytest.mark.parametrize(
    "value",
    [
        "Tue, 14 Jul 2026 09:12:33 +9900",
        "Tue, 14 Jul 2026 09:12:33 +0060",
        "Tue, 14 Jul 2026 09:12:33 -99999",
        "Tue, 14 Jul 2026000000 09:12:33 +0000",
        "Fri, 31 Jun 2005 09:12:33 +0000",
        "29 Feb 2025 00:00:00 +0000",
        "6/31/2005",
        "32 Jan 2026 00:00:00 +0000",
        "14 Foo 2026 00:00:00 +0000",
        "14 Jul 2026 24:00:00 +0000",
        "14 Jul 2026 09:61:00 +0000",
        "14 Jul 2026 09:12:61 +0000",
        "1 Jan 0001 00:00:00 +0100",
        "31 Dec 9999 23:59:59 -0100",
        "1 Jan 0000 00:00:00 +0000",
        "",
        "0",
        "٣ Jul 2026 09:12:33 +0000x",
    ],
)
def test_case_89_no_moment_in_time(value: str) -> None:
    assert parse_date(value) is None


@given(
    moment=st.datetimes(datetime(1900, 1, 1), datetime(9998, 12, 31)),  # noqa: DTZ001 - zones are given apart
    offset=st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_what_the_standard_library_writes_is_read_back(moment: datetime, offset: int) -> None:
    moment = moment.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=offset)))
    assert parse_date(format_datetime(moment)) == moment
    assert parse_date(moment.isoformat(sep=" ")) == moment


@given(st.text(alphabet="0123456789 ,:+-/JanFebMonTZG()x", max_size=60))
def test_never_raises_and_is_utc(value: str) -> None:
    moment = parse_date(value)
    assert moment is None or moment.tzinfo is UTC
