"""A TCP proxy of our own between a worker and a service: cuts, delays, halves, goes silent, refuses."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

from streams.local.ports import HOST, free_port

_CHUNK: Final = 65_536


class Proxy:
    """Listens on `port` and forwards to a target. Faults are attributes; they hold for open and new connections."""

    def __init__(self, target_port: int, *, port: int = 0, name: str = "") -> None:
        self.name = name
        self.port = port or free_port()
        self.target_port = target_port
        self.delay_s = 0.0
        """Each chunk waits for so long."""
        self.silent = False
        """Half-open: bytes are swallowed in both directions, connections stay open, nobody is told."""
        self.refusing = False
        """New connections are closed at once."""
        self._halve_after: int | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    # --- faults
    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self._open):
            with contextlib.suppress(OSError, RuntimeError):
                writer.transport.abort()

    def halve(self, after_bytes: int) -> None:
        """The next answer is cut in the middle: after so many more bytes from the service its connection is reset."""
        self._halve_after = after_bytes

    def heal(self) -> None:
        """No faults any more. Connections that were silent are reset: what they swallowed is gone."""
        was_silent, self.silent = self.silent, False
        self.refusing, self.delay_s, self._halve_after = False, 0.0, None
        if was_silent:
            self.cut()

    # --- forwarding
    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, there_writer}
        pumps = [
            asyncio.create_task(self._pump(reader, there_writer, answers=False)),
            asyncio.create_task(self._pump(there_reader, writer, answers=True)),
        ]
        self._tasks |= set(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps, timeout=5)
            self._tasks -= set(pumps)
            for each in (writer, there_writer):
                self._open.discard(each)
                with contextlib.suppress(OSError, RuntimeError):
                    each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.silent:
                    continue
                if answers and self._halve_after is not None:
                    if len(data) >= self._halve_after:
                        data, self._halve_after = data[: self._halve_after], None
                        writer.write(data)
                        await writer.drain()
                        return
                    self._halve_after -= len(data)
                writer.write(data)
                await writer.drain()
