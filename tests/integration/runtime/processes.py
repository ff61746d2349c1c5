"""Starts programs of ours as processes, reads what they say, and sends them signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("program.py")
DEADLINE_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running:
    """A process under test."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.said: list[str] = []
        self.logged: list[str] = []
        self._news = asyncio.Condition()
        self._readers = [
            asyncio.create_task(self._read(process.stdout, self.said)),
            asyncio.create_task(self._read(process.stderr, self.logged)),
        ]

    async def _read(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        while line := await stream.readline():
            async with self._news:
                lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()

    async def says(self, text: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until stdout or the log holds `text`."""
        try:
            async with asyncio.timeout(deadline_s), self._news:
                await self._news.wait_for(lambda: any(text in line for line in [*self.said, *self.logged]))
        except TimeoutError:
            raise AssertionError(f"{text!r} was not said:\n" + "\n".join([*self.said, *self.logged])) from None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the end; returns the exit code."""
        async with asyncio.timeout(deadline_s):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Ask a probe."""
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{self.port}{path}"
            async with session.get(url, timeout=aiohttp.ClientTimeout(20)) as answer:
                text = await answer.text()
                return answer.status, json.loads(text) if answer.content_type == "application/json" else {"text": text}

    async def answers(self, path: str, status: int, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Wait until a probe answers with `status`."""
        found: tuple[int, dict[str, Any]] | None = None
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        found = await self.get(path)
                    except aiohttp.ClientConnectionError:
                        found = None
                    if found is not None and found[0] == status:
                        return found[1]
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{path} is {found}, log:\n" + "\n".join(self.logged)) from None

    async def clean_up(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        transport = getattr(self.process, "_transport", None)
        if transport is not None:
            transport.close()


@asynccontextmanager
async def running(
    *arguments: str, environment: Mapping[str, str], data: Path, new_group: bool = False
) -> AsyncIterator[Running]:
    """Run Python with `arguments`; the process is gone at the end of the block."""
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "TMPDIR"}}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env=kept
        | {
            "PYTHONPATH": str(ROOT),
            "DATA_DIR": str(data),
            "PROBE_PORT": str(port),
            "LOG_FORMAT": "json",
            "WORKER_NAME": "w1",
            "MAILSTREAMS_ENV_FILE": "/dev/null",
            **environment,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=new_group,
        limit=2**22,
    )
    found = Running(process, port)
    try:
        yield found
    finally:
        if new_group and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await found.clean_up()
