"""Which live accounts a worker runs when it holds more than it may (row S2). Owns the choice; the host carries it out.

Invariants: never more than `capacity` accounts are chosen; what is served stays served (no churn) unless an account
with a session would otherwise wait, and then the coldest served account without a session makes room; a place that is
free goes to the hottest that waits: sessions first, then the newest mail. An account whose mail nobody has looked at
yet stands where its recorded tier puts it, so that old mail never keeps a new account waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from streams.domain.tiers import Tier, TierInput, by_mail


@dataclass(frozen=True, slots=True)
class PlacementInput:
    """A live account of the worker's partitions. `served` means that it has a runner (or is getting one).

    `tier` is the one that session and mail give it now, which `candidate` tells; a recorded one may be of long ago.
    """

    account_id: str
    tier: Tier
    session: bool
    newest_mail_at: datetime | None
    served: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """What to do, each list hottest first: stop before starting, so that the limit holds at every moment."""

    start: list[str]
    stop: list[str]
    unserved: list[str]


def candidate(
    account: TierInput, *, served: bool, hot_activity: timedelta, cold_after: timedelta, now: datetime
) -> PlacementInput:
    """How warm an account is at `now`, whether it is served or has been waiting since some owner's time."""
    session = account.has_session(now)
    tier: Tier = "hot" if session else by_mail(account, hot_activity=hot_activity, cold_after=cold_after, now=now)[0]
    return PlacementInput(account.account_id, tier, session, account.newest_mail_at, served)


def place(candidates: Iterable[PlacementInput], capacity: int) -> Placement:
    """Choose runners among `candidates` (each account once). Linear but for the accounts that wait or must go."""
    served: list[PlacementInput] = []
    waiting: list[PlacementInput] = []
    for candidate in candidates:
        (served if candidate.served else waiting).append(candidate)
    room = max(capacity, 0) - len(served)

    if room >= len(waiting):
        return Placement(start=_ids(sorted(waiting, key=_heat, reverse=True)), stop=[], unserved=[])

    stop: list[PlacementInput] = []
    if room < 0:
        stop = heapq.nsmallest(-room, served, key=_heat)
        gone = {account.account_id for account in stop}
        served = [account for account in served if account.account_id not in gone]
        room = 0

    waiting.sort(key=_heat, reverse=True)
    start, waiting = waiting[:room], waiting[room:]

    eager = [account for account in waiting if account.session]
    displaced = heapq.nsmallest(len(eager), (a for a in served if not a.session), key=_heat) if eager else []
    # Sessions sort first, so those that get a place are a prefix of what waits.
    start += eager[: len(displaced)]
    waiting = waiting[len(displaced) :]
    stop += displaced

    stop.sort(key=_heat, reverse=True)
    unserved = sorted(waiting + stop, key=_heat, reverse=True)
    return Placement(start=_ids(start), stop=_ids(stop), unserved=_ids(unserved))


def _ids(accounts: list[PlacementInput]) -> list[str]:
    return [account.account_id for account in accounts]


_WARMTH: Final[dict[Tier, int]] = {"cold": 0, "warm": 1, "hot": 2}


def _heat(account: PlacementInput) -> tuple[bool, int, float, str]:
    """Total order from coldest to hottest; the id only makes ties come out the same everywhere."""
    mail = account.newest_mail_at.timestamp() if account.newest_mail_at is not None else 0.0
    return account.session, _WARMTH[account.tier], mail, account.account_id
