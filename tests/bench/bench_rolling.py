"""A rolling restart of three workers, as mail servers see it: logins for each move of an account, and gaps.

``python -m tests.bench.bench_rolling [--hot 300] [--cold 300]``. Moves are counted from the assignments in the workers'
logs. A gap is the time from the end of an account's IDLE until the next one stands.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence

from streams.contracts.keys import partition_for
from tests.bench.deployment import Deployment, deployment, milliseconds, standing
from tests.bench.stage import report
from tests.bench.watched_mail import Happened
from tests.rig.worker import Worker

START_S = 300.0
WORKERS = ("w1", "w2", "w3")
QUIET_S = 6.0

_ASSIGNED = re.compile(r"assignment of generation (\d+): partitions (\[[\d, ]*\])")


def assignments(worker: Worker, begin: int) -> list[frozenset[int]]:
    """Partitions of the worker, assignment by assignment, from a place in its log on."""
    found = _ASSIGNED.findall(worker.log_text()[begin:])
    return [frozenset(int(number) for number in re.findall(r"\d+", numbers)) for _, numbers in found]


def moves(held: frozenset[int], changes: Sequence[frozenset[int]]) -> Counter[int]:
    """How often each partition came to a worker that held these before."""
    came: Counter[int] = Counter()
    for now in changes:
        came.update(now - held)
        held = now
    return came


def gaps(happened: Sequence[Happened], users: set[str], began: float) -> list[float]:
    """Spans in which a user's INBOX was watched by nobody, of all users."""
    watching: dict[str, set[int]] = {user: set() for user in users}
    since: dict[str, float] = {}
    found: list[float] = []
    for each in happened:
        if each.user not in users:
            continue
        if each.what == "idle":
            if not watching[each.user] and each.user in since:
                gap_began = since.pop(each.user)
                if gap_began >= began:
                    found.append(each.at - gap_began)
            watching[each.user].add(each.connection)
        elif each.what in ("done", "closed") and each.connection in watching[each.user]:
            watching[each.user].discard(each.connection)
            if not watching[each.user]:
                since[each.user] = each.at
    return found


async def settled(stage: Deployment, workers: Sequence[Worker], hot: set[str]) -> None:
    """All partitions run, all hot accounts are watched, and it stays so for a while."""
    for worker in workers:
        await worker.ready()
    quiet_since, size = time.monotonic(), -1
    while time.monotonic() - quiet_since < QUIET_S:
        await stage.until(lambda: hot <= stage.watched(), START_S, "all hot accounts are watched")
        if len(stage.mail.happened) != size:
            quiet_since, size = time.monotonic(), len(stage.mail.happened)
        await asyncio.sleep(0.5)


async def main(hot_count: int, cold_count: int) -> None:
    """Set up, restart one after the other, count."""
    hot = [f"hot{number}" for number in range(hot_count)]
    cold = [f"cold{number}" for number in range(cold_count)]
    users = [(user, 2, 0.1) for user in hot] + [(user, 2, 30.0) for user in cold]
    async with deployment(users) as stage:
        fleet = stage.fleet
        await stage.add([*hot, *cold])
        workers = [fleet.start_worker(name, PROBE_FILE=str(fleet.directory / f"{name}.probe")) for name in WORKERS]
        for worker in workers:
            await worker.ready()
        await stage.announce([*hot, *cold])
        everybody = {*hot, *cold}
        await stage.until(lambda: everybody <= stage.logged_in(), START_S, "all accounts were looked at")
        await settled(stage, workers, set(hot))

        held = {worker.name: assignments(worker, 0)[-1] for worker in workers}
        place = {worker.name: len(worker.log_text()) for worker in workers}
        began, before = time.time(), len(stage.mail.happened)
        stops: list[float] = []
        for worker in workers:
            stopping = time.time()
            code = await worker.stop(within_s=60)
            assert code == 0, f"{worker.name} ended with {code}\n{worker.tail()}"
            stops.append(time.time() - stopping)
            worker.start(PROBE_FILE=str(fleet.directory / f"{worker.name}.probe"))
            await settled(stage, workers, set(hot))
        took = time.time() - began

        came: Counter[int] = Counter()
        for worker in workers:
            # A worker that was restarted begins with nothing; what it held before it stopped went elsewhere.
            came += moves(held[worker.name], assignments(worker, place[worker.name]))
        expected = {user: came[partition_for(stage.accounts[user], fleet.partitions)] for user in hot}
        logins = Counter(each.user for each in stage.mail.happened[before:] if each.what == "login")
        wrong = {user: (logins[user], moved) for user, moved in expected.items() if logins[user] != moved}
        found = gaps(stage.mail.happened, set(hot), began)
        abrupt = _ended_without_logout(stage.mail.happened[before:], stage.mail.happened[:before])
        report(
            "rolling_restart",
            workers=len(workers),
            hot=len(hot),
            cold=len(cold),
            took_s=took,
            slowest_stop_s=max(stops),
            partitions_moved=sum(came.values()),
            moves_of_hot_accounts=sum(expected.values()),
            logins_of_hot_accounts=sum(logins[user] for user in hot),
            logins_of_cold_accounts=sum(logins[user] for user in cold),
            hot_accounts_with_another_number=len(wrong),
            idles_without_done_and_logout=abrupt,
            gaps=len(found),
            **milliseconds(found, "gap_"),
        )
        if wrong:
            print("logins and moves that differ:", dict(list(wrong.items())[:10]), flush=True)


def _ended_without_logout(after: Sequence[Happened], before: Sequence[Happened]) -> int:
    """IDLEs that ended without DONE and LOGOUT."""
    idles = set(standing(before)) | {each.connection for each in after if each.what == "idle"}
    closed = {each.connection for each in after if each.what == "closed"} & idles
    polite = {each.connection for each in after if each.what == "logout"}
    return len(closed - polite)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hot", type=int, default=300)
    parser.add_argument("--cold", type=int, default=300)
    options = parser.parse_args()
    asyncio.run(main(options.hot, options.cold))
