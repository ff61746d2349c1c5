"""What the servers of the stack have in common: a directory, one child process, and the ways in which it may end.

Invariant: a server keeps its directory and its ports from one start to the next, however it ended in between.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

from streams.local.certificates import Certificate, issue_for_loopback
from streams.local.errors import ServiceFailed
from streams.local.jars import Progress
from streams.local.process import ChildProcess


class LocalServer(ABC):
    """One server in `directory`. Not started by its constructor; how it is started is the subclass's."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    stop_grace_s: ClassVar[float] = 10.0
    ready_deadline_s: ClassVar[float] = 30.0

    def __init__(self, directory: Path, progress: Progress) -> None:
        self._directory = directory
        self._progress = progress
        self._child: ChildProcess | None = None

    @property
    def log(self) -> Path:
        """What the server writes."""
        return self._directory / f"{self.name.lower()}.log"

    @property
    def process(self) -> ChildProcess:
        """The server's process; raises `ServiceFailed` before the first start."""
        if self._child is None:
            raise ServiceFailed(self.name, "was never started")
        return self._child

    @abstractmethod
    async def start(self) -> None:
        """Start, or start again on the same ports. Raises `LocalStackError`."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Settings of the product that lead here."""

    async def stop(self) -> None:
        """End it as it wants to be ended; killed after a grace."""
        if self._child is not None:
            await self._child.stop(self.stop_signal, grace_s=self.stop_grace_s)

    async def kill(self) -> None:
        """kill -9 of the server and all its processes."""
        if self._child is not None:
            await self._child.kill()

    def pause(self) -> None:
        """Stop answering, with connections open."""
        self.process.pause()

    def resume(self) -> None:
        """Answer again."""
        self.process.resume()

    async def _run(self, child: ChildProcess, ready: Callable[[], Awaitable[bool]]) -> None:
        """Start the process and wait until it is `ready`. Raises `ServiceFailed`."""
        self._child = child
        child.start()
        await child.wait_ready(ready, deadline_s=self.ready_deadline_s)


class LocalMailServer(LocalServer):
    """A mail server, with a certificate for loopback addresses."""

    def __init__(self, directory: Path, progress: Progress) -> None:
        super().__init__(directory, progress)
        self._certificate: Certificate | None = None

    @property
    def ca_file(self) -> Path:
        """PEM of the authority that signed its certificate."""
        return self._issue().ca

    def environment(self) -> dict[str, str]:
        """Settings of the product under which it may and can dial this server."""
        return {"IMAP_CA_FILE": str(self.ca_file), "IMAP_ALLOW_PRIVATE": "true"}

    def _issue(self) -> Certificate:
        if self._certificate is None:
            self._certificate = issue_for_loopback(self._directory / "tls")
        return self._certificate
