"""A light storm for long, with memory, descriptors, tasks, threads and latencies watched: what grows for ever is found.

    HOURS=8 make soak

After a warm-up of a fifth of the time, the median of the next fifth is compared with that of the last: more than 10 %
growth of anything fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import psutil
from prometheus_client.parser import text_string_to_metric_families

from streams.local.ports import HOST
from tests.rig.fleet import Fleet, running_fleet
from tests.rig.letters import ordinary
from tests.storm.scripts import Script
from tests.storm.services import StormServices

WORKERS: Final = ("one", "two")
ACCOUNTS: Final = 6
PAUSE_S: Final = 4.0
SAMPLES: Final = 200
"""Of each figure in the whole run."""
GROWTH: Final = 1.10
SLACK: Final = {"rss_mb": 16.0, "descriptors": 8.0, "tasks": 20.0, "threads": 2.0, "latency_ms": 200.0}
"""Below these differences nothing has grown: allocators and batches of notices breathe."""


class Watcher:
    """Takes samples of the workers and of the way from delivery to the log."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.samples: defaultdict[str, list[float]] = defaultdict(list)

    async def run(self, over: asyncio.Event, every_s: float) -> None:
        """Sample until `over` is set."""
        number = 0
        while not over.is_set():
            number += 1
            for worker in self._fleet.workers.values():
                process = psutil.Process(worker.pid)
                self.samples[f"{worker.name}.rss_mb"].append(process.memory_info().rss / 2**20)
                self.samples[f"{worker.name}.descriptors"].append(process.num_fds())
                self.samples[f"{worker.name}.threads"].append(process.num_threads())
                _, metrics = await asyncio.to_thread(worker.probe, "/metrics")
                self.samples[f"{worker.name}.tasks"].append(tasks_of(str(metrics)))
            self.samples["latency_ms"].append(await self._latency(number) * 1000)
            try:
                await asyncio.wait_for(over.wait(), every_s)
            except TimeoutError:
                continue

    async def _latency(self, number: int) -> float:
        """Seconds from the end of an APPEND to the event in the committed log."""
        account, mailer = random.Random(number).choice(sorted(self._fleet.mailers.items()))
        had = len(self._fleet.watch.of(account, "message.added"))
        await asyncio.to_thread(mailer.append, "INBOX", ordinary(10**9 + number))
        began = time.monotonic()
        await self._fleet.watch.until(
            lambda: len(self._fleet.watch.of(account, "message.added")) > had, within_s=60, what="a new message"
        )
        return time.monotonic() - began

    def growth(self) -> dict[str, tuple[float, float, bool]]:
        """Figure → median of the second fifth, median of the last, whether it grew too much."""
        found: dict[str, tuple[float, float, bool]] = {}
        for name, values in self.samples.items():
            fifth = max(1, len(values) // 5)
            early, late = statistics.median(values[fifth : 2 * fifth] or values), statistics.median(values[-fifth:])
            slack = SLACK[name.rpartition(".")[2]]
            found[name] = (round(early, 1), round(late, 1), late > early * GROWTH and late - early > slack)
        return found


def tasks_of(metrics: str) -> float:
    """Tasks of the event loop, from a worker's metrics."""
    for family in text_string_to_metric_families(metrics):
        if family.name == "mailstreams_event_loop_tasks":
            return family.samples[0].value
    raise AssertionError(f"the worker does not tell its tasks: {metrics[:500]}")


async def soak(hours: float, directory: Path, seed: int = 1) -> bool:
    """Run it; whether nothing grew and all was true at the end."""
    async with (
        StormServices(directory, WORKERS) as services,
        running_fleet(
            directory,
            bootstrap=services.kafka.bootstrap,
            prefix="soak.",
            dsn=services.postgres.dsn(),
            settings={"PARTITIONS": "6"},
            seed=seed,
        ) as fleet,
    ):
        scripts = []
        kinds = sorted(services.mail)
        for number in range(ACCOUNTS):
            server = services.mail[kinds[number % len(kinds)]]
            server.add_user(f"soak{number}", f"pw-{number}-soak-{seed}")
            mailer = await fleet.add(f"soak{number}", f"pw-{number}-soak-{seed}", HOST, server.port)
            scripts.append(Script(mailer, server, random.Random(f"{seed}/{number}"), pause_s=PAUSE_S))
            await scripts[-1].settle(give_up_after_s=10)
        await asyncio.gather(*(fleet.ready_worker(name) for name in WORKERS))
        over, watcher = asyncio.Event(), Watcher(fleet)
        seconds = hours * 3600
        # The clients of scripts and watcher are not shared: a connection takes one command at a time.
        probes = [fleet.mailers.pop(script.mailer.login.account) for script in scripts[: len(kinds)]]
        fleet.mailers = {mailer.login.account: mailer for mailer in probes}
        talking = scripts[len(kinds) :]
        async with asyncio.TaskGroup() as group:
            for script in talking:
                group.create_task(script.run(over))
            group.create_task(watcher.run(over, max(1.0, seconds / SAMPLES)))
            await asyncio.sleep(seconds)
            over.set()
        for script in talking:
            await script.settle(give_up_after_s=30)
            fleet.mailers[script.mailer.login.account] = script.mailer
        seen = await fleet.at_rest(strict=False)
        grown = watcher.growth()
        for name, (early, late, too_much) in sorted(grown.items()):
            print(f"{'GREW' if too_much else 'flat':5} {name}: {early:g} → {late:g}")
        fine = seen.report.true and not any(too_much for _, _, too_much in grown.values())
        if not seen.report.true:
            print("\n".join(seen.report.lines()))
        figures = {name: [early, late] for name, (early, late, _) in grown.items()}
        print(json.dumps({"soak_hours": hours, "fine": fine, **seen.report.figures, **figures}), flush=True)
        return fine


def main() -> int:
    """HOURS and SEED from the environment."""
    directory = Path(tempfile.mkdtemp(prefix="ms-soak-"))
    directory.chmod(0o711)
    fine = False
    try:
        fine = asyncio.run(soak(float(os.environ.get("HOURS", "1")), directory, int(os.environ.get("SEED", "1"))))
    finally:
        if fine:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"logs are kept in {directory}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
