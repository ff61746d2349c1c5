"""Order of events about an account's life: S8."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from streams.domain.lifecycle import Life, Verdict, judge

LIVE5 = Life("u", "live", 5)


def test_s8_the_first_event_applies() -> None:
    assert judge(None, LIVE5) == (Verdict.APPLIES, LIVE5)
    assert judge(None, Life("u", "live", None)) == (Verdict.APPLIES, Life("u", "live", None))


def test_s8_an_overtaken_event_does_nothing() -> None:
    assert judge(LIVE5, Life("u", "disabled", 4)) == (Verdict.OVERTAKEN, LIVE5)


def test_s8_a_newer_version_applies() -> None:
    assert judge(LIVE5, Life("u", "disabled", 6)) == (Verdict.APPLIES, Life("u", "disabled", 6))
    assert judge(LIVE5, Life("u", "live", 6)) == (Verdict.APPLIES, Life("u", "live", 6))


def test_s8_a_repeat_changes_nothing() -> None:
    assert judge(LIVE5, LIVE5) == (Verdict.REPEATS, LIVE5)
    assert judge(LIVE5, Life("u", "live", None)) == (Verdict.REPEATS, LIVE5)


def test_s8_without_a_version_arrival_decides_and_the_known_version_stays() -> None:
    verdict, after = judge(LIVE5, Life("u", "disabled", None))
    assert (verdict, after) == (Verdict.APPLIES, Life("u", "disabled", 5))
    assert judge(after, Life("u", "live", 4)) == (Verdict.OVERTAKEN, after)


def test_s7_the_row_wins_over_a_versionless_event_of_its_version() -> None:
    assert judge(Life("u", "disabled", 5), LIVE5) == (Verdict.APPLIES, LIVE5)


def test_s8_a_known_account_without_version_takes_the_first_version() -> None:
    assert judge(Life("u", "live", None), Life("u", "error", 1)) == (Verdict.APPLIES, Life("u", "error", 1))


def test_s8_only_live_lives() -> None:
    assert [s for s in ("live", "disabled", "deleted", "error") if Life("u", s, 1).live] == ["live"]


history = st.lists(
    st.tuples(st.sampled_from(["u", "v"]), st.sampled_from(["live", "disabled", "deleted", "error"])),
    min_size=1,
    max_size=8,
)


@given(history=history, seed=st.randoms(use_true_random=False), repeats=st.integers(1, 3))
def test_property_s8_any_order_and_repetition_ends_at_the_highest_version(
    history: list[tuple[str, str]], seed: random.Random, repeats: int
) -> None:
    events = [Life(user, state, version) for version, (user, state) in enumerate(history, 1)]
    told = events * repeats
    seed.shuffle(told)
    known: Life | None = None
    for event in told:
        verdict, after = judge(known, event)
        assert (verdict is Verdict.APPLIES) == (after != known)
        known = after
    assert known == events[-1]


@given(history=history)
def test_property_s8_without_versions_the_last_to_arrive_wins(history: list[tuple[str, str]]) -> None:
    known: Life | None = None
    for user, state in history:
        _, known = judge(known, Life(user, state, None))
    assert known == Life(*history[-1], None)
