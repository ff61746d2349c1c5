"""A server that follows a list, for dialogues that no server with manners would have.

Steps: bytes are sent, with `%T%` standing for the tag of the last command; a `str` is a regular expression that the
next line from the client must match; actions of `bending` do what they say; `StartTls` upgrades. Each connection
takes the next script; the last one serves all that follow.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from tests.scripted_imap.bending import Action, Ended, Pieces, send


@dataclass(frozen=True, slots=True)
class StartTls:
    """Begin TLS as a server."""

    context: ssl.SSLContext


Step = Action | str | StartTls
CAPABILITY_DIALOGUE: tuple[Step, ...] = (
    b"* OK ready\r\n",
    r"CAPABILITY",
    b"* CAPABILITY IMAP4rev1 IDLE ENABLE CONDSTORE QRESYNC ESEARCH SASL-IR AUTH=PLAIN AUTH=XOAUTH2\r\n%T% OK done\r\n",
)
LOGIN_DIALOGUE: tuple[Step, ...] = (
    b"* OK [CAPABILITY IMAP4rev1 IDLE] ready\r\n",
    r"LOGIN",
    b"%T% OK [CAPABILITY IMAP4rev1 IDLE] in\r\n",
)
EXAMINE_DIALOGUE: tuple[Step, ...] = (
    *LOGIN_DIALOGUE,
    r"EXAMINE",
    b"* 10 EXISTS\r\n* OK [UIDVALIDITY 1] x\r\n* OK [UIDNEXT 11] x\r\n%T% OK [READ-ONLY] open\r\n",
)


class ScriptedServer:
    """Use as an async context manager; `port` is known inside.

    `lines` is what clients sent, `wrong` what did not match (and fails the block at its end).
    """

    def __init__(self, *scripts: Sequence[Step], tls: ssl.SSLContext | None = None) -> None:
        self._scripts = scripts
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.lines: list[bytes] = []
        self.wrong: list[str] = []
        self.port = 0

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            assert not self.wrong, self.wrong

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        try:
            await self._follow(script, reader, writer)
        except (Ended, ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _follow(self, script: Sequence[Step], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tag = b"*"
        for step in script:
            match step:
                case str():
                    line = await reader.readline()
                    if not line:
                        return
                    self.lines.append(line)
                    if re.search(step, line.decode("utf-8", "replace")) is None:
                        self.wrong.append(f"wanted {step!r}, got {line!r}")
                    first = line.split(b" ", 1)[0].strip()
                    if len(line.split()) > 1:
                        tag = first
                case StartTls(context=context):
                    await writer.start_tls(context)
                case bytes():
                    await send(writer, [step.replace(b"%T%", tag)])
                case Pieces(data=data, size=size, gap_s=gap_s):
                    await send(writer, [Pieces(data.replace(b"%T%", tag), size, gap_s)])
                case _:
                    await send(writer, [step])
        while line := await reader.readline():  # stay until the client leaves
            self.lines.append(line)
