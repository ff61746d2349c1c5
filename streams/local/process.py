"""One program of the stack as a child process: its log, its readiness, its end.

Invariant: after `stop()` or `kill()` neither the program nor anything it started is alive, and should this process
die, the kernel ends the program (see `launch`). The death signal belongs to the *thread* that called `start()`:
start from a thread that lives as long as the stack, usually the main one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import psutil

from streams.local.errors import ServiceFailed

POLL_S = 0.05
KILL_WAIT_S = 10.0
TAIL_BYTES = 8192
_LAUNCHER = Path(__file__).with_name("launch.py")
_living: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


class ChildProcess:
    """A program run in its own process group, its output appended to `log`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        user: tuple[int, int] | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        """`user` is uid and gid to become; `death_signal` is what the program gets when this process dies."""
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = None if environment is None else dict(environment)
        self._directory = directory
        self._user = user
        self._death_signal = death_signal
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._popen.pid if self._popen is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the program is alive (a paused one is)."""
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start the program. Raises `ServiceFailed` when it runs already or cannot be started."""
        if self.running:
            raise ServiceFailed(self.name, "is running already")
        uid, gid = self._user or (-1, -1)
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER)]
        ties = [str(os.getpid()), str(int(self._death_signal)), str(uid), str(gid), "--"]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            try:
                self._popen = subprocess.Popen(
                    [*launcher, *ties, *self._command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    cwd=self._directory,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServiceFailed(self.name, f"cannot be started: {error.strerror}") from error
        _living.add(self)

    async def wait_ready(self, check: Callable[[], Awaitable[bool]], *, deadline_s: float) -> None:
        """Return when `check` says so. Raises `ServiceFailed` when the program ends first or the time is over."""
        ends = time.monotonic() + deadline_s
        while True:
            if self._popen is not None and (code := self._popen.poll()) is not None:
                raise ServiceFailed(self.name, f"ended with exit code {code}", self.log_tail())
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(check(), timeout=max(0.1, ends - time.monotonic())):
                    return
            if time.monotonic() >= ends:
                tail = self.log_tail()
                await self.kill()
                raise ServiceFailed(self.name, f"was not ready within {deadline_s:.0f} s", tail)
            await asyncio.sleep(POLL_S)

    async def stop(self, stop_signal: signal.Signals = signal.SIGTERM, *, grace_s: float = 15.0) -> None:
        """Ask the program to end, and kill it and its descendants when it has not within `grace_s`."""
        popen = self._popen
        if popen is None:
            return
        family = self._family()
        if popen.poll() is None:
            popen.send_signal(signal.SIGCONT)
            popen.send_signal(stop_signal)
            ends = time.monotonic() + grace_s
            while popen.poll() is None and time.monotonic() < ends:
                await asyncio.sleep(POLL_S)
        await self._end(family)

    async def kill(self) -> None:
        """SIGKILL the program and everything it started, as a machine that loses power would."""
        if self._popen is not None:
            await self._end(self._family())

    def pause(self) -> None:
        """SIGSTOP the program and its descendants; sockets stay open and silent."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause()`."""
        self._signal_all(signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines the program wrote."""
        try:
            with self.log.open("rb") as source:
                source.seek(max(0, source.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = source.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def kill_now(self) -> None:
        """As `kill()`, without waiting on an event loop; for the interpreter's exit."""
        if self._popen is None:
            return
        _kill(self._family())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(KILL_WAIT_S)
        self._popen = None
        _living.discard(self)

    def _family(self) -> list[psutil.Process]:
        """The program and its descendants: some of them leave the process group, so the group is not enough."""
        if self._popen is None:
            return []
        try:
            head = psutil.Process(self._popen.pid)
            return [head, *head.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    async def _end(self, family: list[psutil.Process]) -> None:
        popen = self._popen
        if popen is None:
            return
        _kill(family)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        ends = time.monotonic() + KILL_WAIT_S
        while popen.poll() is None or any(_alive(process) for process in family):
            if time.monotonic() > ends:
                raise ServiceFailed(self.name, "does not die", self.log_tail())
            await asyncio.sleep(POLL_S)
        self._popen = None
        _living.discard(self)


def _kill(family: list[psutil.Process]) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@atexit.register
def _kill_the_living() -> None:
    for child in list(_living):
        child.kill_now()
