"""Proof that the checker sees: the product is broken on purpose, one way after the other, and each must be caught.

The first run breaks nothing and must be true; else all that follows would prove nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

import asyncpg
import psutil

from tests.rig.fleet import Fleet, running_fleet
from tests.rig.letters import ordinary
from tests.rig.outages import largest_batch
from tests.rig.routine import before, everywhere, later, while_running
from tests.storm.checker.findings import Report
from tests.storm.checker.truth import Seen
from tests.storm.sabotage.ways import WAYS, Way
from tests.storm.services import StormServices

WORKERS: Final = ("one", "two")
SOUND_S: Final = 120.0
BROKEN_S: Final = 15.0
"""What is broken never comes to rest; so long is waited for it before it is looked at."""

SETTINGS: Final = {
    "PARTITIONS": "4",
    "FULL_RECONCILE_S": "3600",
    "RECONCILE_S": "600",
    "FETCH_CHUNK": "5",
    "FETCH_WINDOW": "10",
}
"""The periodic comparison would mend some of what is broken before anybody could see it."""

NAP_S: Final = 3.5

SILENT_S: Final = 8.0
"""Several looks of every account: what has not been told meanwhile is not on its way."""

OF_LATENESS: Final = frozenset(
    {
        "message_missing_in_log",
        "message_only_in_log",
        "flags",
        "uidvalidity",
        "database_place",
        "database_message",
        "position",
    }
)
"""What is also found of a sound product that has not come so far yet, or has nobody left to do it."""


async def selftest(*, only: str | None = None, seed: int = 1) -> int:
    """Run every way, or one; returns the exit code."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    chosen = {name: way for name, way in WAYS.items() if only in (None, name)}
    missed: list[str] = []
    directory = Path(tempfile.mkdtemp(prefix="ms-selftest-"))
    directory.chmod(0o711)
    try:
        async with StormServices(directory, WORKERS) as services:
            for name, way in chosen.items():
                began = time.monotonic()
                seen, ended = await _one(services, directory / "runs" / name, name, way, seed)
                caught = is_caught(way, seen.report, ended=ended)
                verdict = "true, as it must be" if not way.rules and caught else "caught" if caught else "MISSED"
                broken = ", ".join(sorted(seen.report.rules())) or "none"
                print(
                    f"{verdict:8} {name}: {way.about}; rules broken: {broken} ({time.monotonic() - began:.0f} s)",
                    flush=True,
                )
                if not caught:
                    missed.append(name)
                    print("\n".join(seen.report.lines(most=5)), flush=True)
    finally:
        if missed:
            print(f"logs are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} ways as they must be; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def is_caught(way: Way, report: Report, *, ended: bool) -> bool:
    """Whether the report shows what was broken. `ended`: a worker has ended, which explains by itself that something is
    not told, or not stored.
    """
    if not way.rules:
        return report.true and not ended
    found = report.rules() & way.rules
    return bool(found - OF_LATENESS if ended else found)


async def _one(services: StormServices, directory: Path, name: str, way: Way, seed: int) -> tuple[Seen, bool]:
    directory.mkdir(parents=True)
    database = f"s_{secrets.token_hex(6)}"
    connection = await asyncpg.connect(services.postgres.dsn("postgres"), timeout=20)
    try:
        await connection.execute(f'CREATE DATABASE "{database}"')
    finally:
        await connection.close()
    trigger = directory / "sleep"
    async with running_fleet(
        directory,
        bootstrap=services.kafka.bootstrap,
        prefix=f"{name}.",
        dsn=services.postgres.dsn(database),
        settings=SETTINGS | {"SABOTAGE": name, "SLEEP_BEFORE_FENCE": str(trigger)},
        seed=seed,
        module="tests.storm.sabotage",
    ) as fleet:
        for number, (kind, server) in enumerate(sorted(services.mail.items())):
            user, password = f"{name}{number}@{kind}.test", f"pw-{secrets.token_hex(8)}"
            server.add_user(user, password)
            await fleet.add(user, password, server.host, server.port, partition=number)
        await everywhere(before, fleet.mailers.values())
        if way.scene == "sleeper":
            await _sleeper(fleet, trigger)
        else:
            await asyncio.gather(*(fleet.ready_worker(worker) for worker in WORKERS))
            await _quiet(fleet, way)
            await _scene(fleet, services, way)
        if way.rules:
            await _silence(fleet)
        seen = await fleet.at_rest(within_s=_patience(way), strict=False, marker=not way.rules)
        return seen, not all(worker.running for worker in fleet.workers.values())


async def _silence(fleet: Fleet) -> None:
    """Wait until nothing is told any more, so that nothing is found only because it has not been told yet."""
    number, since, deadline = len(fleet.watch.events), time.monotonic(), time.monotonic() + SOUND_S
    while (now := time.monotonic()) < min(deadline, since + SILENT_S):
        await asyncio.sleep(0.5)
        if number != len(fleet.watch.events):
            number, since = len(fleet.watch.events), now


def _patience(way: Way) -> float:
    return BROKEN_S if way.rules else SOUND_S


async def _quiet(fleet: Fleet, way: Way) -> None:
    """Wait until the log has caught up, or as long as one waits for something broken."""
    try:
        await fleet.caught_up(within_s=_patience(way))
    except AssertionError:
        if not way.rules:
            raise


async def _scene(fleet: Fleet, services: StormServices, way: Way) -> None:
    """What it takes for this way of being broken to show."""
    mailers = list(fleet.mailers.values())
    match way.scene:
        case "epoch":
            for mailer, (_, server) in zip(mailers, sorted(services.mail.items()), strict=True):
                await server.reset_uidvalidity(mailer.login.username, "INBOX")
                mailer.drop()
                await asyncio.to_thread(mailer.observe, "INBOX")
        case "pause":
            worker = fleet.workers[(fleet.watch.events[-1].writer or "").rpartition("/")[0]]
            worker.pause()
            began = {account: len(fleet.watch.of(account)) for account in fleet.mailers}
            await everywhere(lambda m: m.append_many("INBOX", [ordinary(n) for n in range(700, 703)]), mailers)
            await fleet.watch.until(
                lambda: all(len(fleet.watch.of(a)) > n for a, n in began.items()), within_s=60, what="a takeover"
            )
            worker.resume()
            await everywhere(lambda m: m.append_many("INBOX", [ordinary(n) for n in range(710, 713)]), mailers)
        case "refusal":
            await largest_batch(fleet, 700)
            await everywhere(lambda m: m.append_many("INBOX", [ordinary(n) for n in range(720, 725)]), mailers)
            await asyncio.sleep(5)  # the broker refuses for so long: the time is the fault itself
            await largest_batch(fleet, 1_114_112)
            told = {account: len(fleet.watch.of(account)) for account in fleet.mailers}
            await everywhere(lambda m: m.append_many("INBOX", [ordinary(n) for n in range(730, 735)]), mailers)
            # The gap is in the number of what comes next, if a log that was broken so goes on at all.
            with contextlib.suppress(AssertionError):
                await fleet.watch.until(
                    lambda: all(len(fleet.watch.of(a)) > n for a, n in told.items()), within_s=45, what="later mail"
                )
        case "restart":
            for worker in fleet.workers.values():
                await worker.kill()
            await everywhere(lambda m: m.append_many("INBOX", [ordinary(n) for n in range(740, 743)]), mailers)
            await asyncio.gather(*(fleet.ready_worker(worker) for worker in WORKERS))
        case "command":
            for account in fleet.mailers:
                await fleet.concluded(await fleet.command(account, "sync_now"))
        case _:
            await everywhere(while_running, mailers)
            await _quiet(fleet, way)
            await everywhere(later, mailers)


async def _sleeper(fleet: Fleet, trigger: Path) -> None:
    """A member that sleeps between its assignment and its fence, and wakes when another has taken over."""
    # It has been here before, so that it knows the accounts when it comes again: else it would have nothing to write.
    before_it_sleeps = await fleet.ready_worker("one")
    await fleet.caught_up()
    await before_it_sleeps.stop()
    trigger.touch()
    sleeper = fleet.start_worker("one")
    deadline = time.monotonic() + 60
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:
        assert sleeper.running and time.monotonic() < deadline, sleeper.tail()
        await asyncio.sleep(0.1)
    trigger.unlink()
    rightful = await fleet.ready_worker("two")
    await fleet.caught_up()
    await asyncio.sleep(6)  # longer than what the checker takes for a fence that was on its way
    # The rightful owner naps, for less than a session timeout: else it may fence back before a word is written.
    rightful.pause()
    await everywhere(lambda m: m.append_many("INBOX", [ordinary(n) for n in range(750, 753)]), fleet.mailers.values())
    told = len(fleet.watch.events)
    sleeper.resume()
    with contextlib.suppress(AssertionError):  # one that proves its membership writes nothing
        await fleet.watch.until(
            lambda: any((event.writer or "").startswith("one/") for event in fleet.watch.events[told:]),
            within_s=NAP_S,
            what="a word of the sleeper",
        )
    rightful.resume()
    for number in range(20):
        await everywhere(lambda m, n=number: m.append("INBOX", ordinary(760 + n)), fleet.mailers.values())  # type: ignore[misc]
