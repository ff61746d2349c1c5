"""Events to rows: one operation per key, and the order of what happened kept. Against PostgreSQL: test_tables."""

from __future__ import annotations

from datetime import UTC, datetime

from streams.contracts.mailbox import Attachment, MessageHeaders
from streams.projection.batch import SequenceGap, in_sequence
from streams.projection.columns import array_literal, of_messages, of_places
from streams.projection.decoding import Decoded
from streams.projection.fold import Fold, merged, message_row
from streams.projection.rows import FlagsRow, GoneRow, MailboxRef, MessageRef, PlaceRow
from tests.fixtures.mail_events import EPOCH, AccountLog, place


def folded(*events: object) -> Fold:
    fold = Fold()
    fold.extend(Decoded(event) for event in events)  # type: ignore[arg-type]
    return fold


def test_a_hundred_flag_changes_are_one_row() -> None:
    log = AccountLog()
    fold = folded(*[log.flags(1, "m1", f"$f{n}", modseq=str(n)) for n in range(100)])
    [row] = fold.places()
    assert isinstance(row, FlagsRow)
    assert (row.flags, row.modseq) == (("$f99",), 99)


def test_flags_of_a_new_message_are_part_of_its_place() -> None:
    log = AccountLog()
    fold = folded(log.added(1, "m1", labels=("a",)), log.flags(1, "m1", "\\Seen"))
    [row] = fold.places()
    assert isinstance(row, PlaceRow)
    assert (row.flags, row.labels) == (("\\Seen",), ("a",))


def test_added_and_removed_leaves_a_deletion() -> None:
    """The database may hold the place already, so it is deleted there too."""
    log = AccountLog()
    fold = folded(log.added(1, "m1"), log.removed(1, "m1"))
    [row] = fold.places()
    assert isinstance(row, GoneRow)
    assert list(fold.perhaps_orphaned) == [MessageRef(log.account_id, "m1")]


def test_a_deleted_mailbox_takes_what_was_folded_before_and_nothing_after() -> None:
    log = AccountLog()
    fold = folded(
        log.discovered(),
        log.added(1, "m1"),
        log.unreadable(2),
        log.deleted("INBOX"),
        log.discovered(),
        log.added(1, "m2"),
    )
    [row] = fold.places()
    assert row.message_id == "m2"
    assert list(fold.dropped) == [MailboxRef(log.account_id, "id-INBOX")]
    assert MessageRef(log.account_id, "m1") in fold.perhaps_orphaned
    assert list(fold.unreadable_rows()) == []


def test_a_move_within_a_batch_keeps_the_order_of_its_message() -> None:
    log = AccountLog()
    fold = folded(log.added(1, "m1"), log.moved("m1", place(1), place(5, mailbox="B")))
    gone, row = fold.places()
    assert isinstance(gone, GoneRow)
    assert isinstance(row, PlaceRow)
    assert row.sort_at is not None


def test_what_does_not_fit_is_counted_not_guessed() -> None:
    log = AccountLog()
    fold = folded(log.removed(1, "m1"), log.flags(1, "m1", "\\Seen"), log.added(2, "m2"), log.removed(2, "other"))
    assert fold.odd == 2
    assert [type(row) for row in fold.places()] == [GoneRow, PlaceRow]


def test_case_89_a_message_without_dates_is_sorted_by_when_it_was_seen() -> None:
    log = AccountLog()
    sent = datetime(2020, 1, 1, tzinfo=UTC)
    both = message_row(log.added(1, "a", internal_date=EPOCH, headers=MessageHeaders(date=sent)))
    header = message_row(log.added(2, "b", internal_date=None, headers=MessageHeaders(date=sent)))
    neither = log.added(3, "c", internal_date=None, headers=MessageHeaders())
    assert (both.sort_at, both.sent_at) == (EPOCH, sent)
    assert header.sort_at == sent
    assert message_row(neither).sort_at == neither.at


def test_case_33_what_a_later_telling_does_not_say_is_kept() -> None:
    log = AccountLog()
    first = message_row(log.added(1, "m", preview="p", attachments=(Attachment(part="1", content_type="a/b"),)))
    later = message_row(log.added(2, "m", size=None, headers=MessageHeaders(subject="new")))
    stub = message_row(log.added(3, "m", headers=MessageHeaders(), truncated=True))
    both = merged(first, later)
    assert (both.subject, both.preview, both.size) == ("new", "p", 1001)
    assert both.attachments == first.attachments
    assert merged(both, stub) is both
    assert merged(stub, later).subject == "new"


def test_sequences_tell_repeats_and_gaps() -> None:
    log, other = AccountLog(), AccountLog()
    events = [log.added(n, "m") for n in range(1, 5)]
    known = {log.account_id: 2}
    found = in_sequence([Decoded(event) for event in (*events, other.added(1, "x"))], known)
    assert ([d.event.sequence for d in found.fresh], found.repeats, found.gap) == ([3, 4, 1], 2, None)
    assert known == {log.account_id: 4, other.account_id: 1}
    log.sequence += 1
    found = in_sequence([Decoded(log.added(9, "m"))], known)
    assert isinstance(found.gap, SequenceGap)
    assert found.fresh == []
    assert isinstance(in_sequence([Decoded(events[2])], {}).gap, SequenceGap)  # an account starts at 1


def test_arrays_are_written_as_postgresql_reads_them() -> None:
    assert array_literal(()) == "{}"
    assert array_literal(("a", 'b"c', "d\\e", "", "NULL", "{,}")) == '{"a","b\\"c","d\\\\e","","NULL","{,}"}'


def test_columns_are_as_long_as_there_are_rows() -> None:
    log = AccountLog()
    fold = folded(log.added(1, "m1"), log.added(2, "m2", labels=("x",)))
    messages, places = of_messages(fold.messages.values()), of_places(list(fold.places()))  # type: ignore[arg-type]
    assert {len(column) for column in messages} == {2}
    assert (len(messages), len(places)) == (19, 10)
    assert list(places[6]) == [None, '{"x"}']
