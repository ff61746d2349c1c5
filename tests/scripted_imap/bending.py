"""What a test can do to an answer before it is sent."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing for some time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes in pieces of `size`, each its own packet, `gap_s` apart."""

    data: bytes
    size: int = 1
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection ends in order (FIN)."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is torn (RST)."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing more, ever; the socket stays open."""


Action = bytes | Pause | Pieces | Drop | Reset | Hang
Bender = Callable[[list[bytes]], Iterable[Action]]


@dataclass(slots=True)
class Bend:
    """Applies to commands that match, after the first `skip`, at most `times` times."""

    pattern: re.Pattern[str]
    bender: Bender
    times: int | None = None
    skip: int = 0
    used: int = 0

    def applies(self, command: str) -> bool:
        """Whether this command is to be bent; counts it."""
        if self.pattern.search(command) is None or (self.times is not None and self.used >= self.times):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.used += 1
        return True


class Ended(Exception):
    """The connection is over; unwinds its handler."""


async def send(writer: asyncio.StreamWriter, actions: Iterable[Action]) -> None:
    """Do the actions in order. Raises `Ended` when one ends the connection."""
    for action in actions:
        match action:
            case bytes():
                writer.write(action)
            case Pause(seconds=seconds):
                await writer.drain()
                await asyncio.sleep(seconds)
            case Pieces(data=data, size=size, gap_s=gap_s):
                for at in range(0, len(data), size):
                    writer.write(data[at : at + size])
                    await writer.drain()
                    await asyncio.sleep(gap_s)
            case Drop():
                await writer.drain()
                raise Ended
            case Reset():
                await writer.drain()
                await asyncio.sleep(0.01)  # lets what was written leave before the reset overtakes it
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                raise Ended
            case Hang():
                await writer.drain()
                await asyncio.Event().wait()
    await writer.drain()
