"""`python -m tests.bench.watched_mail`: a light mail host in a process of its own that writes down who comes and goes.

The first line on its standard input is what it serves, a JSON list of `[user, messages, age of the newest in days]`.
It answers with its port. Then each line is a JSON list: `["take"]` answers with what happened since the last time,
`["deliver", user, ...]` gives each of them a message. What happened is `[what, user, unix time, connection]`, with
`login`, `idle` (the IDLE stands), `done` (it was ended with DONE), `logout`, and `closed` for every connection that was
logged in.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.bench.imap_host import PASSWORD, many_files
from tests.scripted_imap.bending import Ended
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import QRESYNC, ImapServer, _Session

__all__ = ["PASSWORD", "Happened", "WatchedMail", "watched_mail"]

ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing that a user's client did."""

    what: str
    user: str
    at: float
    connection: int


@dataclass
class WatchedMail:
    """The parent's handle."""

    process: asyncio.subprocess.Process
    port: int
    happened: list[Happened] = field(default_factory=list)
    """Everything so far, in order; `take` adds to it."""

    async def take(self) -> list[Happened]:
        """What happened since the last time."""
        found = [Happened(*each) for each in await self._ask(["take"])]
        self.happened += found
        return found

    async def deliver(self, users: Iterable[str]) -> None:
        """A message for each."""
        await self._ask(["deliver", *users])

    async def _ask(self, what: Sequence[str]) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        return await _answer(self.process)


async def _answer(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    async with asyncio.timeout(ANSWER_S):
        return json.loads(await process.stdout.readline())


@asynccontextmanager
async def watched_mail(users: Sequence[tuple[str, int, float]]) -> AsyncIterator[WatchedMail]:
    """The host, gone afterwards. Each user has so many messages, the newest so many days old."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.watched_mail", stdin=PIPE, stdout=PIPE, limit=1 << 28
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(users).encode() + b"\n")
        yield WatchedMail(process, await _answer(process))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _Watched(_Session):
    """A session that tells the server's journal."""

    server: _Server
    number = 0

    def note(self, what: str) -> None:
        if self.account is not None:
            self.server.journal.append((what, self.account.username, time.time(), self.number))

    async def run(self, tag: str, rest: str) -> None:
        name = rest.split(" ", 1)[0].upper()
        if name == "LOGOUT":
            self.note("logout")
        await super().run(tag, rest)
        if name in ("LOGIN", "AUTHENTICATE"):
            self.note("login")

    async def idle(self, tag: str, rest: str) -> None:
        self.note("idle")
        await super().idle(tag, rest)
        self.note("done")


class _Server(ImapServer):
    """Keeps no list of commands: there are too many."""

    journal: list[tuple[str, str, float, int]]
    connections = 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = _Watched(self, reader, writer)
        self.connections += 1
        session.number = self.connections
        self.open += 1
        try:
            await session.serve()
        except (Ended, ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            session.note("closed")
            session.close()
            writer.close()
            self.commands.clear()


def message(number: int) -> bytes:
    """A letter of about 1 KB."""
    return (
        f"From: Sender {number % 97} <s{number % 97}@example.test>\r\nTo: me@example.test\r\n"
        f"Subject: letter {number}\r\nMessage-ID: <{number}@example.test>\r\n"
        "Date: Mon, 30 Nov 2026 10:00:00 +0000\r\n\r\n" + "A line of text that says little.\r\n" * 25
    ).encode()


def account_of(user: str, messages: int, newest_age_days: float) -> Account:
    """A user with mail in INBOX, a minute between two messages."""
    account = Account(user, PASSWORD)
    newest = datetime.now(UTC) - timedelta(days=newest_age_days)
    for number in range(messages):
        age = timedelta(minutes=messages - 1 - number)
        account.mailboxes["INBOX"].deliver(message(number), internal_date=newest - age)
    return account


async def main() -> None:
    """Serve until the standard input ends."""
    many_files()
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 28)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    accounts = [account_of(*each) for each in json.loads(await lines.readline())]
    server = _Server(accounts, QRESYNC)
    server.journal = []
    async with server:
        print(json.dumps(server.port), flush=True)
        while line := await lines.readline():
            what, *users = json.loads(line)
            answer: object = None
            if what == "take":
                answer, server.journal = server.journal, []
            else:
                for user in users:
                    inbox = server.accounts[user].mailboxes["INBOX"]
                    inbox.deliver(message(inbox.uidnext), internal_date=datetime.now(UTC))
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
