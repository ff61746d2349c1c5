"""One worker with many accounts: session heat, changes of state, the loop under load, and the drain. A JSON line each.

``python -m tests.bench.bench_worker [--hot 1000] [--cold 4000]``. The worker is the whole product in a process of its
own, the mail host a light one in another, which writes down who is connected. What is told of a user is therefore what
a mail server sees; latencies stand beside a bare produce-to-consume round trip, the loop's lateness beside that of the
same worker at rest.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime

from streams.contracts import topics
from streams.contracts.account import UserActive
from streams.contracts.codec import encode
from streams.directory.accounts import AccountStore
from tests.bench.bench_control_plane import bare_consumer
from tests.bench.deployment import Deployment, deployment, first, milliseconds, probe_lines, standing
from tests.bench.stage import report
from tests.rig.worker import Worker

START_S = 420.0
ACTIVE_PER_S = 200
LOGINS_PER_S = 5
ACTIVE_FOR_S = 30
CHANGED = 60
CHANGES_PER_S = 5
BIG, BIG_MESSAGES = 10, 2000
ARRIVALS_PER_S = 20


def say(text: str) -> None:
    """Progress, for people."""
    print(f"[bench] {text}", file=sys.stderr, flush=True)


async def activity(stage: Deployment, hot: list[str], cold: list[str]) -> None:
    """S12: 200 activities a second on one worker, a few of them of users whose accounts are cold.

    At first every activity is the first of its user and brings new heat; later most repeat what is known. Reported
    apart.
    """
    seen: dict[str, float] = {}
    ready = asyncio.Event()
    listening = asyncio.create_task(bare_consumer(stage.settings, seen, ready))
    await asyncio.wait_for(ready.wait(), 60)
    topic = stage.settings.topic(topics.USER_ACTIVE)
    every = ACTIVE_PER_S // LOGINS_PER_S
    woken = iter(cold)
    sent: dict[str, float] = {}
    crowd: set[str] = set()
    bare_sent: dict[str, float] = {}
    began = time.perf_counter()
    for number in range(ACTIVE_PER_S * ACTIVE_FOR_S):
        await asyncio.sleep(max(0.0, began + number / ACTIVE_PER_S - time.perf_counter()))
        user = next(woken, None) if number % every == 0 else hot[number % len(hot)]
        if user is None:
            break
        moment = time.time()
        if number % every == 0:
            sent[user] = moment
            if number < len(hot):
                crowd.add(user)
        bare_sent.setdefault(user, moment)
        event = UserActive(user_id=user, source="ws_ping", at=datetime.now(UTC))
        await stage.fleet.producer.send(topic, encode(event), user.encode())
    await stage.until(lambda: sent.keys() <= stage.watched(), 60, "who became active is watched")
    listening.cancel()
    await asyncio.wait({listening})
    bare = [seen[user] - at for user, at in bare_sent.items() if user in seen]
    took = [first(stage.mail.happened, "idle", user, at) for user, at in sent.items() if user not in crowd]
    report(
        "first_activities_to_watched",
        users=len(hot),
        per_s=ACTIVE_PER_S,
        **milliseconds(first(stage.mail.happened, "idle", user, sent[user]) for user in crowd),
    )
    report(
        "user_active_to_watched",
        accounts=len(stage.accounts),
        per_s=ACTIVE_PER_S,
        woken=len(took),
        **milliseconds(took),
        **milliseconds(bare, "bare_"),
        target_p99_ms=250,
    )


async def states(stage: Deployment, users: list[str]) -> None:
    """S8: `account.state_changed` until the mail server sees the sockets closed, and the account connected again."""
    store = await AccountStore.open(stage.settings)
    said: dict[str, dict[str, float]] = {"disabled": {}, "live": {}}
    try:
        for state in ("disabled", "live"):
            began = time.perf_counter()
            for number, user in enumerate(users):
                await asyncio.sleep(max(0.0, began + number / CHANGES_PER_S - time.perf_counter()))
                account = stage.accounts[user]
                version = await store.set_state(account, state)
                assert version is not None
                stage.fleet.versions[account] = version
                said[state][user] = time.time()
                await stage.fleet.announce(account, state)
            wanted = state == "live"
            await stage.until(
                lambda wanted=wanted: all((user in stage.watched()) is wanted for user in users),  # type: ignore[misc]
                60,
                f"all are {state}",
            )
            last = "idle" if wanted else "closed"
            await stage.until(
                lambda last=last, state=state: all(  # type: ignore[misc]
                    any(each.what == last and each.at >= at for each in stage.mail.happened if each.user == user)
                    for user, at in said[state].items()
                ),
                60,
                f"the mail server saw it of all that are {state}",
            )
    finally:
        await store.close()
    for name, what, state in (
        ("state_changed_to_closed", "closed", "disabled"),
        ("state_changed_to_connected", "login", "live"),
        ("state_changed_to_watched", "idle", "live"),
    ):
        took = [first(stage.mail.happened, what, user, at) for user, at in said[state].items()]
        report(name, accounts=len(stage.accounts), changes=len(took), **milliseconds(took), target_p99_ms=1000)


async def loop(stage: Deployment, worker: Worker, hot: list[str], big: list[str]) -> None:
    """How late the loop is while accounts with much mail are read and hot ones get mail, beside the loop at rest."""
    path = stage.fleet.directory / f"{worker.name}.probe"
    rest_began = time.time()
    await asyncio.sleep(10)
    began = time.time()
    await stage.add(big)
    await stage.announce(big)
    accounts = {stage.accounts[user] for user in big}

    def added() -> int:
        return sum(len(stage.fleet.watch.account(account).places) for account in accounts)

    arrivals = 0
    wanted = len(big) * BIG_MESSAGES
    while added() < wanted and time.time() - began < 240:
        users = [hot[(arrivals + number) % len(hot)] for number in range(ARRIVALS_PER_S)]
        await stage.mail.deliver(users)
        arrivals += len(users)
        await asyncio.sleep(1)
    ended = time.time()
    assert added() >= wanted, f"{added()} of {wanted} messages were read"
    rest = [late for line in probe_lines(path, rest_began, began) for late in line["late_s"]]
    load = [late for line in probe_lines(path, began, ended) for late in line["late_s"]]
    report(
        "loop_lag_under_backfill",
        hot=len(hot),
        messages_per_s=wanted / (ended - began),
        arrivals=arrivals,
        **milliseconds(load),
        stalls_over_100_ms=sum(late > 0.1 for late in load),
        **milliseconds(rest, "at_rest_"),
        target_max_ms=100,
    )


async def drain(stage: Deployment, worker: Worker) -> None:
    """W5: from SIGTERM to the exit, with nothing in progress; each IDLE ended with DONE and LOGOUT."""
    await stage.mail.take()
    idles = standing(stage.mail.happened)
    before = len(stage.mail.happened)
    began = time.time()
    code = await worker.stop(within_s=90)
    took = time.time() - began
    await stage.mail.take()
    after = stage.mail.happened[before:]
    ended = {what: {each.connection for each in after if each.what == what} for what in ("done", "logout", "closed")}
    whole = ended["done"] & ended["logout"] & idles.keys()
    report(
        "drain",
        accounts=len(stage.accounts),
        watched=len(idles),
        exit_code=code,
        took_s=took,
        last_closed_s=max((each.at for each in after if each.what == "closed"), default=began) - began,
        ended_with_done_and_logout=len(whole),
        target_s=5,
    )


async def main(hot_count: int, cold_count: int) -> None:
    """All of it on one worker."""
    hot = [f"hot{number}" for number in range(hot_count)]
    cold = [f"cold{number}" for number in range(cold_count)]
    big = [f"big{number}" for number in range(BIG)]
    users = [(user, 2, 0.1) for user in hot] + [(user, 2, 30.0) for user in cold]
    async with deployment(
        [*users, *((user, BIG_MESSAGES, 30.0) for user in big)],
        HOT_BUDGET_PER_WORKER=str(len(users)),  # those with a session come on top of the hot ones
        MAX_ACCOUNTS_PER_WORKER=str(len(users) + BIG),
    ) as stage:
        probe = stage.fleet.directory / "w1.probe"
        began = time.time()
        await stage.add([*hot, *cold])
        say(f"{len(stage.accounts)} accounts stored in {time.time() - began:.0f} s")
        worker = await stage.fleet.ready_worker("w1", PROBE_FILE=str(probe))
        await stage.announce([*hot, *cold])
        everybody = {*hot, *cold}

        def looked_at() -> bool:
            watched = set(hot) <= stage.watched()
            return watched and everybody <= stage.logged_in() and stage.open_connections() <= len(hot)

        took = await stage.until(looked_at, START_S, "all accounts were looked at")
        report("first_sync", accounts=len(everybody), per_s=len(everybody) / took)
        await stage.at_rest(probe)
        await activity(stage, hot, cold[: LOGINS_PER_S * ACTIVE_FOR_S])
        say("activity is done")
        await states(stage, hot[:CHANGED])
        say("states are done")
        await loop(stage, worker, hot, big)
        say("loop is done")
        await drain(stage, worker)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hot", type=int, default=1000)
    parser.add_argument("--cold", type=int, default=4000)
    parser.add_argument("--big", type=int, default=BIG_MESSAGES, help="messages of each account with much mail")
    options = parser.parse_args()
    BIG_MESSAGES = options.big
    asyncio.run(main(options.hot, options.cold))
