"""One storm: accounts, scripts, chatter and faults for a while; then rest, and the truth."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiokafka.errors import KafkaError

from streams.local.ports import HOST
from tests.rig.fleet import Fleet, running_fleet
from tests.rig.letters import drawn
from tests.rig.worker import Worker
from tests.storm.checker import database, rules, statuses
from tests.storm.checker.findings import Finding, Report
from tests.storm.checker.log import committed_offsets, read_raw
from tests.storm.checker.truth import Seen
from tests.storm.faults import Faults
from tests.storm.scripts import Script
from tests.storm.services import StormServices
from tests.storm.talk import NONSENSE, TOPICS, Talk

REST_S: Final = 150.0
"""Everything must be true within this long after the last fault."""

LONGEST_END_S: Final = 900.0
"""Nothing of a storm comes later than this after its last fault."""

STATUS_S: Final = 60.0
CONTROL_TOPICS: Final = ("account.state_changed", "user.active", "account.heat", "user.accounts")
"""What the workers' group reads. Positions in `sync.commands` are in the shards' mirrors: conclusions show them."""

SETTINGS: Final = {
    "PARTITIONS": "6",
    "KAFKA_SESSION_TIMEOUT_S": "6",
    "KAFKA_TRANSACTION_TIMEOUT_S": "10",
    "IMAP_COMMAND_TIMEOUT_S": "8",
    "IMAP_IDLE_RENEW_S": "20",
    "WORKER_SHUTDOWN_GRACE_S": "2",
    "FETCH_CHUNK": "20",
    "FETCH_WINDOW": "40",
    "BACKOFF_MAX_S": "5",
    "LOG_LEVEL": "info",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a storm is to be like."""

    seed: int
    minutes: float = 3.0
    workers: int = 3
    accounts: int = 9
    faults: bool = True
    pause_s: float = 0.6
    """Mean time between two actions on one account."""

    fault_pause_s: float = 4.0
    history: int = 60
    """Messages an account begins with, at most."""

    module: str = "streams"
    settings: dict[str, str] = field(default_factory=dict)
    during: Callable[[Fleet, StormServices], Any] | None = None
    """Something particular to do in the middle of it."""


@dataclass(slots=True)
class Outcome:
    """What came of a storm."""

    options: Options
    report: Report
    seconds: float
    faults: list[str]
    figures: dict[str, Any]

    @property
    def true(self) -> bool:
        """Nothing was lost, doubled or invented."""
        return self.report.true

    def line(self) -> str:
        """One JSON line."""
        return json.dumps(
            {
                "storm": self.options.seed,
                "true": self.true,
                "minutes": self.options.minutes,
                "workers": self.options.workers,
                "seconds": round(self.seconds),
                **self.report.figures,
                **self.figures,
            }
        )


async def storm(options: Options, directory: Path, say: Callable[[str], None] = print) -> Outcome:
    """Run one. `directory` keeps every log; the caller removes it."""
    began = time.monotonic()
    names = [f"worker-{number}" for number in range(1, options.workers + 1)]
    clock_of = names[options.seed % len(names)] if options.faults else None
    async with StormServices(directory, names, clock_of=clock_of) as services:
        if options.faults and not services.clocks:
            say(f"seed {options.seed}: no clock jumps, libfaketime is not installed")
        random_ = random.Random(options.seed)
        async with running_fleet(
            directory,
            bootstrap=services.kafka.bootstrap,
            prefix=f"storm{options.seed}.",
            dsn=services.postgres.dsn(),
            settings=SETTINGS | options.settings,
            seed=options.seed,
            module=options.module,
            worker_settings={name: services.settings_of(name) for name in names},
        ) as fleet:
            scripts = await _accounts(fleet, services, options, random_)
            for name in names:
                fleet.start_worker(name)
            say(f"seed {options.seed}: {len(scripts)} accounts, {len(names)} workers, {options.minutes:g} minutes")
            faults, talk = await _blow(fleet, services, options, scripts, random_)
            say(f"seed {options.seed}: over; coming to rest")
            report = await _rest(fleet, services, options, scripts, faults, talk)
            figures = {
                "actions": sum(script.actions for script in scripts),
                "unsure": sum(script.unsure for script in scripts),
                "faults": len(faults.happened),
                "said": sum(talk.said.values()),
            }
            told = [str(happened) for happened in faults.happened]
            (directory / "faults.txt").write_text("\n".join(told) + "\n")
            if not report.true:
                await _keep(fleet, directory)
            return Outcome(options, report, time.monotonic() - began, told, figures)


async def _keep(fleet: Fleet, directory: Path) -> None:
    """What somebody who looks for the cause will want to see."""
    lines = [f"{event.timestamp_ms} {event.account} {event}" for event in fleet.watch.events]
    (directory / "events.txt").write_text("\n".join(lines) + "\n")
    accounts = {account: mailer.login.username for account, mailer in fleet.mailers.items()}
    (directory / "accounts.json").write_text(json.dumps(accounts, indent=1))
    (directory / "status.json").write_text(json.dumps(await fleet.statuses(), indent=1))


async def _accounts(fleet: Fleet, services: StormServices, options: Options, random_: random.Random) -> list[Script]:
    kinds = sorted(services.mail)
    scripts: list[Script] = []
    for number in range(options.accounts):
        kind = kinds[number % len(kinds)]
        server = services.mail[kind]
        user, password = f"u{number}@{kind}.test", f"pw-{random_.getrandbits(64):016x}"
        server.add_user(user, password)
        mailer = await fleet.add(
            user,
            password,
            HOST,
            server.port,
            user_id=f"user-{number // 2}",
            dial=(HOST, services.mail_proxies[kind].port),
        )
        script = Script(mailer, server, random.Random(f"{options.seed}/{number}"), pause_s=options.pause_s)
        letters = [drawn(random_, n) for n in range(random_.randint(0, options.history))]
        await asyncio.to_thread(mailer.append_many, "INBOX", letters)
        await script.settle(give_up_after_s=10)
        scripts.append(script)
    return scripts


async def _blow(
    fleet: Fleet, services: StormServices, options: Options, scripts: list[Script], random_: random.Random
) -> tuple[Faults, Talk]:
    over = asyncio.Event()
    faults = Faults(fleet, services, random.Random(f"{options.seed}/faults"), pause_s=options.fault_pause_s)
    faults.shortest_jump_s = options.minutes * 60 + LONGEST_END_S
    talk = Talk(fleet, random.Random(f"{options.seed}/talk"), pause_s=options.pause_s)
    async with asyncio.TaskGroup() as group:
        for script in scripts:
            group.create_task(script.run(over))
        group.create_task(talk.run(over))
        if options.faults:
            group.create_task(faults.run(over))
        if options.during is not None:
            group.create_task(options.during(fleet, services))
        await asyncio.sleep(options.minutes * 60)
        over.set()
    return faults, talk


async def _rest(
    fleet: Fleet, services: StormServices, options: Options, scripts: list[Script], faults: Faults, talk: Talk
) -> Report:
    """Heal everything, wait for quiet, check. What is not true in time is reported by the same check."""
    await faults.heal()
    await talk.all_live()
    report = Report()
    for script in scripts:
        if not await script.settle(give_up_after_s=60):
            report.add([Finding("set_up", script.mailer.login.account, expected="a mail server that answers")])
    wrong: list[Finding] = [Finding("worker_died", expected="a running worker", got=death) for death in faults.deaths]
    for worker in fleet.workers.values():
        try:
            await worker.ready(within_s=REST_S)
        except AssertionError as error:
            wrong.append(Finding("not_ready", expected=f"{worker.name} is ready", got=str(error)[:2000]))
    if not wrong or options.module == "streams":
        wrong.extend(await _settled(fleet, talk))
    try:
        seen = await fleet.at_rest(within_s=REST_S, strict=False)
        report.add(seen.report.findings)
        for name, number in seen.report.figures.items():
            report.count(name, number)
        wrong.extend(await _statuses(fleet, seen))
    finally:
        wrong.extend(ended(fleet.workers.values()))
        report.add(wrong)
    return report


def ended(workers: Iterable[Worker]) -> list[Finding]:
    """Workers that have ended although nothing was broken since they were ready: others took over, which hides it."""
    return [
        Finding("worker_died", expected="a running worker", got=f"{worker.name}: {worker.tail(3)}")
        for worker in workers
        if not worker.running
    ]


async def _settled(fleet: Fleet, talk: Talk) -> list[Finding]:
    """Commands are concluded, nonsense is in the dead letters, the group's offsets are complete."""
    wrong: list[Finding] = []

    async def open_commands() -> set[str]:
        done = {
            json.loads(raw.value or b"{}").get("command_id")
            async for raw in read_raw(fleet.kafka, "sync.command_events")
            if json.loads(raw.value or b"{}").get("type") in ("success", "failure")
        }
        return fleet.commands - done

    async def letters_missing() -> dict[str, int]:
        missing = {}
        for topic, number in talk.nonsense.items():
            found = rules.origins([raw async for raw in read_raw(fleet.kafka, f"{topic}.dlq")])
            if len(found) < number:
                missing[topic] = number - len(found)
        return missing

    async def behind() -> dict[str, tuple[int, int]]:
        group = f"{fleet.kafka.prefix}{fleet.environment.get('KAFKA_GROUP', 'mailstreams')}"
        late: dict[str, tuple[int, int]] = {}
        for of, topics in ((group, CONTROL_TOPICS), (f"{group}.jobs", ("sync.jobs",))):
            last: dict[tuple[str, int], int] = {}
            for topic in topics:
                async for raw in read_raw(fleet.kafka, topic, committed=False):
                    last[topic, raw.partition] = raw.offset
            late |= rules.offsets_behind(last, await committed_offsets(fleet.kafka, of))
        return late

    for rule, ask, what in (
        ("conclusions", open_commands, "every command concluded"),
        ("dead_letters", letters_missing, "every bad record in the dead letters"),
        ("offsets", behind, "offsets at the end"),
    ):
        try:
            await fleet.eventually(ask, lambda left: not left, within_s=90, what=what)
        except (AssertionError, KafkaError) as error:
            wrong.append(Finding(rule, expected=what, got=str(error)[:1500]))
    for topic in TOPICS:
        wrong.extend(rules.dead_letters([raw async for raw in read_raw(fleet.kafka, f"{topic}.dlq")], NONSENSE))
    return wrong


async def _statuses(fleet: Fleet, seen: Seen) -> list[Finding]:
    """What is said of the accounts is so. A status comes with the end of a look, so that it is waited for."""

    async def wrong() -> list[Finding]:
        told = statuses.latest([raw async for raw in read_raw(fleet.kafka, "account.sync_status")])
        stale = [*statuses.stale(told, seen.accounts, fleet.mailers)]
        return stale or [*statuses.stale_rows(told, await database.statuses(fleet.dsn))]

    found = [Finding("stale_status", expected="statuses that can be read", got=f"none within {STATUS_S:g} s")]
    with suppress(TimeoutError):
        async with asyncio.timeout(STATUS_S):
            while found := await wrong():
                await asyncio.sleep(1.0)
    return found
