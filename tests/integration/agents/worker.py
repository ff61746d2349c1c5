"""A worker that has the control plane only: real Faust, real tables, and a host that writes down what it is told.

Run as `python -m tests.integration.agents.worker`; settings come from the environment, commands are signals.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import KafkaError

from streams.agents import attach
from streams.agents.ports import AccountsOf, Membership
from streams.assembly import StreamsApp, faust_settings
from streams.directory.accounts import AccountRow
from streams.domain.ownership import AccountEntry
from streams.errors import MailstreamsError
from streams.observer import NoopObserver
from streams.runtime.faust_service import FaustService
from streams.runtime.process import new_event_loop
from streams.settings import load_settings


def say(what: str, **details: object) -> None:
    """One line on stdout, which is a file: a reader that is slow must not hold the worker."""
    sys.stdout.write(json.dumps({"at": time.time(), "what": what, **details}, default=str) + "\n")
    sys.stdout.flush()


class TalkingHost:
    """A host that runs nothing. New shards prove their membership and read their accounts, as real ones do."""

    def __init__(self) -> None:
        self.held: frozenset[int] = frozenset()
        self.tasks: set[asyncio.Task[None]] = set()
        self.membership: Membership | None = None

    async def assigned(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        say("assigned", partitions=sorted(partitions), kept=sorted(self.held & partitions))
        self.membership = membership
        for partition in sorted(partitions - self.held):
            task = asyncio.create_task(self._start(partition, membership, accounts))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        self.held = partitions

    async def narrowed(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        await self.assigned(self.held & partitions, membership, accounts)

    async def _start(self, partition: int, membership: Membership, accounts: AccountsOf) -> None:
        began = time.perf_counter()
        try:
            await membership.prove()
        except MailstreamsError as error:
            say("proof_refused", partition=partition, error=repr(error))
            # As a shard does: the next assignment that brings the partition starts it anew.
            self.held -= {partition}
            return
        proved = time.perf_counter() - began
        entries = [entry async for entry in accounts(partition)]
        say(
            "started",
            partition=partition,
            proof_s=round(proved, 4),
            accounts={entry.account_id: describe(entry) for entry in entries},
        )

    async def prove(self) -> None:
        """Prove the membership of the last assignment, and say what came of it."""
        if self.membership is not None:
            try:
                await self.membership.prove()
                say("proof", refused=False)
            except MailstreamsError as error:
                say("proof", refused=True, error=repr(error))

    def unassigned(self) -> None:
        self.held = frozenset()
        say("unassigned")

    def account_changed(self, partition: int, entry: AccountEntry) -> None:
        say("changed", partition=partition, account=entry.account_id, **describe(entry))

    def account_forgotten(self, partition: int, account_id: str) -> None:
        say("forgotten", partition=partition, account=account_id)

    def heat_changed(self, partition: int, account_id: str, until: datetime | None) -> None:
        say("heat", partition=partition, account=account_id, until=until)

    def snapshot(self) -> Any:
        return SimpleNamespace(accounts={}, unserved=0, shards={})


def describe(entry: AccountEntry) -> dict[str, object]:
    """An entry but for its id."""
    return {"user": entry.user_id, "state": entry.state, "version": entry.version, "heat": entry.heat_until}


class FileDirectory:
    """A directory of accounts in a JSON file: id to user, state and version."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _all(self) -> list[AccountRow]:
        found = json.loads(self._path.read_text())
        return [AccountRow(name, *values) for name, values in sorted(found.items())]

    async def page(self, after: str | None, limit: int) -> list[AccountRow]:
        return [row for row in self._all() if after is None or row.account_id > after][:limit]

    async def rows(self, account_ids: Sequence[str]) -> dict[str, AccountRow]:
        return {row.account_id: row for row in self._all() if row.account_id in account_ids}


class TalkingObserver(NoopObserver):
    """Says what tests wait for."""

    def rekeyed(self, topic: str) -> None:
        say("rekeyed", topic=topic)

    def poison(self, topic: str, reason: str) -> None:
        say("poison", topic=topic, reason=reason)


async def watch_loop() -> None:
    """Say once a second for how long the loop was held, at most."""
    worst, last, said = 0.0, time.perf_counter(), time.perf_counter()
    while True:
        await asyncio.sleep(0.005)
        now = time.perf_counter()
        worst, last = max(worst, now - last - 0.005), now
        if now - said >= 1.0:
            say("loop", held_s=round(worst, 4))
            worst, said = 0.0, now


async def main() -> None:
    """Run until SIGTERM. SIGUSR1 breaks one agent from inside, SIGUSR2 a heartbeat, to see them come back."""
    settings = load_settings()
    app = StreamsApp(**faust_settings(settings))
    host = TalkingHost()
    directory = FileDirectory(Path(os.environ["TEST_DIRECTORY"])) if "TEST_DIRECTORY" in os.environ else None
    plane = attach(app, settings=settings, host=host, store=directory, observer=TalkingObserver())
    service = FaustService(app, TalkingObserver())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def break_agent() -> None:
        agent = app.agents["streams.agents.account_state"]
        for actor in list(agent._actors):
            actor.stream.channel.queue._errors.append(RuntimeError("broken on purpose"))

    def break_heartbeat() -> None:
        thread: Any = app.consumer._thread  # type: ignore[attr-defined]
        coordinator = thread._ensure_consumer()._coordinator

        async def refused() -> bool:
            del coordinator._do_heartbeat
            raise KafkaError("Unexpected exception in heartbeat task: UnknownError")

        coordinator._do_heartbeat = refused

    loop.add_signal_handler(signal.SIGUSR1, break_agent)
    loop.add_signal_handler(signal.SIGUSR2, break_heartbeat)
    watching = asyncio.create_task(watch_loop())
    await service.start()
    say("ready")
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), timeout=1.0)
        except TimeoutError:
            await host.prove()
            say("health", alive=service.health().alive, problems=plane.problems())
    watching.cancel()
    await service.stop(10.0)
    say("stopped")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
