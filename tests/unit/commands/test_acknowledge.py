"""Acknowledging is moving the position to the lowest unfinished offset (W15), at most COMMANDS_AHEAD beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from streams.commands.acknowledge import Acknowledgements


def test_w15_the_position_waits_for_the_lowest_unfinished() -> None:
    acks = Acknowledgements(10, ahead=4)
    assert all(acks.take(offset) for offset in (10, 11, 12))
    assert acks.finish(11) == 10
    assert acks.finish(10) == 12
    assert acks.finish(12) == 13
    assert (acks.unfinished, acks.next_offset) == (0, 13)


def test_w15_gaps_left_by_transactions_are_passed() -> None:
    acks = Acknowledgements(0, ahead=4)
    acks.take(3)
    assert acks.position == 3
    acks.take(7)
    assert acks.finish(3) == 7


def test_w15_deliveries_seen_before_are_not_taken_again() -> None:
    acks = Acknowledgements(0, ahead=4)
    assert acks.take(0)
    assert not acks.take(0)
    acks.take(1)
    acks.finish(1)
    assert not acks.take(1)


def test_w15_settling_twice_or_what_was_never_taken_is_an_error() -> None:
    acks = Acknowledgements(5, ahead=4)
    acks.take(5)
    acks.take(6)
    acks.finish(6)
    for offset in (6, 4, 7):
        with pytest.raises(ValueError, match="not open"):
            acks.finish(offset)


def test_one_slow_delivery_lets_only_so_many_pass() -> None:
    acks = Acknowledgements(0, ahead=3)
    for offset in range(3):
        acks.take(offset)
    for offset in (1, 2):
        acks.finish(offset)
    assert acks.room == 0
    acks.finish(0)
    assert acks.room == 3


class Machine(RuleBasedStateMachine):
    """Against the naive model: a set of everything taken and a set of everything finished."""

    taken_offsets: Bundle[int] = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.acks = Acknowledgements(100, ahead=8)
        self.taken: list[int] = []
        self.finished: set[int] = set()
        self.before = 100

    @rule(target=taken_offsets, gap=st.integers(0, 3))
    def take(self, gap: int) -> int:
        offset = self.acks.next_offset + gap
        assert self.acks.take(offset)
        self.taken.append(offset)
        return offset

    @rule(offset=consumes(taken_offsets))
    def finish(self, offset: int) -> None:
        self.acks.finish(offset)
        self.finished.add(offset)

    @invariant()
    def agrees(self) -> None:
        unfinished = [offset for offset in self.taken if offset not in self.finished]
        assert self.acks.unfinished == len(unfinished)
        if self.taken:
            assert self.acks.position == (min(unfinished) if unfinished else self.taken[-1] + 1)
        assert self.acks.position >= self.before
        self.before = self.acks.position
        beyond = [offset for offset in self.taken if offset >= self.acks.position]
        assert self.acks.room == max(0, 8 - len(beyond))


TestAcknowledgements = Machine.TestCase


@given(order=st.permutations(list(range(12))))
def test_w15_property_any_order_of_finishing_ends_at_the_end(order: list[int]) -> None:
    acks = Acknowledgements(0, ahead=12)
    for offset in range(12):
        acks.take(offset)
    positions = [acks.finish(offset) for offset in order]
    assert positions == sorted(positions)
    assert positions[-1] == 12
