"""The whole local stack: what the environment names is used, the rest is started here.

Invariant: `stop()` (and the end of this process, however it comes) leaves nothing running that `start()` began, and a
directory that was made here is removed. What the environment names is never started, stopped or cleaned.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from streams.local.dovecot import Dovecot, DovecotOptions
from streams.local.errors import DirectoryInUse, ServiceFailed
from streams.local.jars import Progress
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from streams.local.pymap_server import PymapServer
from streams.local.server import LocalServer

USUAL_PORTS = {"kafka": 9092, "postgres": 5432, "imap": 10143, "imaps": 10993}
LOOK_EVERY_S = 1.0

MailServer = Dovecot | PymapServer


class LocalStack:
    """Kafka, PostgreSQL and a mail server. `async with` starts and stops it."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        progress: Progress = lambda _: None,
        usual_ports: bool = False,
        given: Mapping[str, str] = os.environ,
        dovecot: DovecotOptions | None = None,
    ) -> None:
        """`directory` keeps the data for another start; without it a temporary one is made and removed.

        `usual_ports` prefers 9092, 5432, 10143 and 10993. `given` holds the settings of the product: with
        KAFKA_BOOTSTRAP_SERVERS or POSTGRES_DSN in it, that service is taken as it is. The mail server is Dovecot where
        it is installed, unless MAILSTREAMS_MAIL_SERVER is `pymap`.
        """
        self._temporary = directory is None
        self.directory = directory or _temporary_directory()
        self._given = given
        self._held: IO[str] | None = None
        ports = (USUAL_PORTS if usual_ports else dict.fromkeys(USUAL_PORTS, 0)) | self._earlier_ports()
        self.kafka = (
            None
            if given.get("KAFKA_BOOTSTRAP_SERVERS")
            else Kafka(self.directory / "kafka", progress=progress, port=ports["kafka"])
        )
        self.postgres = (
            None
            if given.get("POSTGRES_DSN")
            else Postgres(self.directory / "postgres", progress=progress, port=ports["postgres"])
        )
        self.mail: MailServer
        if Dovecot.version() and given.get("MAILSTREAMS_MAIL_SERVER") != "pymap":
            self.mail = Dovecot(
                self.directory / "dovecot",
                progress=progress,
                options=dovecot,
                port=ports["imap"],
                tls_port=ports["imaps"],
            )
        else:
            self.mail = PymapServer(self.directory / "pymap", progress=progress, port=ports["imap"])

    @property
    def _ports_file(self) -> Path:
        return self.directory / "ports.json"

    def _earlier_ports(self) -> dict[str, int]:
        """The ports of an earlier start with this directory, so that what was configured against them still works."""
        try:
            ports: dict[str, int] = json.loads(self._ports_file.read_text())
        except (OSError, ValueError):
            return {}
        return ports

    def _keep_ports(self) -> None:
        ports = {"imap": self.mail.port}
        if isinstance(self.mail, Dovecot):
            ports["imaps"] = self.mail.tls_port
        if self.kafka is not None:
            ports["kafka"] = self.kafka.port
        if self.postgres is not None:
            ports["postgres"] = self.postgres.port
        self._ports_file.write_text(json.dumps(ports))

    @property
    def services(self) -> list[LocalServer]:
        """What is started here."""
        every: tuple[LocalServer | None, ...] = (self.mail, self.postgres, self.kafka)
        return [service for service in every if service is not None]

    async def start(self) -> None:
        """Start everything at once. Raises `LocalStackError`, with nothing left running."""
        self._lock()
        try:
            async with asyncio.TaskGroup() as group:
                for service in self.services:
                    group.create_task(service.start(), name=f"start {service.name}")
        except BaseExceptionGroup as errors:
            await self.stop()
            raise errors.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise
        self._keep_ports()

    async def stop(self) -> None:
        """Stop everything that runs, all at once. Raises `ServiceFailed` when something does not end."""
        ends = await asyncio.gather(*(service.stop() for service in self.services), return_exceptions=True)
        if self._temporary:
            await asyncio.to_thread(shutil.rmtree, self.directory, True)
        if self._held is not None:
            self._held.close()
            self._held = None
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def failure(self) -> ServiceFailed:
        """Wait until a service ends that nobody stopped."""
        while True:
            for service in self.services:
                if not service.process.running:
                    return ServiceFailed(service.name, "has ended by itself", service.process.log_tail())
            await asyncio.sleep(LOOK_EVERY_S)

    def _lock(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        held = (self.directory / ".lock").open("a+")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            owner = held.read().strip() or "unknown"
            held.close()
            raise DirectoryInUse(
                f"{self.directory} is in use by another stack (process {owner}): stop that one first, or keep the data"
                " of this one in another directory"
            ) from None
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        self._held = held

    def environment(self) -> dict[str, str]:
        """The settings under which the product uses this stack."""
        found = {name: self._given[name] for name in ("KAFKA_BOOTSTRAP_SERVERS", "POSTGRES_DSN") if name in self._given}
        for service in self.services:
            found |= service.environment()
        return found

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _temporary_directory() -> Path:
    """A directory that the unprivileged users of PostgreSQL and Dovecot may pass through."""
    directory = Path(tempfile.mkdtemp(prefix="mailstreams-"))
    directory.chmod(0o711)
    return directory
