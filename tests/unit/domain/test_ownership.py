"""The table of a shard's states: every pair of state and event, one by one (the model of many workers is beside it)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.domain.ownership import ShardAction as A
from streams.domain.ownership import ShardEvent as E
from streams.domain.ownership import ShardPhase as P
from streams.domain.ownership import on_assignment, step

TRANSITIONS = {
    (P.IDLE, E.ASSIGNED): (P.FENCING, [A.OPEN_FENCE]),
    (P.BARRED, E.ASSIGNED): (P.FENCING, [A.OPEN_FENCE]),
    (P.BROKEN, E.ASSIGNED): (P.FENCING, [A.OPEN_FENCE]),
    (P.FENCING, E.FENCED): (P.PROVING, [A.PROVE]),
    (P.FENCING, E.FENCE_FAILED): (P.FENCING, [A.CLOSE_WRITER, A.OPEN_FENCE]),
    (P.PROVING, E.PROVED): (P.RESTORING, [A.RESTORE]),
    (P.PROVING, E.PROOF_REFUSED): (P.BARRED, [A.CLOSE_WRITER]),
    (P.PROVING, E.WRITER_LOST): (P.FENCING, [A.CLOSE_WRITER, A.OPEN_FENCE]),
    (P.RESTORING, E.RESTORED): (P.RUNNING, [A.RUN]),
    (P.RESTORING, E.WRITER_LOST): (P.FENCING, [A.CLOSE_WRITER, A.OPEN_FENCE]),
    (P.RESTORING, E.MIRROR_UNREADABLE): (P.BROKEN, [A.CLOSE_WRITER]),
    (P.RUNNING, E.WRITER_LOST): (P.FENCING, [A.PAUSE_RUNNERS, A.CLOSE_WRITER, A.OPEN_FENCE]),
    (P.RUNNING, E.MIRROR_UNREADABLE): (P.BROKEN, [A.STOP_RUNNERS, A.CLOSE_WRITER]),
}


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(P, E)), ids=lambda it: it.value)
def test_every_transition(phase: P, event: E) -> None:
    after, actions = step(phase, event)
    if event is E.UNASSIGNED:
        assert after is P.IDLE
        assert list(actions) == ([] if phase is P.IDLE else [A.STOP_RUNNERS, A.CLOSE_WRITER])
    else:
        expected, wanted = TRANSITIONS.get((phase, event), (phase, []))
        assert after is expected
        assert list(actions) == wanted


@given(st.lists(st.sampled_from(list(E)), max_size=40))
def test_running_is_reached_only_by_fence_proof_and_restore_in_that_order(events: list[E]) -> None:
    """S3: whatever happens, RUN comes after OPEN_FENCE, PROVE, RESTORE with no loss between; a writer lost is closed
    first.
    """
    phase = P.IDLE
    done: list[A] = []
    for event in events:
        before = phase
        phase, actions = step(phase, event)
        for action in actions:
            if action is A.RUN:
                last = [a for a in done if a in (A.OPEN_FENCE, A.PROVE, A.RESTORE, A.CLOSE_WRITER)][-3:]
                assert last == [A.OPEN_FENCE, A.PROVE, A.RESTORE]
            if action is A.OPEN_FENCE and before not in (P.IDLE, P.BARRED, P.BROKEN):
                assert done[-1] is A.CLOSE_WRITER
            done.append(action)


@given(st.frozensets(st.integers(0, 63)), st.frozensets(st.integers(0, 63)))
def test_s6_an_assignment_moves_only_what_must_move(held: frozenset[int], assigned: frozenset[int]) -> None:
    change = on_assignment(held, assigned)
    assert change.keep | change.start == assigned
    assert change.keep | change.stop == held
    assert not change.start & held
    assert not change.stop & assigned
