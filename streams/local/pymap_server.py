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

from streams.local.jars import Progress
from streams.local.ports import HOST, free_port
from streams.local.process import ChildProcess
from streams.local.server import LocalMailServer


class PymapServer(LocalMailServer):
    """One server in `directory`. Not started by its constructor."""

    name = "pymap"
    stop_grace_s = 5.0

    def __init__(self, directory: Path, *, progress: Progress = lambda _: None, port: int = 0) -> None:
        """`port` (plain and STARTTLS) is preferred when free."""
        super().__init__(directory, progress)
        self._users: dict[str, str] = {}
        self.host = HOST
        self.port = free_port(port)

    async def start(self) -> None:
        """Start on the same port as before, with no mail. Raises `LocalStackError`."""
        self._progress("pymap: starting")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_users()
        certificate = self._issue()
        files = (str(certificate.certificate), str(certificate.key))
        program = [sys.executable, "-m", "streams.local.pymap_program"]
        child = ChildProcess(
            self.name,
            [*program, str(self._users_file), HOST, str(self.port), *files],
            log=self.log,
            death_signal=signal.SIGKILL,
        )
        await self._run(child, self._greets)

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

    async def _greets(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"* OK")
        finally:
            writer.close()
