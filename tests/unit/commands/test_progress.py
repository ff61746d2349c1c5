"""Progress is dropped for a counted reason, or published in rising order (row W12)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.commands.progress import DROP_REASONS, Progress, ProgressGate


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None, True, [0.5]])
def test_w12_invalid_fractions_are_dropped(fraction: Any) -> None:
    gate = ProgressGate()
    assert gate.offer(fraction) == "invalid_fraction"
    assert gate.take() is None


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"messages": "3"}, None),
        ({"messages": True}, None),
        ({3: 3}, None),
        ({"messages": 2**63}, None),
        ([("messages", 3)], None),
        ({f"n{i}": i for i in range(51)}, None),
        ({"bad\udc80": 1}, None),
        (None, b"bytes"),
        (None, "x" * 501),
        (None, "bad\udc80"),
    ],
)
def test_w12_invalid_payloads_are_dropped(counts: Any, message: Any) -> None:
    gate = ProgressGate()
    assert gate.offer(0.5, counts, message) == "invalid_payload"
    assert gate.offer(0.5) is None


def test_w12_what_does_not_increase_is_dropped() -> None:
    gate = ProgressGate()
    assert gate.offer(0.5) is None
    gate.take()
    assert gate.offer(0.5) == "not_increasing"
    assert gate.offer(0.4) == "not_increasing"


def test_w12_a_newer_report_replaces_one_that_has_not_gone_out() -> None:
    gate = ProgressGate()
    assert gate.offer(0.0, {"messages": 1}) is None
    assert gate.offer(0.2, {"messages": 2}, "halfway") == "coalesced"
    assert gate.take() == Progress(0.2, {"messages": 2}, "halfway")
    assert gate.take() is None


def test_w12_after_the_conclusion_nothing_goes_out() -> None:
    gate = ProgressGate()
    gate.offer(0.5)
    assert gate.close() == "concluded"
    assert gate.take() is None
    assert gate.offer(0.9) == "concluded"
    assert gate.close() is None


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.booleans()), max_size=40))
def test_w12_property_what_goes_out_rises_and_every_drop_has_a_reason(steps: list[tuple[float, bool]]) -> None:
    gate = ProgressGate()
    published: list[float] = []
    dropped = 0
    for fraction, publish in steps:
        reason = gate.offer(fraction)
        assert reason is None or reason in DROP_REASONS
        dropped += reason is not None
        if publish and (progress := gate.take()):
            published.append(progress.fraction)
    dropped += gate.close() is not None
    assert published == sorted(set(published))
    assert len(published) + dropped == len(steps)
