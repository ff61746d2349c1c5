"""Our own command line and worker, run as a person would run them: `faust -A streams …`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from streams.local.errors import ServiceFailed
from streams.local.process import ChildProcess

COMMAND_DEADLINE_S = 180.0  # 2 s on an idle machine
READY_DEADLINE_S = 180.0
STOP_GRACE_S = 50.0  # the longest its drain may take with a grace of 5 s
PROBE_TIMEOUT_S = 2.0

FAUST = (sys.executable, "-m", "faust", "-A", "streams")


async def command(environment: Mapping[str, str], *arguments: str, secret: str | None = None) -> str:
    """Run one subcommand; `secret` goes in by stdin. Returns what it printed. Raises `ServiceFailed`."""
    process = await asyncio.create_subprocess_exec(
        *(*FAUST, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,  # Ctrl-C at the terminal is ours to hand on
    )
    try:
        async with asyncio.timeout(COMMAND_DEADLINE_S):
            output, errors = await process.communicate(None if secret is None else secret.encode() + b"\n")
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise ServiceFailed(f"faust -A streams {arguments[0]}", f"took over {COMMAND_DEADLINE_S:.0f} s") from error
        raise
    if process.returncode:
        raise ServiceFailed(
            f"faust -A streams {' '.join(arguments[:2])}",
            f"ended with exit code {process.returncode}",
            errors.decode("utf-8", "replace").strip(),
        )
    return output.decode()


class Worker:
    """`faust -A streams worker`."""

    def __init__(self, directory: Path, environment: Mapping[str, str], probe_port: int) -> None:
        self.probe_port = probe_port
        self._child = ChildProcess(
            "worker",
            [*FAUST, "worker", "-l", "info"],
            log=directory / "worker.log",
            environment=dict(environment) | {"PROBE_PORT": str(probe_port)},
            directory=directory,
        )

    @property
    def log(self) -> Path:
        """What it writes."""
        return self._child.log

    def tail(self) -> str:
        """The last lines it wrote."""
        return self._child.log_tail()

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises `ServiceFailed`."""
        self._child.start()
        await self._child.wait_ready(self._ready, deadline_s=READY_DEADLINE_S)

    async def ended(self) -> None:
        """Return never; raises `ServiceFailed` when it ends by itself."""
        while self._child.running:
            await asyncio.sleep(0.2)
        raise ServiceFailed("worker", "ended by itself", self._child.log_tail())

    async def stop(self) -> None:
        """Ask it to end, as an operator would."""
        await self._child.stop(signal.SIGTERM, grace_s=STOP_GRACE_S)

    async def _ready(self) -> bool:
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.probe_port}/ready", timeout=PROBE_TIMEOUT_S
            ) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def account_id_of(printed: str) -> str:
    """The id in what `accounts add --json` printed."""
    return str(json.loads(printed)["account_id"])
