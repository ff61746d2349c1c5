"""What of NOTIFY is worth a look, and that looks come to an end (RFC 5465)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streams.domain.mirror import MailboxRecord
from streams.imap.values import Changes, ListedMailbox, MailboxStatus
from streams.sync.hints import LOOKS_APART_S, OVERFLOWS_LIMIT, Hints


def record(**changed: Any) -> MailboxRecord:
    """A folder of ten messages, wholly read."""
    known: dict[str, Any] = {
        "mailbox_id": "m1",
        "wire_name": b"Sent",
        "name": "Sent",
        "uidvalidity": 7,
        "uidnext": 11,
        "highestmodseq": 50,
        "count": 10,
        "visited": True,
        "backfill_done": True,
        "floor": 1,
    }
    return MailboxRecord(**{**known, **changed})


def state(*records: MailboxRecord) -> Any:
    return SimpleNamespace(mailboxes={r.mailbox_id: SimpleNamespace(record=r) for r in records})


def looks(changes: Changes, *records: MailboxRecord, modseqs: bool = True, first: bool = False) -> bool:
    hints = Hints()
    hints.answered(accepted=True)
    hints.take(state(*records), changes, modseqs=modseqs, first=first, wall=1000.0)
    return hints.wait_s(5.0) is not None


def told(**items: Any) -> Changes:
    return Changes(statuses={b"Sent": MailboxStatus(**items)})


SAME: dict[str, Any] = {"messages": 10, "uidnext": 11, "uidvalidity": 7, "highestmodseq": 50}


@pytest.mark.parametrize(
    ("items", "worth"),
    [
        (SAME, False),
        ({**SAME, "uidnext": 12}, True),
        ({**SAME, "messages": 9}, True),
        ({**SAME, "highestmodseq": 51}, True),
        ({**SAME, "uidvalidity": 8}, True),
        ({"messages": 10, "uidnext": 11}, False),
        ({"messages": 9, "uidnext": 11}, True),
        ({"highestmodseq": 50}, False),
        ({"highestmodseq": 60}, True),
        ({"uidvalidity": 7}, True),  # FlagChange without CONDSTORE tells no more than that
        ({}, True),
    ],
)
def test_status_is_compared_with_what_is_known(items: dict[str, Any], worth: bool) -> None:
    assert looks(told(**items), record()) is worth


def test_without_modification_sequences_flags_may_have_changed() -> None:
    same = told(messages=10, uidnext=11, uidvalidity=7)
    assert looks(same, record(), modseqs=False)
    assert not looks(same, record(), modseqs=False, first=True)
    assert looks(told(messages=11, uidnext=12, uidvalidity=7), record(), modseqs=False, first=True)


def test_counts_say_nothing_while_history_is_read() -> None:
    unfinished = record(backfill_done=False, floor=5, count=6)
    assert not looks(told(**SAME), unfinished)
    assert looks(told(messages=10, uidnext=11), unfinished)


@pytest.mark.parametrize(
    "changed", [{"selectable": False}, {"view": True}, {"aside": "busy", "aside_until": 2000.0}], ids=str
)
def test_folders_that_are_not_followed_now_lead_to_nothing(changed: dict[str, Any]) -> None:
    assert not looks(told(**{**SAME, "uidnext": 99}), record(**changed))


def listed(name: bytes, *, attributes: frozenset[str] = frozenset(), old_name: bytes | None = None) -> Changes:
    return Changes(
        listed=(
            ListedMailbox(
                wire_name=name,
                display_name=name.decode(),
                delimiter="/",
                attributes=attributes,
                special_use=None,
                selectable="\\nonexistent" not in attributes,
                old_name=old_name,
            ),
        )
    )


def test_mailboxes_made_renamed_and_deleted_are_looked_for() -> None:
    gone = frozenset({"\\nonexistent"})
    assert looks(listed(b"Born"), record())
    assert looks(listed(b"Sent", old_name=b"Old"), record())
    assert looks(listed(b"Sent", attributes=gone), record())
    assert not looks(listed(b"Sent"), record())
    assert not looks(listed(b"Unheard", attributes=gone), record())
    assert looks(Changes(statuses={b"Unheard": MailboxStatus()}), record())


def test_inbox_is_one_however_it_is_written() -> None:
    inbox = record(wire_name=b"INBOX", name="INBOX")
    assert not looks(Changes(statuses={b"inbox": MailboxStatus(**SAME)}), inbox)


def test_looks_are_apart_and_a_surprise_is_looked_at_once_more() -> None:
    hints, box = Hints(), state(record())
    hints.answered(accepted=True)
    assert hints.wait_s(100.0) is None
    hints.take(box, told(**{**SAME, "uidnext": 12}), modseqs=True, first=False, wall=0.0)
    assert hints.wait_s(100.0) == 0.0
    hints.looked(100.0, elsewhere=False, surprised=True)
    assert hints.wait_s(100.2) == pytest.approx(LOOKS_APART_S - 0.2)
    hints.looked(101.0, elsewhere=False, surprised=False)
    assert hints.wait_s(500.0) is None
    hints.take(box, told(**{**SAME, "uidnext": 12}), modseqs=True, first=False, wall=0.0)
    assert hints.wait_s(101.5) == pytest.approx(0.5)


def test_notify_is_asked_for_anew_after_a_look_elsewhere() -> None:
    hints = Hints()
    assert hints.due
    hints.answered(accepted=True)
    hints.looked(1.0, elsewhere=False, surprised=False)
    assert not hints.due
    hints.looked(2.0, elsewhere=True, surprised=False)
    assert hints.due


def test_notify_that_was_refused_is_not_asked_for_again() -> None:
    hints = Hints()
    hints.answered(accepted=False)
    hints.looked(1.0, elsewhere=True, surprised=True)
    assert not hints.due
    assert hints.wait_s(9.0) is None


def test_notify_is_asked_for_again_after_an_overflow_but_not_for_ever() -> None:
    hints = Hints()
    for count in range(OVERFLOWS_LIMIT):
        hints.answered(accepted=True)
        hints.take(state(record()), Changes(overflowed=True), modseqs=True, first=False, wall=0.0)
        assert hints.due is (count < OVERFLOWS_LIMIT - 1)
    hints.looked(1.0, elsewhere=True, surprised=True)
    assert not hints.due
