"""One `faust -A streams worker` process, run as an operator would: settings from the environment, output to a file."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from streams.local import launch
from streams.local.ports import free_port

POLL_S: Final = 0.1
STOP_S: Final = 45.0
ROOT: Final = Path(__file__).resolve().parents[2]


class Worker:
    """A worker process. `environment` holds its settings, `module` is what `-A` names."""

    def __init__(self, name: str, directory: Path, environment: Mapping[str, str], *, module: str = "streams") -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.probe_port = free_port()
        self._data = directory / name
        self._module = module
        self._environment = dict(environment)
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the latest start."""
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether it is alive (a paused one is)."""
        return self._popen is not None and self._popen.poll() is None

    def start(self, **changes: str) -> None:
        """Start it, again after a stop or kill, with `changes` to its settings; does not wait. Its log goes on."""
        assert not self.running, f"{self.name} runs already"
        self._data.mkdir(parents=True, exist_ok=True)
        environment = self._environment | {
            "WORKER_NAME": self.name,
            "DATA_DIR": str(self._data),
            "PROBE_PORT": str(self.probe_port),
            "PYTHONPATH": os.pathsep.join(filter(None, (self._environment.get("PYTHONPATH"), str(ROOT)))),
        }
        # Through the launcher, so that the kernel ends the worker should this process die.
        ties = [str(os.getpid()), str(int(signal.SIGKILL)), "-1", "-1", "--"]
        command = [sys.executable, "-m", "faust", "-A", self._module, "worker"]
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(launch.__file__)), *ties, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | changes,
                cwd=self._data,
                start_new_session=True,
            )
        _living.add(self)

    async def ready(self, *, within_s: float = 120.0) -> None:
        """Wait until `/ready` answers 200. Fails with the end of its log."""
        await self._until(lambda: self.probe("/ready")[0] == 200, within_s, "is not ready")

    async def alive(self, *, within_s: float = 30.0) -> None:
        """Wait until `/health` answers 200."""
        await self._until(lambda: self.probe("/health")[0] == 200, within_s, "does not answer")

    async def _until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not await asyncio.to_thread(condition):
            if not self.running:
                raise AssertionError(f"{self.name} ended\n{self.tail()}")
            if loop.time() > deadline:
                status, answer = await asyncio.to_thread(self.probe, "/ready")
                raise AssertionError(f"{self.name} {what} after {within_s:g} s: {status} {answer}\n{self.tail()}")
            await asyncio.sleep(POLL_S)

    def probe(self, path: str) -> tuple[int, Any]:
        """Status and answer of a probe; 0 when nobody answers. Blocks up to 3 s."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}{path}", timeout=3) as response:
                return response.status, _parsed(response.read())
        except urllib.error.HTTPError as error:
            return error.code, _parsed(error.read())
        except OSError:
            return 0, None

    def outside(self) -> Iterator[tuple[str, bytes]]:
        """All that others can see of it: its command lines, what its probes answer, its files. (What, content)."""
        if self.running:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self.pid)
                for each in (process, *process.children(recursive=True)):
                    yield f"command line of {self.name}", "\0".join(each.cmdline()).encode("utf-8", "surrogateescape")
            for path in ("/health", "/ready", "/metrics"):
                _, answer = self.probe(path)
                text = answer if isinstance(answer, str) else json.dumps(answer)
                yield f"{path} of {self.name}", text.encode("utf-8", "replace")
        for file in sorted(self._data.rglob("*")):
            with contextlib.suppress(OSError):  # RocksDB removes files as it goes on
                if file.is_file():
                    yield f"file {file.relative_to(self._data)} of {self.name}", file.read_bytes()

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        self.signal(signal.SIGTERM)

    async def stop(self, *, within_s: float = STOP_S) -> int:
        """SIGTERM and wait for the end; returns the exit code."""
        self.terminate()
        return await self.ended(within_s=within_s)

    async def ended(self, *, within_s: float = STOP_S) -> int:
        """Wait for the end; returns the exit code. One that does not end is killed, and `AssertionError` is raised."""
        popen = self._popen
        assert popen is not None
        deadline = asyncio.get_running_loop().time() + within_s
        while (code := popen.poll()) is None:
            if asyncio.get_running_loop().time() > deadline:
                await self.kill()
                raise AssertionError(f"{self.name} did not end within {within_s:g} s\n{self.tail()}")
            await asyncio.sleep(POLL_S)
        return code

    async def kill(self) -> None:
        """kill -9, and wait until the kernel has done it."""
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            await asyncio.to_thread(self._popen.wait, 10)

    def kill_now(self) -> None:
        """The same without waiting; for the end of the interpreter."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self.running:
            os.kill(self.pid, number)

    def tail(self, lines: int = 40) -> str:
        """The last lines it wrote."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def log_text(self) -> str:
        """Everything it wrote."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_records(self) -> list[dict[str, Any]]:
        """Its log records, as it writes them in JSON."""
        records: list[dict[str, Any]] = []
        for line in self.log_text().splitlines():
            if line.startswith("{"):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    records.append(record)
        return records


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


_living: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _kill_the_living() -> None:
    for worker in list(_living):
        worker.kill_now()
