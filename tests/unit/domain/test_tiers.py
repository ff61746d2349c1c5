"""Rules of tiers: S10 to S15."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.contracts import account as contract
from streams.domain import tiers
from streams.domain.tiers import (
    DEFAULT_TIER,
    Tier,
    TierDecision,
    TierInput,
    TierReason,
    evaluate,
    evaluate_in_slices,
    newest_mail,
    on_heat,
    on_mail,
    still_holds,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
HOT = timedelta(hours=24)
COLD = timedelta(days=14)
RULES: dict[str, Any] = {"hot_activity": HOT, "cold_after": COLD, "now": NOW}


def account(
    name: str = "a",
    tier: Tier = "warm",
    *,
    reason: TierReason = "default",
    mail: timedelta | None = None,
    session: timedelta | None = None,
    mail_known: bool = True,
) -> TierInput:
    """An account whose newest mail is `mail` old and whose session ends `session` from now."""
    return TierInput(
        account_id=name,
        tier=tier,
        reason=reason,
        heat_until=None if session is None else NOW + session,
        newest_mail_at=None if mail is None else NOW - mail,
        mail_known=mail_known,
    )


def decide(accounts: Iterable[TierInput], hot_budget: int = 1000) -> dict[str, tuple[Tier, TierReason]]:
    return {d.account_id: (d.tier, d.reason) for d in evaluate(accounts, hot_budget=hot_budget, **RULES)}


SECOND = timedelta(seconds=1)


def test_s11_first_sight_is_warm() -> None:
    assert DEFAULT_TIER == "warm"


def test_the_domain_and_the_contract_know_the_same_tiers_and_reasons() -> None:
    assert get_args(Tier) == get_args(contract.Tier)
    assert get_args(TierReason) == get_args(contract.TierReason)


@pytest.mark.parametrize(
    ("mail", "session", "expected"),
    [
        (HOT - SECOND, None, ("hot", "recent_mail")),
        (HOT, None, ("warm", "idle_mail")),
        (COLD - SECOND, None, ("warm", "idle_mail")),
        (COLD, None, ("cold", "idle_mail")),
        (None, None, ("cold", "no_mail")),
        (None, SECOND, ("hot", "session")),
        (COLD, SECOND, ("hot", "session")),
        (timedelta(0), SECOND, ("hot", "session")),
        (COLD, timedelta(0), ("cold", "idle_mail")),
        (HOT, -SECOND, ("warm", "idle_mail")),
    ],
)
@pytest.mark.parametrize("tier", ["hot", "warm", "cold"])
def test_s13_tier_by_session_and_newest_mail(
    tier: Tier, mail: timedelta | None, session: timedelta | None, expected: tuple[Tier, TierReason]
) -> None:
    changes = decide([account(tier=tier, mail=mail, session=session)])
    assert changes == ({} if tier == expected[0] else {"a": expected})


def test_s13_mail_dated_in_the_future_is_recent() -> None:
    assert decide([account(mail=-timedelta(hours=1))]) == {"a": ("hot", "recent_mail")}


def test_an_account_whose_mail_is_not_known_yet_keeps_its_tier() -> None:
    for tier in get_args(Tier):
        assert decide([account(tier=tier, mail_known=False)]) == {}
    assert decide([account(tier="cold", mail_known=False, session=SECOND)]) == {"a": ("hot", "session")}


def test_an_inherited_hot_account_counts_against_the_budget_before_its_mail_is_known() -> None:
    accounts = [account("a", "hot", mail_known=False), account("b", "hot", mail=SECOND)]
    assert decide(accounts, hot_budget=1) == {"a": ("warm", "budget")}
    assert decide(accounts, hot_budget=2) == {}


def test_s14_over_budget_the_least_recently_active_are_shed() -> None:
    accounts = [account(f"a{n}", "hot", mail=timedelta(minutes=n)) for n in range(10)]
    random.Random(3).shuffle(accounts)
    assert decide(accounts, hot_budget=7) == dict.fromkeys(("a7", "a8", "a9"), ("warm", "budget"))


def test_s14_a_session_that_ended_is_activity_too() -> None:
    accounts = [
        account("a", "hot", mail=timedelta(hours=3)),
        account("b", "hot", mail=timedelta(hours=5), session=-SECOND),
    ]
    assert decide(accounts, hot_budget=1) == {"a": ("warm", "budget")}


def test_s14_a_session_is_never_shed_and_takes_its_place_in_the_budget() -> None:
    sessions = [account(f"s{n}", "hot", session=SECOND) for n in range(5)]
    others = [account(f"m{n}", "hot", mail=timedelta(minutes=n)) for n in range(3)]
    for order in (sessions + others, others + sessions):
        assert decide(order, hot_budget=3) == {f"m{n}": ("warm", "budget") for n in range(3)}
        assert decide(order, hot_budget=6) == {f"m{n}": ("warm", "budget") for n in (1, 2)}
        assert decide(order, hot_budget=0) == {f"m{n}": ("warm", "budget") for n in range(3)}


def test_s14_what_is_over_budget_and_warm_already_is_no_change() -> None:
    assert decide([account(tier="warm", mail=SECOND)], hot_budget=0) == {}
    assert decide([account(tier="cold", mail=SECOND)], hot_budget=0) == {"a": ("warm", "budget")}


def test_s12_heat_promotes_at_once_and_its_end_does_not_demote_here() -> None:
    assert on_heat(account(tier="cold", session=SECOND), now=NOW) == TierDecision("a", "hot", "cold", "session")
    assert on_heat(account(tier="hot", session=SECOND), now=NOW) is None
    assert on_heat(account(tier="hot"), now=NOW) is None
    assert on_heat(account(tier="warm", session=timedelta(0)), now=NOW) is None


def test_new_mail_promotes_at_once_as_far_as_the_budget_reaches_and_never_demotes() -> None:
    def arrive(tier: Tier, mail: timedelta, hot: int = 0) -> tuple[Tier, TierReason] | None:
        decision = on_mail(account(tier=tier, mail=mail), hot_accounts=hot, hot_budget=1, **RULES)
        return None if decision is None else (decision.tier, decision.reason)

    assert arrive("cold", SECOND) == ("hot", "recent_mail")
    assert arrive("warm", SECOND) == ("hot", "recent_mail")
    assert arrive("cold", SECOND, hot=1) == ("warm", "budget")
    assert arrive("warm", SECOND, hot=1) is None
    assert arrive("hot", SECOND, hot=1) is None
    assert arrive("cold", HOT) == ("warm", "idle_mail")
    assert arrive("hot", HOT) is None
    assert arrive("hot", COLD) is None
    assert arrive("cold", COLD) is None


def test_a_mail_from_the_future_does_not_keep_an_account_hot_for_good() -> None:
    assert newest_mail(None, NOW + timedelta(days=9999), now=NOW) == NOW
    assert newest_mail(NOW - COLD, NOW - HOT, now=NOW) == NOW - HOT
    assert newest_mail(NOW - HOT, NOW - COLD, now=NOW) == NOW - HOT


def test_a_decision_lapses_when_the_account_changed_meanwhile() -> None:
    demotion = TierDecision("a", "warm", "hot", "budget")
    assert still_holds(demotion, account(tier="hot"), now=NOW)
    assert not still_holds(demotion, account(tier="cold"), now=NOW)
    assert not still_holds(demotion, account(tier="hot", session=SECOND), now=NOW)
    assert still_holds(TierDecision("a", "hot", "warm", "session"), account(tier="warm", session=SECOND), now=NOW)


moments = st.one_of(st.none(), st.integers(-20 * 24 * 60, 20 * 24 * 60).map(lambda m: NOW + timedelta(minutes=m)))
inputs = st.builds(
    TierInput,
    account_id=st.uuids().map(str),
    tier=st.sampled_from(get_args(Tier)),
    reason=st.sampled_from(get_args(TierReason)),
    heat_until=moments,
    newest_mail_at=moments,
    mail_known=st.booleans(),
)
populations = st.lists(inputs, max_size=60, unique_by=lambda a: a.account_id)


def applied(accounts: Iterable[TierInput], changes: Iterable[TierDecision]) -> list[TierInput]:
    by_id = {d.account_id: d for d in changes}
    return [
        a
        if (d := by_id.get(a.account_id)) is None
        else TierInput(a.account_id, d.tier, d.reason, a.heat_until, a.newest_mail_at, a.mail_known)
        for a in accounts
    ]


@given(accounts=populations, budget=st.integers(0, 30))
def test_property_s14_budget_sessions_and_only_changes(accounts: list[TierInput], budget: int) -> None:
    changes = evaluate(accounts, hot_budget=budget, **RULES)
    assert len({d.account_id for d in changes}) == len(changes)
    tiers_before = {a.account_id: a.tier for a in accounts}
    assert all(d.previous == tiers_before[d.account_id] != d.tier for d in changes)
    after = applied(accounts, changes)
    sessions = [a for a in after if a.has_session(NOW)]
    hot = [a for a in after if a.tier == "hot" and not a.has_session(NOW)]
    assert all(a.tier == "hot" for a in sessions)
    assert len(hot) <= max(budget - len(sessions), 0)
    # Shed accounts were not more recently active than those that stayed.
    shed = [a for a in after if any(d.account_id == a.account_id and d.reason == "budget" for d in changes)]
    if hot and shed:
        last = tiers._last_activity
        assert max(map(last, shed)) <= min(map(last, hot))
    if len(hot) + len(sessions) < budget:
        assert not shed


@given(accounts=populations, budget=st.integers(0, 30), size=st.integers(1, 70), seed=st.randoms(use_true_random=False))
def test_property_slices_and_order_do_not_matter(
    accounts: list[TierInput], budget: int, size: int, seed: random.Random
) -> None:
    whole = evaluate(accounts, hot_budget=budget, **RULES)
    shuffled = list(accounts)
    seed.shuffle(shuffled)
    sliced = [d for part in evaluate_in_slices(shuffled, hot_budget=budget, slice_accounts=size, **RULES) for d in part]
    assert sorted(sliced, key=lambda d: d.account_id) == sorted(whole, key=lambda d: d.account_id)


@given(accounts=populations, budget=st.integers(0, 30))
def test_property_a_second_evaluation_changes_nothing(accounts: list[TierInput], budget: int) -> None:
    changes = evaluate(accounts, hot_budget=budget, **RULES)
    assert evaluate(applied(accounts, changes), hot_budget=budget, **RULES) == []


def test_s16_100_000_accounts_never_hold_the_loop_for_50_ms() -> None:
    rng = random.Random(7)
    everyone = [
        account(
            f"{n:08d}",
            rng.choice(get_args(Tier)),
            mail=timedelta(minutes=rng.randrange(30 * 24 * 60)),
            session=SECOND if rng.random() < 0.05 else None,
        )
        for n in range(100_000)
    ]
    slices = evaluate_in_slices(everyone, hot_budget=5000, **RULES)
    held: list[float] = []
    changes = 0
    gc.collect()
    gc.disable()  # what is measured is the work of a slice; a worker's heap is frozen once it runs
    try:
        while True:
            began = time.thread_time()
            part = next(slices, None)
            held.append(time.thread_time() - began)
            if part is None:
                break
            changes += len(part)
    finally:
        gc.enable()
    assert changes > 10_000
    assert max(held) < 0.050
