"""Heat, tiers, limits, lifecycle and status with whole workers: S2, S7, S8, S10 to S15, S18."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from streams.directory.accounts import AccountStore
from streams.local.dovecot import Dovecot
from tests.e2e.conftest import AddAccount, NewFleet
from tests.e2e.sessions import sessions
from tests.rig.fleet import Fleet
from tests.rig.letters import ordinary
from tests.rig.mailer import Mailer
from tests.storm.checker.log import read_raw

OLD = timedelta(days=60)
"""Mail of this age makes an account cold."""

SHORT_SESSIONS = {"TIER_SESSION_GRACE_MIN": "0.1", "POLL_WARM": "60", "POLL_COLD": "60"}
"""Heat that ends after 7.5 s at most; no poll of its own within a test."""


async def until(condition: Callable[[], Awaitable[Any]], *, within_s: float = 90.0, what: str) -> Any:
    """The first true answer. When there is none, `AssertionError` with what was found instead."""
    asked = 0
    try:
        async with asyncio.timeout(within_s):
            while not (answer := await condition()):
                asked += 1
                await asyncio.sleep(0.5)
            return answer
    except TimeoutError:
        found = getattr(condition, "found", "no more is known")
        raise AssertionError(f"not within {within_s:g} s, asked {asked} times: {what}; {found}") from None


async def tiers_of(fleet: Fleet, account: str) -> list[tuple[str, str]]:
    """Changes of tier as published, in order."""
    found = []
    async for record in read_raw(fleet.kafka, "account.tier_changed"):
        if record.key == account.encode() and record.value:
            body = json.loads(record.value)
            found.append((body["tier"], body["reason"]))
    return found


async def status(fleet: Fleet) -> dict[str, Any]:
    """`faust -A streams status --json`."""
    code, output = await fleet.run("status", "--json")
    assert code == 0, output
    view: dict[str, Any] = json.loads(output)
    return view


async def with_mail(fleet: Fleet, add_account: AddAccount, dovecot: Dovecot, **options: Any) -> Mailer:
    """An account whose only mail is old."""
    mailer = await add_account(fleet, dovecot, age=OLD, **options)
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    return mailer


def reached(fleet: Fleet, mailer: Mailer, tier: str, reason: str, *, times: int = 1) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        found = await tiers_of(fleet, mailer.login.account)
        ask.found = f"tiers of {mailer.login.account}: {found}"  # type: ignore[attr-defined]
        return found.count((tier, reason)) >= times

    return ask


def connected(dovecot: Dovecot, mailer: Mailer, *, yes: bool) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return (await sessions(dovecot, mailer.login.username) > 0) is yes

    return ask


async def test_s12_s10_activity_heats_all_accounts_of_the_user_on_every_worker_and_ends(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet(SHORT_SESSIONS)
    mine = [await with_mail(fleet, add_account, dovecot, user_id="busy", partition=p) for p in range(fleet.partitions)]
    other = await with_mail(fleet, add_account, dovecot, user_id="idle")
    for mailer in (*mine, other):
        await asyncio.to_thread(mailer.close)
    await asyncio.gather(fleet.ready_worker("one"), fleet.ready_worker("two"))
    for mailer in (*mine, other):
        await until(reached(fleet, mailer, "cold", "idle_mail"), what="old mail makes an account cold")
        await until(connected(dovecot, mailer, yes=False), what="a cold account has no socket")
    began = time.monotonic()
    await fleet.active(mine[0].login.account)
    for mailer in mine:
        await until(connected(dovecot, mailer, yes=True), what="a hot account has a socket")
    assert time.monotonic() - began < 15
    for mailer in mine:
        await until(reached(fleet, mailer, "hot", "session"), what="the session is the reason")
        await until(reached(fleet, mailer, "cold", "idle_mail", times=2), what="the session ends")
        await until(connected(dovecot, mailer, yes=False), what="the socket closes")
    assert ("hot", "session") not in await tiers_of(fleet, other.login.account)
    assert await sessions(dovecot, other.login.username) == 0


async def test_s13_s15_new_mail_makes_hot_at_once_and_is_not_lost(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet()
    mailer = await with_mail(fleet, add_account, dovecot)
    await fleet.ready_worker("one")
    await until(reached(fleet, mailer, "cold", "idle_mail"), what="old mail makes an account cold")
    mailer.age = timedelta(0)
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(2))
    await until(reached(fleet, mailer, "hot", "recent_mail"), what="new mail makes it hot")
    await fleet.at_rest()


async def test_s14_over_the_budget_the_least_recently_active_are_warm(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet({"HOT_BUDGET_PER_WORKER": "1"})
    mailers = []
    for hours in (1, 3, 5):
        mailer = await add_account(fleet, dovecot, age=timedelta(hours=hours))
        await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
        mailers.append(mailer)
    await fleet.ready_worker("one")

    async def shed() -> bool:
        view = await status(fleet)
        return bool(view["by_tier"] == {"hot": 1, "warm": 2})

    await until(shed, what="one is hot, the others warm")
    newest, _, oldest = mailers
    tiers = await tiers_of(fleet, newest.login.account)
    assert tiers[-1][0] == "hot"
    # A session takes the place in the budget and is never shed.
    await fleet.active(oldest.login.account)
    await until(reached(fleet, oldest, "hot", "session"), what="a session is hot whatever the budget")
    await until(reached(fleet, newest, "warm", "budget"), what="what has no session makes room")


async def test_s2_what_is_over_the_limit_is_shown_and_a_session_displaces(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet({"MAX_ACCOUNTS_PER_WORKER": "1", "TIER_SESSION_GRACE_MIN": "5"})
    mailers = [await with_mail(fleet, add_account, dovecot) for _ in range(2)]
    await fleet.ready_worker("one")

    async def served() -> list[Mailer]:
        view = await status(fleet)
        if (view["served"], view["unserved"]) != (1, 1):
            return []
        return [m for m in mailers if m.login.account in phases(fleet, await last_statuses(fleet))]

    (first,) = await until(served, what="one is served, one is not, and status says so")
    second = next(m for m in mailers if m is not first)
    await fleet.active(second.login.account)
    await until(reached(fleet, second, "hot", "session"), what="the active user's account is served")
    await until(connected(dovecot, second, yes=True), what="and connected")


async def last_statuses(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """The newest status of each account."""
    found: dict[str, dict[str, Any]] = {}
    async for record in read_raw(fleet.kafka, "account.sync_status"):
        if record.key and record.value:
            found[record.key.decode()] = json.loads(record.value)
    return found


def phases(fleet: Fleet, statuses: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Phases of the accounts of the fleet that have a status."""
    return {account: statuses[account]["phase"] for account in fleet.mailers if account in statuses}


async def test_s8_disabled_closes_sockets_and_live_opens_them_over_and_over(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet({"TIER_SESSION_GRACE_MIN": "5"})
    mailer = await with_mail(fleet, add_account, dovecot)
    await fleet.ready_worker("one")
    await fleet.caught_up()
    await asyncio.to_thread(mailer.close)
    await fleet.active(mailer.login.account)
    for _ in range(3):
        await until(connected(dovecot, mailer, yes=True), what="live and hot: connected")
        began = time.monotonic()
        await fleet.change_state(mailer.login.account, "disabled")
        await until(connected(dovecot, mailer, yes=False), what="disabled: no socket")
        assert time.monotonic() - began < 30
        # What was overtaken does nothing.
        await fleet.announce(mailer.login.account, "live", version=1)
        await fleet.change_state(mailer.login.account, "live")


async def test_s7_what_was_never_announced_is_found_in_the_database(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet({"RECONCILE_S": "2"})
    before = await add_account(fleet, dovecot, announce=False)
    await asyncio.to_thread(before.append, "INBOX", ordinary(1))
    await fleet.ready_worker("one")
    await fleet.caught_up()
    after = await add_account(fleet, dovecot, announce=False)
    await asyncio.to_thread(after.append, "INBOX", ordinary(1))
    await fleet.caught_up()
    store = await AccountStore.open(fleet._settings())
    try:
        await store.set_state(after.login.account, "disabled", reason="off")
    finally:
        await store.close()

    async def off() -> bool:
        return bool((await status(fleet))["by_state"] == {"live": 1, "disabled": 1})

    await until(off, what="a state that was not announced is announced by the comparison")


async def test_s18_s11_status_names_workers_and_a_new_owner_inherits_the_tier(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet({"TIER_EVALUATION_S": "1"})
    mailers = [await with_mail(fleet, add_account, dovecot, partition=p) for p in range(fleet.partitions)]
    one = await fleet.ready_worker("one")
    for mailer in mailers:
        await until(reached(fleet, mailer, "cold", "idle_mail"), what="old mail makes an account cold")
    await fleet.ready_worker("two")

    async def shared() -> Any:
        view = await status(fleet)
        workers = {worker["worker"]: worker for worker in view["workers"]}
        complete = set(workers) == {"one", "two"} and view["unserved"] == 0 and not view["unassigned"]
        return workers if complete and all(worker["partitions"] for worker in workers.values()) else None

    workers = await until(shared, what="both have partitions and serve them")
    assert sum(worker["live"] for worker in workers.values()) == len(mailers)
    assert all(worker["by_tier"] == {"cold": worker["served"]} for worker in workers.values())
    await one.stop()

    async def alone() -> bool:
        view = await status(fleet)
        return [w["worker"] for w in view["workers"]] == ["two"] and view["by_tier"] == {"cold": len(mailers)}

    await until(alone, what="the other serves all, in the tiers that were recorded")
    for mailer in mailers:
        assert await tiers_of(fleet, mailer.login.account) == [("warm", "default"), ("cold", "idle_mail")]
