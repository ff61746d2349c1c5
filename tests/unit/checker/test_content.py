"""What is told of a message is compared with its header: threads, sizes and dates, in the log and in the database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.rig.letters import ODD, odd, ordinary
from tests.storm.checker.content import messages_in_database, told_of_messages
from tests.storm.checker.fold import FoldedAccount, fold
from tests.storm.checker.header import facts
from tests.storm.checker.log import Event
from tests.storm.checker.server import ServerMailbox, ServerMessage

ACCOUNT = "6f1c1f0e-6d0a-4b0c-9c1e-2f6f5d1c7a11"
ARRIVED = datetime(2026, 11, 30, 9, 15, tzinfo=UTC)
BOX = {"mailbox_id": "b1", "mailbox": "INBOX", "uidvalidity": 77}
HEADER = (
    b"From: Ana <ana@example.org>\r\nSubject: Re: Lunch\r\nMessage-ID: <3@example.org>\r\n"
    b"In-Reply-To: <2@example.org>\r\nReferences: <1@example.org>\r\n <2@example.org>\r\n\r\n"
)
SAID: dict[str, Any] = {
    "subject": "Re: Lunch",
    "message_id": "3@example.org",
    "in_reply_to": ["2@example.org"],
    "references": ["1@example.org", "2@example.org"],
}


def told(headers: dict[str, Any], **changes: Any) -> FoldedAccount:
    body = {"uid": 1, "message_id": "m", "size": 700, "internal_date": "2026-11-30T10:15:00+01:00", **changes}
    bodies = [
        {"type": "mailbox.discovered", **BOX, "wire_name": "INBOX"},
        {"type": "message.added", **BOX, "headers": headers, **body},
    ]
    return fold(Event(0, n, 0, ACCOUNT, n, str(body["type"]), "one/7.1", body) for n, body in enumerate(bodies, 1))[
        ACCOUNT
    ]


def server(header: bytes = HEADER) -> dict[str, ServerMailbox]:
    message = ServerMessage(frozenset(), "content", facts(700, ARRIVED, header))
    return {"INBOX": ServerMailbox("INBOX", "INBOX", 77, {1: message})}


@pytest.mark.parametrize(
    ("wrong", "headers", "changes"),
    [
        (None, {}, {}),
        ("headers.references", {"references": ["2@example.org"]}, {}),
        ("headers.in_reply_to", {"in_reply_to": []}, {}),
        ("headers.message_id", {"message_id": "4@example.org"}, {}),
        ("headers.subject", {"subject": None}, {}),
        ("size", {}, {"size": 701}),
        ("internal_date", {}, {"internal_date": "2026-11-30T10:15:00Z"}),
    ],
)
def test_what_is_told_of_a_message_is_what_its_header_says(
    wrong: str | None, headers: dict[str, Any], changes: dict[str, Any]
) -> None:
    found = list(told_of_messages(told(SAID | headers, **changes), server()))
    assert [finding.rule for finding in found] == (["content"] if wrong else [])
    assert all(str(finding.expected).startswith(f"{wrong}:") for finding in found)


def test_many_references_are_told_in_part_and_what_was_cut_tells_nothing() -> None:
    ids = [f"{n}@example.org" for n in range(200)]
    long = b"References: " + "\r\n ".join(f"<{each}>" for each in ids).encode() + b"\r\n\r\n"
    said = {"references": ids[:1] + ids[-99:]}
    assert not list(told_of_messages(told(said), server(long)))
    assert list(told_of_messages(told({"references": ids[:100]}), server(long)))
    assert not list(told_of_messages(told({}, truncated=True), server(long)))


@pytest.mark.parametrize(
    ("header", "in_doubt"),
    [
        (b"Message-ID: <a b@c>\r\n", "headers.message_id"),
        (b"Message-ID: <1@c>\r\nMessage-Id: <2@c>\r\n", "headers.message_id"),
        (b"References: 1@c <2@c>\r\n", "headers.references"),
        (b"In-Reply-To: <\xc3\xa9@c>\r\n", "headers.in_reply_to"),
        (b"Subject: =?utf-8?Q?a?=\r\n", "headers.subject"),
        (b"Subject: two\r\n lines\r\n", "headers.subject"),
        (b"Subject: two  blanks\r\n", "headers.subject"),
    ],
)
def test_of_what_is_odd_nothing_is_said(header: bytes, in_doubt: str) -> None:
    assert in_doubt not in facts(1, ARRIVED, header)


def test_letters_of_storms_have_something_to_compare() -> None:
    assert facts(1, ARRIVED, ordinary(7).partition(b"\r\n\r\n")[0])["headers.message_id"] == "7@example.org"
    known = [facts(1, ARRIVED, odd(kind, 7).partition(b"\r\n\r\n")[0]) for kind in ODD]
    assert all(len(each) >= 4 for each in known)


@pytest.mark.parametrize(
    ("column", "value"),
    [(None, None), ("references", []), ("internet_message_id", "9@example.org"), ("size", 1), ("subject", "Dinner")],
)
def test_the_row_of_a_message_says_what_was_told_of_it(column: str | None, value: Any) -> None:
    row = {**SAID, "internet_message_id": "3@example.org", "size": 700, "cleaned": False, "truncated": False}
    row |= {column: value} if column else {}
    found = [finding.rule for finding in messages_in_database(told(SAID), {"m": row})]
    assert found == (["database_content"] if column else [])
    assert not list(messages_in_database(told(SAID), {"m": row | {"cleaned": True}}))
