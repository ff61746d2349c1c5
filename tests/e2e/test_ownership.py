"""Two workers: who owns what, through joins, leaves, deaths and pauses. Nothing lost, nothing doubled, no zombie."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from streams.local.dovecot import Dovecot
from tests.e2e.conftest import AddAccount, NewFleet
from tests.e2e.sessions import sessions
from tests.rig.fleet import Fleet
from tests.rig.letters import ordinary
from tests.rig.mailer import Mailer
from tests.rig.worker import Worker

BACKFILL = 5000
BUSY_S = 4.0
"""What a machine may lose that runs several such fleets at once; on an idle one it is not needed."""

# Backstop only, as everywhere; these take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)


def worker_of(writer: str | None) -> str:
    return (writer or "").rpartition("/")[0]


async def a_backfill(fleet: Fleet, add_account: AddAccount, dovecot: Dovecot, number: int = BACKFILL) -> Mailer:
    """An account with a long history, in a folder of its own."""
    mailer = await add_account(fleet, dovecot)
    mail = [ordinary(n) for n in range(number)]
    await asyncio.to_thread(mailer.append_many, "INBOX", mail)
    return mailer


async def in_the_middle(fleet: Fleet, mailer: Mailer, least: int = 500) -> Worker:
    """Wait until the backfill is under way; returns the worker that does it."""
    account = mailer.login.account
    await fleet.watch.until(
        lambda: len(fleet.watch.of(account, "message.added")) >= least, within_s=60, what="the backfill is under way"
    )
    return fleet.workers[worker_of(fleet.watch.of(account)[-1].writer)]


def other_than(fleet: Fleet, worker: Worker) -> Worker:
    return next(w for w in fleet.workers.values() if w is not worker)


def by_successor(fleet: Fleet, account: str, first: Worker) -> bool:
    return worker_of(fleet.watch.of(account)[-1].writer) != first.name


async def test_s1_s5_kill_9_during_a_backfill_loses_and_doubles_nothing(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    """kill -9 of the owner in the middle of 5,000 messages: its successor goes on where the log ends. S1, S5, S17."""
    fleet = await new_fleet({"FETCH_CHUNK": "100", "FETCH_WINDOW": "200", "BACKFILL_MESSAGES_PER_S": "800"})
    mailer = await a_backfill(fleet, add_account, dovecot)
    await asyncio.gather(fleet.ready_worker("one"), fleet.ready_worker("two"))
    owner = await in_the_middle(fleet, mailer)
    before = len(fleet.watch.of(mailer.login.account, "message.added"))
    assert before < BACKFILL, "the backfill was over before the worker could be killed"
    await owner.kill()
    seen = await fleet.at_rest(within_s=120)
    added = Counter((e.body["mailbox_id"], e.body["uid"]) for e in seen.events if e.kind == "message.added")
    assert len(added) == BACKFILL + 1
    assert set(added.values()) == {1}
    writers = {worker_of(e.writer) for e in seen.events}
    assert writers == {"one", "two"}


async def test_s5_takeover_after_kill_9_is_within_the_session_timeout_plus_5_s(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet()
    mailer = await add_account(fleet, dovecot)
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    await asyncio.gather(fleet.ready_worker("one"), fleet.ready_worker("two"))
    await fleet.caught_up()
    owner = fleet.workers[worker_of(fleet.watch.of(mailer.login.account)[-1].writer)]
    await owner.kill()
    killed = time.time()
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(2))
    await fleet.watch.until(lambda: by_successor(fleet, mailer.login.account, owner), within_s=60, what="a takeover")
    took = fleet.watch.of(mailer.login.account)[-1].timestamp_ms / 1000 - killed
    assert took <= float(fleet.environment["KAFKA_SESSION_TIMEOUT_S"]) + 5 + BUSY_S
    await fleet.at_rest()


async def test_s3_a_paused_worker_writes_nothing_after_its_successor_began(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    """SIGSTOP beyond the session timeout in the middle of a backfill, then SIGCONT: the fence holds. S3."""
    fleet = await new_fleet({"FETCH_CHUNK": "50", "FETCH_WINDOW": "100", "BACKFILL_MESSAGES_PER_S": "150"})
    mailer = await a_backfill(fleet, add_account, dovecot, 2500)
    account = mailer.login.account
    await asyncio.gather(fleet.ready_worker("one"), fleet.ready_worker("two"))
    owner = await in_the_middle(fleet, mailer, least=200)
    owner.pause()
    stale = fleet.watch.of(account)[-1].writer
    await fleet.watch.until(lambda: by_successor(fleet, account, owner), within_s=60, what="the successor writes")
    began = len(fleet.watch.events)
    owner.resume()
    await owner.ready()
    seen = await fleet.at_rest(within_s=120)
    late = [event for event in fleet.watch.events[began:] if event.account == account and event.writer == stale]
    assert late == []
    assert len([e for e in seen.events if e.kind == "message.added"]) == 2500 + 1


async def test_s3_a_member_that_sleeps_before_its_fence_is_barred(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot, tmp_path: Path
) -> None:
    """It opens its fence last, so fences the rightful owner, but cannot prove its membership: the owner goes on. S3."""
    fleet = await new_fleet(module="tests.rig.sleeper")
    mailer = await add_account(fleet, dovecot)
    account = mailer.login.account
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    trigger = tmp_path / "sleep"
    trigger.touch()
    sleeper = fleet.start_worker("sleeper", SLEEP_BEFORE_FENCE=str(trigger))
    await stopped(sleeper)
    trigger.unlink()
    await fleet.ready_worker("other")
    await fleet.watch.until(lambda: fleet.watch.of(account, "message.added"), within_s=60, what="the successor writes")
    rightful = fleet.watch.of(account)[-1].writer
    assert worker_of(rightful) == "other"
    sleeper.resume()
    await sleeper.ready()
    for number in range(2, 8):
        await asyncio.to_thread(mailer.append, "INBOX", ordinary(number))
    await fleet.at_rest(within_s=120)


async def stopped(worker: Worker, *, within_s: float = 60.0) -> None:
    """Wait until a worker has stopped itself."""
    deadline = time.monotonic() + within_s
    while psutil.Process(worker.pid).status() != psutil.STATUS_STOPPED:
        assert worker.running, f"{worker.name} ended\n{worker.tail()}"
        assert time.monotonic() < deadline, f"{worker.name} did not stop itself\n{worker.tail()}"
        await asyncio.sleep(0.1)


async def test_s4_s6_join_and_leave_keep_connections_and_hand_over_at_once(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    """A join moves only what must move, a leave hands over without a session timeout; counted at the server. S4, S6."""
    fleet = await new_fleet(
        {"KAFKA_SESSION_TIMEOUT_S": "40", "PARTITIONS": "8", "POLL_WARM": "600", "POLL_COLD": "600"}
    )
    for partition in range(8):
        mailer = await add_account(fleet, dovecot, partition=partition)
        await asyncio.to_thread(mailer.append, "INBOX", ordinary(partition))
        await asyncio.to_thread(mailer.observe_all)  # opening a folder makes the server create it
    await fleet.ready_worker("one")
    await fleet.caught_up()
    await fleet.eventually(
        fleet.tiers,
        lambda found: [*found.values()].count("hot") == 8,
        what="every account is hot and keeps a connection",
    )
    for mailer in fleet.mailers.values():
        await two_sessions(fleet, dovecot, mailer.login.username)
    before = logins(fleet, dovecot)

    two = await fleet.ready_worker("two")
    await letters(fleet, 100)
    owners = {a: worker_of(fleet.watch.of(a)[-1].writer) for a in fleet.mailers}
    assert Counter(owners.values()) == {"one": 4, "two": 4}
    after = logins(fleet, dovecot)
    stayed = [a for a, owner in owners.items() if owner == "one"]
    assert {a: after[a] - before[a] for a in stayed} == dict.fromkeys(stayed, 0)

    began = time.monotonic()
    assert await two.stop() == 0
    left = time.monotonic()
    await letters(fleet, 200)
    assert time.monotonic() - left < 20, "the handover waited for a session timeout"
    assert left - began < 20
    owners = {a: worker_of(fleet.watch.of(a)[-1].writer) for a in fleet.mailers}
    assert set(owners.values()) == {"one"}
    last = logins(fleet, dovecot)
    assert {a: last[a] - before[a] for a in stayed} == dict.fromkeys(stayed, 0)
    await fleet.at_rest()


async def two_sessions(fleet: Fleet, dovecot: Dovecot, user: str) -> None:
    """Wait until the mail server counts a session of the worker's beside our own."""
    await fleet.eventually(lambda: sessions(dovecot, user), lambda number: number >= 2, what=f"{user} has two sessions")


def logins(fleet: Fleet, dovecot: Dovecot) -> dict[str, int]:
    """Logins of each account so far; our own client's are all before."""
    return {account: dovecot.logins(mailer.login.username) for account, mailer in fleet.mailers.items()}


async def letters(fleet: Fleet, number: int) -> None:
    """A new message for everybody, and wait until the log has them all. Logs in nowhere."""
    had = {account: len(fleet.watch.of(account, "message.added")) for account in fleet.mailers}
    for offset, mailer in enumerate(fleet.mailers.values()):
        await asyncio.to_thread(mailer.append, "INBOX", ordinary(number + offset))
    await fleet.watch.until(
        lambda: all(len(fleet.watch.of(account, "message.added")) > n for account, n in had.items()),
        within_s=60,
        what="everybody's new message is in the log",
    )


async def test_w5_w7_sigterm_in_a_backfill_ends_with_0_and_a_peer_goes_on(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    """A graceful leave in the middle of a backfill: nothing lost or doubled, exit code 0. S4, W5, W7."""
    fleet = await new_fleet({"FETCH_CHUNK": "100", "FETCH_WINDOW": "200", "BACKFILL_MESSAGES_PER_S": "500"})
    mailer = await a_backfill(fleet, add_account, dovecot, 2500)
    await asyncio.gather(fleet.ready_worker("one"), fleet.ready_worker("two"))
    owner = await in_the_middle(fleet, mailer)
    assert await owner.stop() == 0
    seen = await fleet.at_rest(within_s=120)
    assert len([e for e in seen.events if e.kind == "message.added"]) == 2500 + 1
