"""Which accounts mail makes hot, and at what price (rows S13, S14)."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from streams.domain.tiers import Tier, TierReason
from streams.observer import NoopObserver
from streams.sync.hosting import Host
from streams.sync.runner import AccountRunner
from tests.fixtures.engine import engine_settings


class Shard:
    """Where the accounts are."""

    partition = 0


class Runner:
    """An account that has new mail; `looks` counts how often any account was asked for its tier."""

    looks = 0
    shard = Shard()
    tier_reason: TierReason = "default"
    mail_known = True

    def __init__(self, account_id: str) -> None:
        self.account_id = account_id
        self.newest_mail_at = time.time()
        self._tier: Tier = "warm"

    @property
    def tier(self) -> Tier:
        Runner.looks += 1
        return self._tier

    def set_tier(self, tier: Tier, reason: TierReason) -> None:
        self._tier, self.tier_reason = tier, reason


def filled(accounts: int, budget: int) -> tuple[Host, list[Runner]]:
    """A worker with accounts that are all warm."""
    settings = engine_settings(HOT_BUDGET_PER_WORKER=budget)
    host = Host(settings, cast(Any, None), NoopObserver(), worker="w1")
    runners = [Runner(str(number)) for number in range(accounts)]
    host._runners = {runner.account_id: cast(AccountRunner, runner) for runner in runners}
    return host, runners


async def test_s14_mail_makes_no_more_accounts_hot_than_the_budget_allows() -> None:
    host, runners = filled(accounts=10, budget=3)
    for runner in runners:
        host._mail_seen(cast(AccountRunner, runner))
    assert [runner.tier for runner in runners] == ["hot"] * 3 + ["warm"] * 7


async def test_s13_a_worker_that_is_filled_does_not_count_all_accounts_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, runners = filled(accounts=500, budget=500)
    monkeypatch.setattr(Runner, "looks", 0)
    for runner in runners:
        host._mail_seen(cast(AccountRunner, runner))
    assert Runner.looks < 20 * len(runners)
    assert all(runner.tier == "hot" for runner in runners)
