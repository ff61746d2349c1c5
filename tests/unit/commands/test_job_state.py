"""What is remembered of commands, and for how long (row W15)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.commands.job_state import REMEMBERED_FOR, CommandMemory, encode_state, encode_writer, state_key
from streams.commands.ports import CommandState
from streams.errors import MirrorDamaged

NOW = datetime(2026, 1, 10, tzinfo=UTC)
ACCOUNT = "6f3ed3b0-6f0a-4f7e-9b39-0c2f6a4f1c11"


def state(name: str, offset: int, age: timedelta = timedelta(0)) -> CommandState:
    return CommandState(ACCOUNT, name, 1, "success", offset, NOW - age)


def test_w15_records_are_read_back_as_they_were_written() -> None:
    memory = CommandMemory(10)
    key, value = encode_state(state("c", 3))
    memory.load(key, value)
    assert memory.get(ACCOUNT, "c") == state("c", 3)
    memory.load(*encode_writer("run", 7, "w"))
    assert memory.writer is not None
    assert (memory.writer.run, memory.writer.entries) == ("run", 7)
    memory.load(key, None)
    assert memory.get(ACCOUNT, "c") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"{}"), (b"account/c", b"{"), (b"account/c", b"{}"), (b"other", encode_state(state("c", 1))[1])],
)
def test_a_record_that_cannot_be_read_is_never_nothing_known(key: bytes | None, value: bytes) -> None:
    with pytest.raises(MirrorDamaged):
        CommandMemory(10).load(key, value)


def test_old_ones_are_forgotten_and_what_may_come_again_is_not() -> None:
    memory = CommandMemory(10)
    old = REMEMBERED_FOR + timedelta(hours=1)
    memory.put(state("old", 1, old))
    memory.put(state("old but unfinished before it", 20, old))
    memory.put(state("new", 2))
    assert memory.expire(NOW, 10, at_most=5) == [state_key(ACCOUNT, "old")]
    assert memory.get(ACCOUNT, "old but unfinished before it") is not None
    assert memory.get(ACCOUNT, "new") is not None


@given(count=st.integers(0, 40), limit=st.integers(1, 20), position=st.integers(0, 40), at_most=st.integers(1, 50))
def test_property_memory_is_bounded_but_never_loses_what_lies_beyond_the_position(
    count: int, limit: int, position: int, at_most: int
) -> None:
    memory = CommandMemory(limit)
    for offset in range(count):
        memory.put(state(f"c{offset}", offset))
    expired = memory.expire(NOW, position, at_most)
    assert len(expired) <= at_most
    kept = {offset for offset in range(count) if memory.get(ACCOUNT, f"c{offset}") is not None}
    assert set(range(position, count)) <= kept
    if at_most == 50:
        assert len(kept) <= max(limit, count - position)
