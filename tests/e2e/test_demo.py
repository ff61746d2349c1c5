"""`make demo` as a newcomer runs it: mail flows, it ends by itself, Ctrl-C ends it at any time, nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
DEMO_DEADLINE_S = 240.0
END_DEADLINE_S = 60.0


async def _start(directory: Path, **settings: str) -> asyncio.subprocess.Process:
    directory.chmod(0o711)
    kept: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if name not in {"KAFKA_BOOTSTRAP_SERVERS", "POSTGRES_DSN"}
    }
    environment = {**kept, "TMPDIR": str(directory), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **settings}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "streams.local.demo"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        cwd=ROOT,
    )


def _left(directory: Path) -> list[str]:
    """What still runs out of the directory, and what still lies in it."""
    running = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(directory) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            running.append(line)
    return running + [path.name for path in directory.iterdir()]


async def test_demo_shows_mail_flowing_and_ends_by_itself(private_directory: Path) -> None:
    demo = await _start(private_directory, DEMO_SECONDS="6")
    try:
        async with asyncio.timeout(DEMO_DEADLINE_S):
            output, _ = await demo.communicate()
    finally:
        if demo.returncode is None:
            demo.kill()
    text = output.decode()
    assert demo.returncode == 0, text
    assert "message.added" in text
    assert "streams.local.tail" in text, "how to look further"
    assert "From a deed in the mailbox" in text
    assert _left(private_directory) == []


async def test_ctrl_c_during_setup_leaves_nothing(private_directory: Path) -> None:
    demo = await _start(private_directory)
    assert demo.stdout is not None
    seen = b""
    try:
        async with asyncio.timeout(DEMO_DEADLINE_S):
            while b"topics" not in seen:
                line = await demo.stdout.readline()
                assert line, seen.decode()
                seen += line
        demo.send_signal(signal.SIGINT)
        async with asyncio.timeout(END_DEADLINE_S):
            rest = await demo.stdout.read()
            await demo.wait()
    finally:
        if demo.returncode is None:
            demo.kill()
    assert demo.returncode == 130, rest.decode()
    assert _left(private_directory) == []
