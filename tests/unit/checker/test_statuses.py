"""What is said of an account must be so at rest, in the topic and in the database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.storm.checker.fold import FoldedAccount, fold
from tests.storm.checker.log import Event, Raw
from tests.storm.checker.statuses import COLUMNS, latest, stale, stale_rows

ACCOUNT = "6f1c1f0e-6d0a-4b0c-9c1e-2f6f5d1c7a11"
BOX = {"mailbox_id": "b1", "mailbox": "INBOX", "uidvalidity": 77}
BODY = {"phase": "running", "worker": "two", "partition": 3, "tier": "hot", "mailboxes": 1, "messages": 1}


def accounts() -> dict[str, FoldedAccount]:
    bodies = [
        {"type": "mailbox.discovered", **BOX, "wire_name": "INBOX"},
        {"type": "message.added", **BOX, "uid": 1, "message_id": "m"},
    ]
    writers = ["one/7.1", "two/7.2"]
    return fold(
        Event(3, n, 0, ACCOUNT, n, str(body["type"]), writer, body)
        for n, (body, writer) in enumerate(zip(bodies, writers, strict=True), 1)
    )


def status(writer: str = "two/7.2", **changes: Any) -> dict[str, Raw]:
    value = json.dumps(BODY | changes).encode()
    return latest([Raw("t", 3, 1, 0, ACCOUNT.encode(), value, (("writer", writer.encode()),))])


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (status(), False),
        (status(phase="syncing"), False),
        (status("one/7.3", worker="one"), False),
        (status("one/7.1", worker="one"), True),
        (status(worker="one"), True),
        (status(phase="stopped"), True),
        (status(phase="backing_off"), True),
        (status(messages=0), True),
        (status(mailboxes=2), True),
        (status(partition=1), True),
        ({}, True),
        (latest([Raw("t", 3, 2, 0, ACCOUNT.encode(), None, ())]), True),
    ],
)
def test_a_status_that_is_not_so_is_stale(told: dict[str, Raw], wrong: bool) -> None:
    assert [f.rule for f in stale(told, accounts(), [ACCOUNT])] == (["stale_status"] if wrong else [])


def test_the_row_of_a_status_is_what_was_told_last() -> None:
    row = {column: BODY[column] for column in COLUMNS}
    assert list(stale_rows(status(), {ACCOUNT: row})) == []
    for rows in (
        {},
        {ACCOUNT: row | {"worker": "one"}},
        {ACCOUNT: row | {"messages": 0}},
        {ACCOUNT: row, "other": row},
    ):
        assert [f.rule for f in stale_rows(status(), rows)] == ["database_status"]
    assert [f.rule for f in stale_rows({}, {ACCOUNT: row})] == ["database_status"]
