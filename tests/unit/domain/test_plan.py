"""The plan: what follows from the difference between mirror and server. Cases 4, 27, 34, 35, row S10."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from streams.domain.backoff import is_ahead
from streams.domain.mirror import MailboxRecord, Quarantined
from streams.domain.plan import (
    ServerMailbox,
    attributes_differ,
    comparison_due,
    expected_count,
    is_aside,
    is_renumbered,
    is_whole,
    mismatches,
    needs_visit,
    next_scan_window,
    plan_listing,
    reconcile,
    spans_up_to_highest,
    uid_set,
    windows_newest_first,
    within,
)

uids = st.frozensets(st.integers(1, 400), max_size=60).map(BitMap)


def record(name: bytes = b"A", **fields: object) -> MailboxRecord:
    values: dict[str, object] = {
        "mailbox_id": f"id-{name.decode()}",
        "wire_name": name,
        "name": name.decode(),
        "uidvalidity": 7,
        "uidnext": 11,
        "floor": 1,
        "highestmodseq": 40,
        "count": 10,
        "visited": True,
        "backfill_done": True,
        "reconciled_at": 1000.0,
    }
    return MailboxRecord(**{**values, **fields})  # type: ignore[arg-type]


def server(name: bytes = b"A", **fields: object) -> ServerMailbox:
    plain = ServerMailbox(
        name, name.decode(), None, None, (), True, uidvalidity=7, uidnext=11, messages=10, highestmodseq=40
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


# --- listings --------------------------------------------------------------------------------------------------------
def test_the_same_names_are_the_same_mailboxes() -> None:
    plan = plan_listing([record(b"A"), record(b"B")], [server(b"B"), server(b"A")], complete=True)
    assert len(plan.same) == 2
    assert not (plan.renamed or plan.discovered or plan.deleted)


def test_an_incomplete_list_proves_no_absence() -> None:
    plan = plan_listing([record(b"A"), record(b"B")], [server(b"B")], complete=False)
    assert plan.deleted == []
    assert plan_listing([record(b"A"), record(b"B")], [server(b"B")], complete=True).deleted[0].name == "A"


def test_inbox_is_never_deleted() -> None:
    assert plan_listing([record(b"INBOX")], [server(b"B", uidvalidity=8)], complete=True).deleted == []


def test_a_rename_is_believed_when_nothing_else_can_be_meant() -> None:
    plan = plan_listing(
        [record(b"A"), record(b"B", uidvalidity=8)], [server(b"C"), server(b"B", uidvalidity=8)], complete=True
    )
    assert [(old.name, new.name) for old, new in plan.renamed] == [("A", "C")]


@pytest.mark.parametrize(
    ("known", "listed"),
    [
        ([record(b"A"), record(b"B")], [server(b"C")]),
        ([record(b"A")], [server(b"C"), server(b"D")]),
        ([record(b"A")], [server(b"C", uidnext=5)]),
        ([record(b"A")], [server(b"C", uidnext=None)]),
        ([record(b"A", uidvalidity=0)], [server(b"C", uidvalidity=0)]),
        ([record(b"INBOX")], [server(b"C")]),
        ([record(b"A", object_id="F1")], [server(b"C", object_id="F2")]),
        ([record(b"A")], [server(b"C", selectable=False)]),
    ],
    ids=[
        "two went",
        "two came",
        "uidnext fell",
        "uidnext unknown",
        "no uidvalidity",
        "inbox",
        "other ids",
        "container",
    ],
)
def test_case_35_a_doubtful_rename_is_none(known: list[MailboxRecord], listed: list[ServerMailbox]) -> None:
    plan = plan_listing(known, listed, complete=True)
    assert plan.renamed == []
    assert len(plan.discovered) == len(listed)


def test_mailbox_ids_decide_where_both_have_them() -> None:
    known = [record(b"A", object_id="F1"), record(b"B", object_id="F2")]
    plan = plan_listing(known, [server(b"B", object_id="F1"), server(b"A", object_id="F2")], complete=True)
    assert {(old.name, new.name) for old, new in plan.renamed} == {("A", "B"), ("B", "A")}
    plan = plan_listing(known[:1], [server(b"A", object_id="F9")], complete=True)
    assert [m.name for m in plan.deleted] == ["A"]
    assert [m.name for m in plan.discovered] == ["A"]


def test_mailboxes_that_share_a_mailbox_id_stay_what_their_names_say() -> None:
    """A folder copied on the server's disk takes its id along: no reason to take one for the other at each look."""
    known = [record(b"A", object_id="F1"), record(b"B", object_id="F1")]
    copies = [server(b"C", object_id="F1"), server(b"A", object_id="F1"), server(b"B", object_id="F1")]
    plan = plan_listing(known, copies[1:], complete=True)
    assert {(m.name, s.name) for m, s in plan.same} == {("A", "A"), ("B", "B")}
    assert (plan.renamed, plan.discovered, plan.deleted) == ([], [], [])
    plan = plan_listing(known, copies, complete=True)
    assert [s.name for s in plan.discovered] == ["C"]
    assert (plan.renamed, plan.deleted) == ([], [])
    plan = plan_listing(known[:1], copies, complete=True)
    assert {s.name for s in plan.discovered} == {"B", "C"}
    assert (plan.renamed, plan.deleted) == ([], [])


def test_a_mailbox_that_became_selectable_is_another_one() -> None:
    plan = plan_listing([record(b"A", selectable=False)], [server(b"A")], complete=False)
    assert len(plan.deleted) == len(plan.discovered) == 1


names = st.sampled_from([b"INBOX", b"A", b"B", b"C", b"D"])
boxes = st.tuples(names, st.integers(0, 3), st.sampled_from([None, "F1", "F2", "F3"]), st.booleans())


@given(st.lists(boxes, unique_by=lambda b: b[0]), st.lists(boxes, unique_by=lambda b: b[0]), st.booleans())
def test_every_mailbox_comes_out_once(known: list, listed: list, complete: bool) -> None:  # type: ignore[type-arg]
    """Nothing is both kept and deleted, nothing listed is forgotten, nothing unknown is deleted."""
    ours = [record(n, uidvalidity=v, object_id=o, selectable=s) for n, v, o, s in known]
    theirs = [server(n, uidvalidity=v, object_id=o, selectable=s) for n, v, o, s in listed]
    plan = plan_listing(ours, theirs, complete=complete)
    kept = [m.mailbox_id for m, _ in (*plan.same, *plan.renamed)]
    gone = [m.mailbox_id for m in plan.deleted]
    assert len(set(kept)) == len(kept)
    assert not set(kept) & set(gone)
    placed = [s.wire_name for _, s in (*plan.same, *plan.renamed)] + [s.wire_name for s in plan.discovered]
    assert len(set(placed)) == len(placed)
    if complete:
        assert set(placed) == {s.wire_name for s in theirs}
    # never two mailboxes under one name afterwards
    left = [m.wire_name for m in ours if m.mailbox_id not in kept and m.mailbox_id not in gone]
    assert not set(left) & set(placed)


# --- visits ----------------------------------------------------------------------------------------------------------
def visit(old: MailboxRecord, new: ServerMailbox, *, condstore: bool = True, now: float = 1500.0) -> bool:
    return needs_visit(old, new, condstore=condstore, now=now, full_after_s=3600.0)


def test_nothing_moved_and_nothing_is_opened() -> None:
    assert not visit(record(), server())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (record(visited=False), server()),
        (record(previous=6), server()),
        (record(), server(uidnext=12)),
        (record(), server(uidnext=None)),
        (record(), server(uidvalidity=8)),
        (record(), server(uidvalidity=None)),
        (record(), server(messages=9)),
        (record(), server(messages=None)),
        (record(), server(highestmodseq=41)),
        (record(), server(highestmodseq=39)),
        (record(), server(highestmodseq=None)),
        (record(excluded=1), server()),
    ],
)
def test_whatever_moved_or_is_unknown_is_looked_at(old: MailboxRecord, new: ServerMailbox) -> None:
    assert visit(old, new)


def test_without_condstore_nothing_proves_that_flags_stayed() -> None:
    assert visit(record(), server(), condstore=False)


def test_a_full_compare_is_due_from_time_to_time() -> None:
    assert visit(record(), server(), now=1000.0 + 3600.0)


def test_counts_of_a_mailbox_still_being_read_prove_nothing() -> None:
    assert not visit(record(backfill_done=False), server(messages=5000))
    assert not is_whole(record(floor=5))


def test_what_is_set_aside_or_not_wanted_is_expected_to_be_there() -> None:
    odd = record(quarantined={3: Quarantined("x", 1, 0.0)}, excluded=2)
    assert expected_count(odd) == 13
    assert not visit(odd, server(messages=13))


@pytest.mark.parametrize("field", ["name", "delimiter", "special_use"])
def test_attributes(field: str) -> None:
    assert attributes_differ(record(), replace(server(), **{field: "z"}))  # type: ignore[arg-type]
    assert not attributes_differ(record(), server())


# --- sets ------------------------------------------------------------------------------------------------------------
@given(uids, uids, st.integers(0, 400), st.integers(0, 400), uids)
def test_case_27_reconcile_is_a_difference_within_bounds(
    known: BitMap, theirs: BitMap, low: int, high: int, aside: BitMap
) -> None:
    found = reconcile(known, theirs, low=low, high=high, aside=aside)
    region = set(range(low, high))
    assert set(found.vanished) == (set(known) - set(theirs)) & region
    assert set(found.missing) == ((set(theirs) - set(known)) & region) - set(aside)


_ANY_UID = st.one_of(st.integers(0, 5), st.integers((1 << 32) - 5, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))


@given(st.frozensets(_ANY_UID, max_size=20), _ANY_UID, _ANY_UID)
def test_uids_within_bounds(those: frozenset[int], low: int, high: int) -> None:
    """Up to the highest UID there can be, at whatever distance; nothing when the bounds are crossed."""
    whole = BitMap(those)
    assert set(within(whole, low, high)) == {uid for uid in those if low <= uid < high}
    assert set(within(whole, low, 1 << 32)) == {uid for uid in those if low <= uid}
    assert set(whole) == those


@given(uids, st.integers(1, 50))
def test_windows_cover_everything_once_newest_first(those: BitMap, size: int) -> None:
    windows = list(windows_newest_first(those, size))
    assert all(0 < len(window) <= size for window in windows)
    assert sorted(uid for window in windows for uid in window) == sorted(those)
    assert all(a.min() > b.max() for a, b in itertools.pairwise(windows))


@given(uids)
def test_uid_sets_say_exactly_the_uids(those: BitMap) -> None:
    found: set[int] = set()
    for part in filter(None, uid_set(those).split(",")):
        first, _, last = part.partition(":")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == set(those)


@given(uids.filter(bool), st.integers(1, 40), st.integers(1, 500))
def test_a_rolling_scan_comes_round(known: BitMap, size: int, below: int) -> None:
    """Every UID under the bound is read once per round, whatever the window."""
    eligible = {uid for uid in known if uid < below}
    position, seen, rounds = 0, [], 0
    while True:
        window, position = next_scan_window(known, position, size, below)
        seen += list(window)
        rounds += 1
        assert rounds <= len(known) + 2
        if position == 0:
            break
    assert sorted(seen) == sorted(eligible)


@given(uids, uids, st.integers(1, 40))
def test_a_rolling_scan_survives_changes_between_windows(known: BitMap, later: BitMap, size: int) -> None:
    """Messages that come and go between two windows never stop it."""
    _, position = next_scan_window(known, 0, size, 1000)
    for _ in range(500):
        window, position = next_scan_window(later, position, size, 1000)
        assert len(window) <= size
        if position == 0:
            return
    raise AssertionError("it never comes round")


# --- spot checks -----------------------------------------------------------------------------------------------------
def test_case_34_what_a_spot_check_proves() -> None:
    assert mismatches([b"a", b"b", b"c"], [b"a", None, b"x"]) == (1, 2)
    assert not is_renumbered(0, 0)
    assert not is_renumbered(0, 3)
    assert not is_renumbered(1, 3)
    assert is_renumbered(1, 1)
    assert is_renumbered(2, 33)


@given(st.sets(st.integers(1, 2**32 - 1), min_size=1, max_size=60), st.integers(1, 20))
def test_property_spans_are_gapless_and_hold_at_most_so_many(uids: set[int], size: int) -> None:
    spans = [tuple(map(int, span.split(":"))) for span in spans_up_to_highest(BitMap(uids), size)]
    assert spans[0][0] == 1
    assert spans[-1][1] == max(uids)
    assert all(low == before[1] + 1 for before, (low, _) in itertools.pairwise(spans))
    assert all(1 <= sum(low <= uid <= high for uid in uids) <= size for low, high in spans)


# --- clocks that were wrong ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("now", "due"), [(5000.0, False), (4999.9, True), (8599.9, False), (8600.0, True), (5000.0 - 2 * 86_400, True)]
)
def test_a_comparison_in_the_future_counts_for_nothing(now: float, due: bool) -> None:
    """A worker whose clock was days ahead compared a mailbox: that must not be the last time for days."""
    assert comparison_due(record(reconciled_at=5000.0), now=now, full_after_s=3600.0) is due


@pytest.mark.parametrize(
    ("now", "aside"), [(4999.0, False), (5000.0, True), (5059.0, True), (5060.0, False), (5000.0 - 86_400, False)]
)
def test_a_mailbox_set_aside_in_the_future_is_not_left_alone(now: float, aside: bool) -> None:
    assert is_aside(record(aside="busy", aside_at=5000.0, aside_until=5060.0), now) is aside


def test_what_was_set_aside_before_that_moment_was_recorded_is_left_alone() -> None:
    assert is_aside(record(aside="busy", aside_until=5060.0), 4000.0)
    assert not is_aside(record(), 4000.0)


@pytest.mark.parametrize(
    ("until", "ahead"), [(999.0, False), (1000.0, False), (1001.0, True), (1060.0, True), (1061.0, False)]
)
def test_nothing_is_waited_for_longer_than_anybody_waits(until: float, ahead: bool) -> None:
    assert is_ahead(until, now=1000.0, longest_s=60.0) is ahead
