"""The mail server for machines without Dovecot: pymap, pure Python, in memory.

It has IDLE and OBJECTID but neither CONDSTORE nor an implicit-TLS port: enough to see mail flow, not for tests.
Mail is lost with the process; users are kept.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from streams.local.certificates import Certificate, issue_for_loopback
from streams.local.errors import ServiceFailed
from streams.local.jars import Progress
from streams.local.ports import HOST, free_port
from streams.local.process import ChildProcess

READY_DEADLINE_S = 30.0


class PymapServer:
    """One server in `directory`. Not started by its constructor."""

    name = "pymap"

    def __init__(self, directory: Path, *, progress: Progress = lambda _: None, port: int = 0) -> None:
        """`port` (plain and STARTTLS) is preferred when free."""
        self._directory = directory
        self._progress = progress
        self._users: dict[str, str] = {}
        self._certificate: Certificate | None = None
        self._child: ChildProcess | None = None
        self.host = HOST
        self.port = free_port(port)

    @property
    def log(self) -> Path:
        """What the server writes."""
        return self._directory / "pymap.log"

    @property
    def ca_file(self) -> Path:
        """PEM of the authority that signed its certificate."""
        return self._issue().ca

    @property
    def process(self) -> ChildProcess:
        """The server's process; raises `ServiceFailed` before the first start."""
        if self._child is None:
            raise ServiceFailed(self.name, "was never started")
        return self._child

    async def start(self) -> None:
        """Start on the same port as before, with no mail. Raises `LocalStackError`."""
        self._progress("pymap: starting")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_users()
        certificate = self._issue()
        files = (str(certificate.certificate), str(certificate.key))
        program = [sys.executable, "-m", "streams.local.pymap_program"]
        self._child = ChildProcess(
            self.name,
            [*program, str(self._users_file), HOST, str(self.port), *files],
            log=self.log,
            death_signal=signal.SIGKILL,
        )
        self._child.start()
        await self._child.wait_ready(self._greets, deadline_s=READY_DEADLINE_S)

    async def stop(self) -> None:
        """End it; its mail is gone."""
        if self._child is not None:
            await self._child.stop(signal.SIGTERM, grace_s=5.0)

    async def kill(self) -> None:
        """kill -9."""
        if self._child is not None:
            await self._child.kill()

    def environment(self) -> dict[str, str]:
        """Settings of the product under which it may and can dial this server."""
        return {"IMAP_CA_FILE": str(self.ca_file), "IMAP_ALLOW_PRIVATE": "true"}

    def add_user(self, name: str, password: str) -> None:
        """Let `name` log in with `password`."""
        self._users[name] = password
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_users()

    @property
    def _users_file(self) -> Path:
        return self._directory / "users.json"

    def _write_users(self) -> None:
        draft = self._users_file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(self._users))
        draft.replace(self._users_file)

    def _issue(self) -> Certificate:
        if self._certificate is None:
            self._certificate = issue_for_loopback(self._directory / "tls")
        return self._certificate

    async def _greets(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"* OK")
        finally:
            writer.close()
