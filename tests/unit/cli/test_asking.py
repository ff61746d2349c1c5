"""A prompt for a secret at a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

ASKS = """
import asyncio, sys
from streams.cli.account_input import ask_secret

async def main():
    ask_secret(from_stdin=False, file=None, prompt="Password: ")

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_one_interruption_ends_it() -> None:
    """asyncio takes the first for a cancellation, of which a prompt that blocks the loop hears nothing."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", ASKS],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    ) as asking:
        os.close(slave)
        shown = b""
        while b"Password: " not in shown:
            shown += os.read(master, 1024)
        asking.send_signal(signal.SIGINT)
        assert asking.wait(30) == 130
    os.close(master)
    assert b"Traceback" not in shown
