"""`python -m tests.bench.imap_host ACCOUNTS`: a light mail host in a process of its own, for many users.

Tells its port, then obeys lines on its standard input: `drop` ends every connection, `report` tells what happened since
then. Each answer is one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.scripted_imap.model import Account
from tests.scripted_imap.server import QRESYNC, ImapServer

PASSWORD = "secret"
ANSWER_S = 60.0


def many_files() -> int:
    """Raise this process's limit of open files as far as it goes; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class MailHost:
    """The parent's handle."""

    def __init__(self, process: Process, port: int) -> None:
        self._process = process
        self.port = port

    async def ask(self, what: str) -> dict[str, Any]:
        """`drop` or `report`."""
        assert self._process.stdin is not None
        self._process.stdin.write(what.encode() + b"\n")
        return await _answer(self._process)


async def _answer(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(ANSWER_S):
        line = await process.stdout.readline()
    answer: dict[str, Any] = json.loads(line)
    return answer


@asynccontextmanager
async def mail_host(accounts: int) -> AsyncIterator[MailHost]:
    """The host, gone afterwards. Users are `u0`, `u1`, ..., all with `PASSWORD` and one message."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.imap_host", str(accounts), stdin=PIPE, stdout=PIPE, limit=1 << 24
    )
    try:
        yield MailHost(process, (await _answer(process))["port"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def main(count: int) -> None:
    """Serve until the standard input ends."""
    many_files()
    accounts = [Account(f"u{number}", PASSWORD) for number in range(count)]
    for number, account in enumerate(accounts):
        account.mailboxes["INBOX"].deliver(
            f"Subject: {number}\r\nMessage-ID: <{number}@example.test>\r\n\r\nx".encode()
        )
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    dropped_at, idle_before = time.monotonic(), 0
    async with ImapServer(accounts, QRESYNC) as server:
        print(json.dumps({"port": server.port}), flush=True)
        while line := await lines.readline():
            if line.strip() == b"drop":
                server.login_times.clear()
                idle_before = server.counts["IDLE"]
                server.commands.clear()
                dropped_at = time.monotonic()
                await server.drop_all()
            print(
                json.dumps(
                    {
                        "open": server.open,
                        "idle": server.counts["IDLE"] - idle_before,
                        "logins": [at - dropped_at for at in server.login_times],
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
