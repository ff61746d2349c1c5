"""Which accounts a worker runs when it has more than it may: S2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from streams.domain.placement import Placement, PlacementInput, candidate, place
from streams.domain.tiers import Tier, TierInput

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def account(
    name: str, tier: Tier = "warm", *, session: bool = False, served: bool = False, mail_h: int | None = None
) -> PlacementInput:
    mail = None if mail_h is None else NOW - timedelta(hours=mail_h)
    return PlacementInput(name, tier, session, mail, served)


def test_s2_everything_runs_while_there_is_room_hottest_first() -> None:
    candidates = [
        account("a", "cold"),
        account("b", "hot"),
        account("c", served=True),
        account("d", "hot", session=True),
    ]
    assert place(candidates, 4) == Placement(start=["d", "b", "a"], stop=[], unserved=[])


def test_s2_over_the_limit_the_hottest_run_and_the_rest_is_unserved() -> None:
    candidates = [account("a", "cold"), account("b", "hot"), account("c", "warm"), account("d", "hot", session=True)]
    assert place(candidates, 2) == Placement(start=["d", "b"], stop=[], unserved=["c", "a"])


def test_s2_within_a_tier_the_newest_mail_goes_first() -> None:
    candidates = [account("a", mail_h=5), account("b", mail_h=1), account("c"), account("d", mail_h=3)]
    assert place(candidates, 2) == Placement(start=["b", "d"], stop=[], unserved=["a", "c"])


def test_s2_room_that_appears_goes_to_the_hottest_that_waits() -> None:
    candidates = [account("a", "warm", served=True), account("b", "cold"), account("c", "hot")]
    assert place(candidates, 2) == Placement(start=["c"], stop=[], unserved=["b"])


def test_s2_a_hotter_account_without_a_session_displaces_nobody() -> None:
    candidates = [account("a", "cold", served=True), account("b", "hot")]
    assert place(candidates, 1) == Placement(start=[], stop=[], unserved=["b"])


def test_s2_an_active_user_displaces_the_coldest_without_a_session() -> None:
    candidates = [
        account("a", "hot", served=True),
        account("b", "cold", served=True, mail_h=1),
        account("c", "cold", served=True, mail_h=9),
        account("d", "hot", session=True, served=True),
        account("e", "hot", session=True),
    ]
    assert place(candidates, 4) == Placement(start=["e"], stop=["c"], unserved=["c"])


def test_s2_a_session_never_displaces_a_session() -> None:
    candidates = [account("a", "hot", session=True, served=True), account("b", "hot", session=True)]
    assert place(candidates, 1) == Placement(start=[], stop=[], unserved=["b"])


def test_s2_a_lower_limit_stops_the_coldest() -> None:
    candidates = [
        account("a", "hot", served=True),
        account("b", "cold", served=True),
        account("c", "warm", served=True),
    ]
    assert place(candidates, 1) == Placement(start=[], stop=["c", "b"], unserved=["c", "b"])
    assert place(candidates, 0) == Placement(start=[], stop=["a", "c", "b"], unserved=["a", "c", "b"])
    assert place(candidates, -1) == place(candidates, 0)


candidates_ = st.lists(
    st.builds(
        PlacementInput,
        account_id=st.uuids().map(str),
        tier=st.sampled_from(get_args(Tier)),
        session=st.booleans(),
        newest_mail_at=st.one_of(st.none(), st.integers(0, 5).map(lambda h: NOW - timedelta(hours=h))),
        served=st.booleans(),
    ),
    max_size=40,
    unique_by=lambda a: a.account_id,
)


@given(candidates=candidates_, capacity=st.integers(0, 45))
def test_property_s2_limit_churn_and_displacement(candidates: Sequence[PlacementInput], capacity: int) -> None:
    by_id = {a.account_id: a for a in candidates}
    served = {a.account_id for a in candidates if a.served}
    outcome = place(candidates, capacity)
    running = (served - set(outcome.stop)) | set(outcome.start)
    assert set(outcome.stop) <= served
    assert not set(outcome.start) & served
    assert len(running) == min(capacity, len(candidates)) or (len(running) <= capacity and not outcome.unserved)
    assert set(outcome.unserved) == set(by_id) - running
    # Who waits with a session waits behind sessions only.
    if any(by_id[i].session for i in outcome.unserved):
        assert all(by_id[i].session for i in running)
    # Beyond what the limit forces, only accounts with a session displace.
    forced = max(len(served) - capacity, 0)
    assert len(outcome.stop) - forced <= sum(by_id[i].session for i in outcome.start)


@given(candidates=candidates_, capacity=st.integers(0, 45))
def test_property_s2_a_placement_that_was_carried_out_is_stable(
    candidates: Sequence[PlacementInput], capacity: int
) -> None:
    outcome = place(candidates, capacity)
    after = [
        PlacementInput(
            a.account_id,
            a.tier,
            a.session,
            a.newest_mail_at,
            (a.served and a.account_id not in outcome.stop) or a.account_id in outcome.start,
        )
        for a in candidates
    ]
    assert place(after, capacity) == Placement(start=[], stop=[], unserved=outcome.unserved)


def known(
    name: str, tier: Tier, *, mail_h: int | None, session_h: int | None = None, mail_known: bool = True
) -> TierInput:
    mail = None if mail_h is None else NOW - timedelta(hours=mail_h)
    until = None if session_h is None else NOW + timedelta(hours=session_h)
    return TierInput(name, tier, "default", until, mail, mail_known=mail_known)


def warmth(account: TierInput) -> PlacementInput:
    return candidate(account, served=False, hot_activity=timedelta(hours=24), cold_after=timedelta(days=14), now=NOW)


def test_s2_how_warm_one_is_that_waits_is_told_by_its_mail_and_not_by_what_was_recorded_once() -> None:
    was_hot = known("a", "hot", mail_h=24 * 30)
    was_cold = known("b", "cold", mail_h=1)
    assert [warmth(each).tier for each in (was_hot, was_cold)] == ["cold", "hot"]
    assert place(map(warmth, (was_hot, was_cold)), 1) == Placement(start=["b"], stop=[], unserved=["a"])


def test_s2_sessions_go_first_then_the_newest_mail_and_who_was_never_looked_at_goes_before_old_mail() -> None:
    waiting = [
        known("old", "cold", mail_h=24 * 20),
        known("older", "cold", mail_h=24 * 40),
        known("new", "warm", mail_h=None, mail_known=False),
        known("today", "hot", mail_h=2),
        known("this hour", "hot", mail_h=1),
        known("here", "cold", mail_h=24 * 90, session_h=1),
        known("was here", "hot", mail_h=24 * 50, session_h=-1),
    ]
    expected = ["here", "this hour", "today", "new", "old", "older", "was here"]
    assert place(map(warmth, waiting), 0).unserved == expected


def test_s2_an_active_user_displaces_the_one_with_the_oldest_mail() -> None:
    served = [known("a", "cold", mail_h=24 * 20), known("b", "hot", mail_h=24 * 40), known("c", "warm", mail_h=48)]
    candidates = [replace(warmth(each), served=True) for each in served]
    candidates.append(warmth(known("d", "cold", mail_h=24 * 90, session_h=1)))
    assert place(candidates, 3) == Placement(start=["d"], stop=["b"], unserved=["b"])
