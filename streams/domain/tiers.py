"""Which tier an account belongs to, and why (rows S10 to S15). Owns the rules; the shards own the recorded tiers.

====================  ======  ===========================================================================
session is active     hot     `session`; promoted at once, never shed
mail < hot activity   hot     `recent_mail`, as far as the budget reaches, most recently active first
the same, no budget   warm    `budget`
mail < cold after     warm    `idle_mail`
mail older            cold    `idle_mail`
no mail at all        cold    `no_mail`
never evaluated       warm    `default`
====================  ======  ===========================================================================

Invariants: an account with a session is hot whatever the budget; accounts without one are hot only while all hot
accounts together fit the budget; a decision comes out only where the tier differs from the recorded one, so a reason
tells why the account came to its tier. Promotion by activity is immediate (`on_heat`, `on_mail`), demotion waits for
`evaluate`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

Tier = Literal["hot", "warm", "cold"]
TierReason = Literal["session", "recent_mail", "idle_mail", "no_mail", "budget", "default"]

DEFAULT_TIER: Final[Tier] = "warm"
"""The tier on first sight (S11); later owners inherit what was recorded."""

SLICE_ACCOUNTS: Final = 1000
"""Accounts per slice of an evaluation: about 3 ms of work, far below the 50 ms for which the loop may be held."""


@dataclass(frozen=True, slots=True)
class TierInput:
    """What is known of an account. `mail_known` is False until its mail was looked at once: it then keeps its tier."""

    account_id: str
    tier: Tier
    reason: TierReason
    heat_until: datetime | None
    newest_mail_at: datetime | None
    mail_known: bool = True

    def has_session(self, now: datetime) -> bool:
        """Whether a session keeps the account hot at `now`."""
        return self.heat_until is not None and self.heat_until > now


@dataclass(frozen=True, slots=True)
class TierDecision:
    """A change of tier. `previous` is the tier it was taken on: it lapses when the account has another by now."""

    account_id: str
    tier: Tier
    previous: Tier
    reason: TierReason


def newest_mail(known: datetime | None, candidate: datetime, *, now: datetime) -> datetime:
    """Newest mail's date after seeing one of `candidate`. A date in the future counts as the moment it was seen.

    Otherwise one message from the year 2099 would keep its account hot for good.
    """
    seen = min(candidate, now)
    return seen if known is None else max(known, seen)


def by_mail(
    account: TierInput, *, hot_activity: timedelta, cold_after: timedelta, now: datetime
) -> tuple[Tier, TierReason]:
    """Tier that an account without a session has by its mail alone, were there no budget."""
    if not account.mail_known:
        return account.tier, account.reason
    if account.newest_mail_at is None:
        return "cold", "no_mail"
    age = now - account.newest_mail_at
    if age < hot_activity:
        return "hot", "recent_mail"
    return ("warm", "idle_mail") if age < cold_after else ("cold", "idle_mail")


def on_heat(account: TierInput, *, now: datetime) -> TierDecision | None:
    """The session heat of an account was set: hot at once if it is active. A session that ends demotes nothing here."""
    if account.tier != "hot" and account.has_session(now):
        return TierDecision(account.account_id, "hot", account.tier, "session")
    return None


def on_mail(
    account: TierInput,
    *,
    hot_accounts: int,
    hot_budget: int,
    hot_activity: timedelta,
    cold_after: timedelta,
    now: datetime,
) -> TierDecision | None:
    """New mail arrived: the account rises at once as far as its mail and the budget allow; it never sinks here.

    `hot_accounts` is how many accounts of the worker are hot at the moment.
    """
    tier, reason = by_mail(account, hot_activity=hot_activity, cold_after=cold_after, now=now)
    if tier == "hot" and account.tier != "hot" and hot_accounts >= hot_budget:
        tier, reason = "warm", "budget"
    if _WARMTH[tier] > _WARMTH[account.tier]:
        return TierDecision(account.account_id, tier, account.tier, reason)
    return None


def evaluate(
    accounts: Iterable[TierInput], *, hot_budget: int, hot_activity: timedelta, cold_after: timedelta, now: datetime
) -> list[TierDecision]:
    """All changes of tier that are due at `now`, in one go. See `evaluate_in_slices` for many accounts."""
    slices = evaluate_in_slices(
        accounts, hot_budget=hot_budget, hot_activity=hot_activity, cold_after=cold_after, now=now
    )
    return [decision for changes in slices for decision in changes]


def evaluate_in_slices(
    accounts: Iterable[TierInput],
    *,
    hot_budget: int,
    hot_activity: timedelta,
    cold_after: timedelta,
    now: datetime,
    slice_accounts: int = SLICE_ACCOUNTS,
) -> Iterator[list[TierDecision]]:
    """The same changes, a list (perhaps empty) after every `slice_accounts` accounts, between which others can run.

    One pass, O(log budget) per account. A decision is final when it comes out; but the account may have changed since
    its input was read, so ask `still_holds` before applying it.
    """
    # The most recently active accounts without a session that still fit. The bound only ever shrinks (each session
    # takes a place), so what is pushed out stays out.
    kept: list[tuple[float, str, TierInput]] = []
    places = max(hot_budget, 0)
    changes: list[TierDecision] = []

    def decide(account: TierInput, tier: Tier, reason: TierReason) -> None:
        if tier != account.tier:
            changes.append(TierDecision(account.account_id, tier, account.tier, reason))

    for count, account in enumerate(accounts, 1):
        if account.has_session(now):
            decide(account, "hot", "session")
            places -= 1
        else:
            tier, reason = by_mail(account, hot_activity=hot_activity, cold_after=cold_after, now=now)
            if tier == "hot":
                heapq.heappush(kept, (_last_activity(account), account.account_id, account))
            else:
                decide(account, tier, reason)
        if len(kept) > max(places, 0):
            # One account came or one place went, so one has to leave.
            decide(heapq.heappop(kept)[2], "warm", "budget")
        if count % slice_accounts == 0:
            yield changes
            changes = []
    for start in range(0, len(kept), slice_accounts):
        for _, _, account in kept[start : start + slice_accounts]:
            decide(account, "hot", account.reason if not account.mail_known else "recent_mail")
        yield changes
        changes = []
    yield changes


def still_holds(decision: TierDecision, account: TierInput, *, now: datetime) -> bool:
    """Whether a decision may be applied to the account as it is by now: same tier, and no session that it would cut."""
    return account.tier == decision.previous and (decision.tier == "hot" or not account.has_session(now))


def _last_activity(account: TierInput) -> float:
    """When the account was last of use, as seconds since the epoch: its newest mail or the end of its last session."""
    moments = [moment.timestamp() for moment in (account.newest_mail_at, account.heat_until) if moment is not None]
    return max(moments, default=0.0)


_WARMTH: Final[dict[Tier, int]] = {"cold": 0, "warm": 1, "hot": 2}
