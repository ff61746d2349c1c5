"""Session heat, its coalescing, and which accounts share it: S12."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.domain import sessions
from streams.domain.sessions import UserState, on_active, on_member

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GRACE = timedelta(minutes=16)
MINUTE = timedelta(minutes=1)


def active(user: UserState, at: datetime, now: datetime | None = None) -> UserState | None:
    return on_active(user, at=at, grace=GRACE, now=at if now is None else now)


def test_s12_activity_lasts_for_a_grace_and_a_quarter() -> None:
    assert active(UserState(), NOW) == UserState(until=NOW + 20 * MINUTE, forwarded_at=NOW)


def test_s12_activity_within_a_quarter_of_the_grace_is_not_passed_on() -> None:
    user = active(UserState(), NOW)
    assert user is not None
    assert active(user, NOW + 4 * MINUTE - timedelta(microseconds=1)) is None
    assert active(user, NOW + 4 * MINUTE) == UserState(until=NOW + 24 * MINUTE, forwarded_at=NOW + 4 * MINUTE)


def test_s12_old_repeated_and_overtaken_activity_changes_nothing() -> None:
    user = active(UserState(), NOW)
    assert user is not None
    assert active(user, NOW) is None
    assert active(user, NOW - 10 * MINUTE, now=NOW) is None
    assert active(UserState(), NOW - 20 * MINUTE, now=NOW) is None


def test_s12_a_clock_ahead_does_not_prolong_the_session() -> None:
    assert active(UserState(), NOW + timedelta(days=400), now=NOW) == active(UserState(), NOW)


def test_s12_heat_of_a_user_ends() -> None:
    user = UserState(until=NOW)
    assert user.heat(NOW - MINUTE) == NOW
    assert user.heat(NOW) is None
    assert UserState().heat(NOW) is None


def test_s12_accounts_join_and_leave() -> None:
    user = on_member(UserState(until=NOW), "a", member=True, version=1)
    assert user == UserState(until=NOW, accounts={"a": 1})
    assert on_member(user, "a", member=True, version=1) is None
    assert on_member(user, "a", member=True, version=None) is None
    assert on_member(user, "a", member=False, version=0) is None
    assert on_member(user, "b", member=False, version=9) is None
    assert on_member(user, "a", member=True, version=3) == UserState(until=NOW, accounts={"a": 3})
    assert on_member(user, "a", member=False, version=2) == UserState(until=NOW)
    assert on_member(user, "a", member=False, version=None) == UserState(until=NOW)


def test_s12_a_state_is_never_changed_in_place() -> None:
    user = UserState(accounts={"a": 1})
    on_member(user, "b", member=True, version=1)
    on_member(user, "a", member=False, version=1)
    assert user == UserState(accounts={"a": 1})


def test_s16_a_user_with_too_many_accounts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_ACCOUNTS_PER_USER", 1)
    user = UserState(accounts={"a": 1})
    with pytest.raises(ValueError, match="more than 1 accounts"):
        on_member(user, "b", member=True, version=1)
    assert on_member(user, "a", member=True, version=2) is not None


@given(st.lists(st.integers(0, 100 * 60), max_size=60).map(sorted))
def test_property_s12_accounts_are_hot_a_whole_grace_after_any_activity_and_records_are_few(pings: list[int]) -> None:
    user = UserState()
    forwarded = 0
    for second in pings:
        at = NOW + timedelta(seconds=second)
        after = active(user, at)
        if after is not None:
            user, forwarded = after, forwarded + 1
        assert user.until is not None
        assert user.until >= at + GRACE
    if pings:
        assert forwarded <= 1 + (pings[-1] - pings[0]) / (GRACE.total_seconds() / 4)
