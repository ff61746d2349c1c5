"""Faults, seeded and written down: processes and services that die, pause or stop; connections that lie; full disks."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psutil

from streams.local.dovecot import Dovecot
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from tests.rig.fleet import Fleet
from tests.rig.worker import Worker
from tests.storm.checker.clocks import Jump
from tests.storm.services import StormServices

STOP_WITHIN_S: Final = 45.0
LONGEST_JUMP_S: Final = 2 * 86_400.0


@dataclass(frozen=True, slots=True)
class Happened:
    """One fault, as it is told afterwards."""

    at_s: float
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {self.what:24} {self.detail}"


class Faults:
    """Draws one fault after the other until told to stop. What was broken is whole again after each."""

    def __init__(self, fleet: Fleet, services: StormServices, random_: random.Random, *, pause_s: float) -> None:
        self.happened: list[Happened] = []
        self.deaths: list[str] = []
        """Workers that ended without being told to."""
        self.shortest_jump_s = 600.0
        """Clock jumps are longer than a whole storm, so that the checker can tell whose time is wrong."""
        self._fleet = fleet
        self._services = services
        self._random = random_
        self._pause_s = pause_s
        self._began = time.monotonic()
        self._session_s = float(fleet.environment["KAFKA_SESSION_TIMEOUT_S"])

    async def run(self, over: asyncio.Event) -> None:
        """Break things until `over` is set."""
        kinds = dict(self._catalogue)
        if not self._services.clocks:
            del kinds[Faults._jump_clock]
        while not over.is_set():
            fault = self._random.choices(list(kinds), weights=list(kinds.values()))[0]
            await fault(self)
            self.revive()
            try:
                await asyncio.wait_for(over.wait(), self._random.uniform(0.3, 2.0) * self._pause_s)
            except TimeoutError:
                continue

    def revive(self) -> None:
        """Start workers that have ended, and write down those that should not have."""
        for worker in self._fleet.workers.values():
            if not worker.running:
                self.deaths.append(f"{worker.name}: {worker.tail(3)}")
                worker.start()

    async def heal(self) -> None:
        """Everything is well again: services up, proxies open, workers running."""
        for proxy in self._services.proxies:
            proxy.heal()
        for clock in self._services.clocks.values():
            clock.set(0)
        for worker in self._fleet.workers.values():
            worker.resume()
        self.revive()

    def _told(self, what: str, detail: str) -> None:
        self.happened.append(Happened(time.monotonic() - self._began, what, detail))

    def _worker(self) -> Worker:
        return self._random.choice([self._fleet.workers[name] for name in sorted(self._fleet.workers)])

    # --- workers
    async def _kill_worker(self) -> None:
        worker, wait = self._worker(), self._random.uniform(0, self._session_s * 1.5)
        self._told("kill -9 worker", f"{worker.name}, back after {wait:.1f} s")
        await worker.kill()
        await asyncio.sleep(wait)
        worker.start()

    async def _pause_worker(self) -> None:
        worker, wait = self._worker(), self._session_s * self._random.uniform(1.1, 2.0)
        self._told("SIGSTOP worker", f"{worker.name}, SIGCONT after {wait:.1f} s")
        worker.pause()
        await asyncio.sleep(wait)
        worker.resume()

    async def _nap_worker(self) -> None:
        worker, wait = self._worker(), self._session_s * self._random.uniform(0.1, 0.8)
        self._told("short SIGSTOP worker", f"{worker.name}, SIGCONT after {wait:.1f} s")
        worker.pause()
        await asyncio.sleep(wait)
        worker.resume()

    async def _stop_worker(self) -> None:
        worker, wait = self._worker(), self._random.uniform(0, 5)
        self._told("SIGTERM worker", f"{worker.name}, back after {wait:.1f} s")
        # Before it answers its probes, the interpreter is still loading and nobody has said how to take a signal.
        loading = (await asyncio.to_thread(worker.probe, "/health"))[0] == 0
        code = await worker.stop(within_s=STOP_WITHIN_S)
        if code not in (0, 1) and not (loading and code == -signal.SIGTERM):
            self.deaths.append(f"{worker.name}: exit code {code} after SIGTERM")
        await asyncio.sleep(wait)
        worker.start()

    async def _full_disk(self) -> None:
        """No file of the worker may grow: what writing to a full disk is for it."""
        worker, wait = self._worker(), self._random.uniform(2, 8)
        self._told("disk full", f"{worker.name}, room again after {wait:.1f} s")
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(worker.pid)
            process.rlimit(psutil.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            await asyncio.sleep(wait)
            with suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        # Ending is what it may do without a place for its state, and it may be about to.
        with suppress(AssertionError):
            await worker.ready(within_s=60)
        if not worker.running:
            worker.start()

    async def _jump_clock(self) -> None:
        """The wall clock of the worker that has its own is far off for a while; monotonic time goes on."""
        name, clock = next(iter(self._services.clocks.items()))
        wait = self._random.uniform(3, 15)
        far_s = int(self.shortest_jump_s * (LONGEST_JUMP_S / self.shortest_jump_s) ** self._random.random())
        ahead_s = self._random.choice((far_s, -far_s))
        self._told(
            "clock jumps",
            f"{name}, {timedelta(seconds=far_s)} {'on' if ahead_s > 0 else 'back'}, right again after {wait:.1f} s",
        )
        began = time.time()
        clock.set(ahead_s)
        await asyncio.sleep(wait)
        clock.set(0)
        self._fleet.jumps.append(Jump(name, ahead_s * 1000, int(began * 1000), int(time.time() * 1000)))

    # --- services
    async def _service(
        self, what: str, end: Callable[[], Awaitable[None]], start: Callable[[], Awaitable[None]]
    ) -> None:
        wait = self._random.uniform(0.5, 10)
        self._told(what, f"back after {wait:.1f} s")
        await end()
        await asyncio.sleep(wait)
        await start()

    async def _stop_kafka(self) -> None:
        await self._service("stop Kafka", self._services.kafka.stop, self._services.kafka.start)

    async def _kill_kafka(self) -> None:
        await self._service("kill -9 Kafka", self._services.kafka.kill, self._services.kafka.start)

    async def _pause(self, what: str, server: Kafka | Postgres | Dovecot) -> None:
        """It answers nobody, and its connections stay open."""
        wait = self._random.uniform(1, self._session_s * 2)
        self._told(f"SIGSTOP {what}", f"SIGCONT after {wait:.1f} s")
        server.pause()
        await asyncio.sleep(wait)
        server.resume()

    async def _pause_kafka(self) -> None:
        await self._pause("Kafka", self._services.kafka)

    async def _pause_postgres(self) -> None:
        await self._pause("PostgreSQL", self._services.postgres)

    async def _pause_mail(self) -> None:
        kind = self._random.choice(sorted(self._services.mail))
        await self._pause(f"Dovecot {kind}", self._services.mail[kind])

    async def _stop_postgres(self) -> None:
        await self._service("stop PostgreSQL", self._services.postgres.stop, self._services.postgres.start)

    async def _kill_postgres(self) -> None:
        await self._service("kill -9 PostgreSQL", self._services.postgres.kill, self._services.postgres.start)

    async def _stop_mail(self) -> None:
        kind = self._random.choice(sorted(self._services.mail))
        server = self._services.mail[kind]
        await self._service(f"stop Dovecot {kind}", server.stop, server.start)

    async def _kill_mail(self) -> None:
        kind = self._random.choice(sorted(self._services.mail))
        server = self._services.mail[kind]
        await self._service(f"kill -9 Dovecot {kind}", server.kill, server.start)

    # --- connections
    async def _network(self) -> None:
        proxy = self._random.choice(self._services.proxies)
        wait = self._random.uniform(0.5, self._session_s * 2)
        fault = self._random.choice(("cut", "delayed", "halved", "half-open", "refused"))
        self._told(f"connections {fault}", f"{proxy.name}, {wait:.1f} s")
        match fault:
            case "cut":
                proxy.cut()
            case "delayed":
                proxy.delay_s = self._random.choice((0.05, 0.2, 1.0))
            case "halved":
                for _ in range(5):
                    proxy.halve(self._random.randint(1, 20_000))
                    await asyncio.sleep(wait / 5)
            case "half-open":
                proxy.silent = True
            case "refused":
                proxy.refusing = True
                proxy.cut()
        if fault not in ("cut", "halved"):
            await asyncio.sleep(wait)
        proxy.heal()

    _catalogue: Final[tuple[tuple[Callable[[Faults], Awaitable[None]], int], ...]] = (
        (_kill_worker, 10),
        (_pause_worker, 8),
        (_nap_worker, 4),
        (_stop_worker, 8),
        (_full_disk, 3),
        (_jump_clock, 8),
        (_stop_kafka, 3),
        (_kill_kafka, 3),
        (_pause_kafka, 3),
        (_stop_postgres, 3),
        (_kill_postgres, 3),
        (_pause_postgres, 2),
        (_stop_mail, 3),
        (_kill_mail, 3),
        (_pause_mail, 2),
        (_network, 24),
    )
