"""Whatever a record holds, it is a command, misplaced, or poison for a known reason (row W13)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.commands.dead_letters import DeadLetter, LetterUnknown, again
from streams.commands.handlers import Handlers
from streams.commands.ports import Delivery
from streams.commands.publishing import MAX_EVENT_BYTES, dead_letter, one_line
from streams.commands.validation import Misplaced, Runnable, judge, read_envelope
from streams.contracts.codec import header
from streams.contracts.keys import partition_for
from streams.errors import PoisonRecord
from tests.unit.commands.rig import ACCOUNT, command_of

REASONS = {"not_json", "schema", "too_large", "wrong_key", "expired", "unknown_kind"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Args(msgspec.Struct, frozen=True):
    number: int = 0


async def noop(args: Args, task: object) -> None: ...


handlers = Handlers()
handlers.add("noop", noop, args=Args)


def outcome(delivery: Delivery) -> str:
    """`command`, or the reason why it is none; anything else is raised."""
    try:
        read = read_envelope(delivery, 1)
        judged = read if isinstance(read, Misplaced) else judge(read, handlers, NOW)
    except PoisonRecord as poison:
        return poison.reason if len(str(poison)) < 2000 else "too much said"
    return "command" if isinstance(judged, Misplaced | Runnable) else "neither"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(key=st.none() | st.binary(max_size=40) | st.just(ACCOUNT.encode()), value=st.none() | st.binary(max_size=300))
def test_w13_fuzz_any_bytes_have_an_outcome(key: bytes | None, value: bytes | None) -> None:
    assert outcome(Delivery(0, 0, key, value)) in {"command", *REASONS}


@given(changes=st.dictionaries(st.sampled_from(["command_id", "kind", "at", "args", "deadline", "x"]), values))
def test_w13_fuzz_any_envelope_has_an_outcome(changes: dict[str, Any]) -> None:
    plain = json.loads(msgspec.json.encode(command_of("noop", number=1)))
    delivery = Delivery(0, 0, ACCOUNT.encode(), json.dumps({**plain, **changes}).encode())
    assert outcome(delivery) in {"command", *REASONS}


@given(
    key=st.none() | st.binary(max_size=3000),
    size=st.none() | st.integers(0, 10) | st.just(MAX_EVENT_BYTES + 1),
    headers=st.lists(st.tuples(st.text(max_size=10), st.binary(max_size=9000)), max_size=6),
    error=st.text(max_size=3000),
)
def test_w13_property_a_dead_letter_always_fits_and_says_where_it_is_from(
    key: bytes | None, size: int | None, headers: list[tuple[str, bytes]], error: str
) -> None:
    value = None if size is None else b"x" * size
    letter = dead_letter("sync.jobs", Delivery(3, 17, key, value, headers), "schema", error)
    assert letter.key is not None or letter.value is not None
    whole = len(letter.key or b"") + len(letter.value or b"") + sum(len(n.encode()) + len(v) for n, v in letter.headers)
    assert whole < 1_048_576
    assert header(letter.headers, "dlq_offset") == b"17"
    if value is not None and len(value) > MAX_EVENT_BYTES:
        assert header(letter.headers, "dlq_cut_from_bytes") == str(len(value)).encode()


@given(st.text())
def test_property_messages_are_one_encodable_line(text: str) -> None:
    line = one_line(text)
    assert line.encode()
    assert "\n" not in line


def test_w13_a_misplaced_command_that_cannot_be_sent_on_is_poison() -> None:
    """Compressed, its headers may be larger than any topic takes again; then its partition would stand still."""
    value = msgspec.json.encode(command_of("noop"))
    wrong = next(partition for partition in range(2) if partition != partition_for(ACCOUNT, 2))
    with pytest.raises(PoisonRecord) as caught:
        read_envelope(Delivery(wrong, 0, ACCOUNT.encode(), value, [("name", b"v" * 5_000_000)]), 2)
    assert caught.value.reason == "too_large"
    kept = read_envelope(Delivery(wrong, 0, ACCOUNT.encode(), value, [("name", b"v" * 5_000)]), 2)
    assert isinstance(kept, Misplaced)


@pytest.mark.parametrize("mark", ["dlq_cut_from_bytes", "dlq_truncated"])
def test_a_letter_that_was_cut_is_not_sent_again(mark: str) -> None:
    letter = DeadLetter("user.active", 0, 7, b"key", b"{", [(mark, b"1")], NOW)
    with pytest.raises(LetterUnknown):
        again(letter, NOW)
