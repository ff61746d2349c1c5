"""Processes that run jobs, started and ended by tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from streams.local.ports import free_port
from tests.integration.commands.rig import Jobs

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0


class Process:
    """One run of the program."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, probe_port: int) -> None:
        self._process = process
        self.log = log
        self.probe_port = probe_port

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self, within_s: float = DEADLINE_S) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    async def kill(self) -> None:
        """As a power cut."""
        if self.running:
            self._process.kill()
        await self.ended()

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    async def until_said(self, text: str, within_s: float = DEADLINE_S) -> None:
        """Wait until its log has a text."""
        async with asyncio.timeout(within_s):
            while text not in self.said():
                assert self.running, self.said()
                await asyncio.sleep(0.05)


class Starter:
    """Starts processes and ends what is left of them."""

    def __init__(self, jobs: Jobs, directory: Path) -> None:
        self._jobs = jobs
        self.directory = directory
        self.processes: list[Process] = []

    async def start(self, **environment: Any) -> Process:
        """A new process; settings beyond those of the lane as keywords."""
        number = len(self.processes) + 1
        log, port = self.directory / f"p{number}.log", free_port()
        settings = {
            **self._jobs.environment,
            "WORKER_NAME": f"p{number}",
            "WORKER_RETRY_BACKOFF_S": "0.1",
            "WORKER_SHUTDOWN_GRACE_S": "5",
            "DIRECTORY": str(self.directory),
            "PROBE_PORT": str(port),
            "LOG_FORMAT": "json",
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
            **{name: str(value) for name, value in environment.items()},
        }
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.integration.commands.program",
                env=settings, cwd=self.directory, stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        started = Process(process, log, port)
        self.processes.append(started)
        return started

    async def working(self, **environment: Any) -> Process:
        """A new process that has joined the group."""
        process = await self.start(**environment)
        await process.until_said("partitions of jobs")
        return process

    def mark(self, name: str) -> None:
        (self.directory / name).touch()

    async def marked(self, name: str, within_s: float = DEADLINE_S) -> None:
        """Wait for a mark of a handler."""
        await self.until(lambda: (self.directory / name).exists(), within_s)

    async def until(self, condition: Callable[[], Any], within_s: float = DEADLINE_S) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def starter(jobs: Jobs, directory: Path) -> AsyncIterator[Starter]:
    """For the block; what still runs is killed at its end, and shown when the test failed."""
    made = Starter(jobs, directory)
    try:
        yield made
    except BaseException:
        for process in made.processes:
            print(f"--- {process.log.name}\n{process.said()[-6000:]}")
        raise
    finally:
        for process in made.processes:
            if process.running:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(signal.SIGKILL)
                await process.ended()
