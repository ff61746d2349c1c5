"""Sessions of users and how their heat reaches accounts (row S12). Owns grace, coalescing and who belongs to whom.

A user's activity keeps every account of the user hot. It is passed on to the accounts with `until = at + 1.25 × grace`,
and not again before a quarter of the grace has passed: **whenever the user was active, the accounts are hot for at
least one grace from then**, and a user who pings every second costs an account four records per grace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

COALESCE: Final = 0.25
"""Part of the grace during which further activity of the user is already covered by what was passed on."""

MAX_ACCOUNTS_PER_USER: Final = 10_000
"""Accounts of one user that share its heat; a record with more would come near the size limit of a topic."""


@dataclass(frozen=True, slots=True)
class UserState:
    """Sessions and accounts of one user.

    `until` is when its heat ends, `forwarded_at` the activity that was last passed on, `accounts` the version under
    which each account joined.
    """

    until: datetime | None = None
    forwarded_at: datetime | None = None
    accounts: Mapping[str, int | None] = field(default_factory=dict)

    def heat(self, now: datetime) -> datetime | None:
        """Until when an account that joins now is hot; None without an active session."""
        return self.until if self.until is not None and self.until > now else None


def on_active(user: UserState, *, at: datetime, grace: timedelta, now: datetime) -> UserState | None:
    """The user's state after activity at `at` if that has to be passed on to the accounts; None if nothing changes.

    Activity in the future counts as now (a sender's clock must not prolong a session), activity whose grace is over, or
    older than what was passed on, changes nothing.
    """
    at = min(at, now)
    until = at + (1 + COALESCE) * grace
    if until <= now or (user.forwarded_at is not None and at < user.forwarded_at + COALESCE * grace):
        return None
    return replace(user, until=until, forwarded_at=at)


def on_member(user: UserState, account_id: str, *, member: bool, version: int | None) -> UserState | None:
    """The user's state after an account joined or left; None if nothing changes.

    An older version loses; one without a version is taken as it comes.
    Raises `ValueError` beyond `MAX_ACCOUNTS_PER_USER`.
    """
    present = account_id in user.accounts
    if not present and not member:
        return None
    known = user.accounts.get(account_id)
    if known is not None and version is not None and version < known:
        return None
    accounts = dict(user.accounts)
    if not member:
        del accounts[account_id]
    elif present and (version is None or version == known):
        return None
    elif not present and len(accounts) >= MAX_ACCOUNTS_PER_USER:
        raise ValueError(f"a user has more than {MAX_ACCOUNTS_PER_USER} accounts")
    else:
        accounts[account_id] = version
    return replace(user, accounts=accounts)
