"""One FETCH command, read as a stream of chunks while its answer runs in.

Invariants: only messages that were asked for come out, each with all that was told of it up to then, and each once;
data about others, and what is told of a message after it went out, goes to the change collector. A message that lacks
an item that was asked for waits for it until the end (case 33), then comes out as it is: a missing item is not an
empty one (case 48). At most two chunks are in memory; beyond that the connection is asked to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from operator import attrgetter
from typing import Final

from pyroaring import BitMap

from streams.errors import ConnectionLost
from streams.imap.changes import ChangeCollector, merge
from streams.imap.connection import ImapProtocol
from streams.imap.protocol.commands import Command, fetch_item, sequence_set
from streams.imap.protocol.responses import Fetched, Malformed, Response, Tagged, Vanished
from streams.imap.values import FetchChunk, FetchedMessage, UnreadableFetch

CHUNK_BYTES: Final = 8 << 20  # of responses; a chunk ends there even with few messages
_MAX_UNREADABLE: Final = 1000  # kept for one chunk

_FIELDS: Final = {
    b"FLAGS": "flags",
    b"MODSEQ": "modseq",
    b"INTERNALDATE": "internal_date",
    b"RFC822.SIZE": "size",
    b"EMAILID": "email_id",
    b"X-GM-MSGID": "gm_msgid",
    b"X-GM-THRID": "gm_thrid",
    b"X-GM-LABELS": "gm_labels",
    b"BODYSTRUCTURE": "structure",
}
MODSEQ_USE: Final = "FETCH=MODSEQ"
# THREADID may be NIL for good (RFC 8474 section 5.3), so it is not waited for.


def without_modseq(items: Sequence[bytes]) -> list[bytes]:
    """Items for a server that offers CONDSTORE and does not know MODSEQ: the modification sequence stays unknown."""
    return [item for item in items if item != b"MODSEQ"]


class AskedUids:
    """The UIDs of a set such as `1:5,7,20:*`."""

    __slots__ = ("_from", "_uids")

    def __init__(self, uids: str) -> None:
        self._uids = BitMap()
        self._from = 1 << 32
        for part in uids.split(","):
            first, _, last = part.partition(":")
            if "*" in (first, last):
                other = last if first == "*" else first
                self._from = min(self._from, 1 if other in ("", "*") else int(other))
            else:
                low, high = int(first), int(last or first)
                self._uids.add_range(min(low, high), max(low, high) + 1)

    def __contains__(self, uid: int) -> bool:
        return uid in self._uids or uid >= self._from


class FetchStream:
    """`run` one command; afterwards `tagged` is its end."""

    def __init__(
        self,
        protocol: ImapProtocol,
        changes: ChangeCollector,
        uids: str,
        items: Sequence[bytes],
        chunk: int,
        *,
        earlier: bool,
    ) -> None:
        self._protocol = protocol
        self._changes = changes
        self._asked = AskedUids(uids)
        names = [item.upper() for item in items]
        fields = [_FIELDS[name] for name in names if name in _FIELDS]
        # With one field attrgetter gives the value itself; "uid" makes it two and is never None.
        self._told = attrgetter("uid", *fields) if fields else None
        self._sections = tuple(_section_of(name) for name in names if b"[" in name or name == b"RFC822.HEADER")
        self._chunk = chunk
        self._earlier = earlier
        self._ready: dict[int, FetchedMessage] = {}
        self._partial: dict[int, FetchedMessage] = {}
        self._delivered = BitMap()
        self._bytes = 0
        self._vanished = BitMap()
        self._unreadable: list[UnreadableFetch] = []
        self._stirred = asyncio.Event()
        self._tagged: Tagged | None = None

    @property
    def tagged(self) -> Tagged:
        """The command's tagged response."""
        assert self._tagged is not None
        return self._tagged

    async def run(self, command: Command) -> AsyncGenerator[FetchChunk, None]:
        """Send the command and give the chunks. Raises what ended the connection, after what had come whole."""
        limits = self._protocol.limits
        exchange = self._protocol.start(
            command, on_untagged=self._take, timeout_s=limits.fetch_timeout_s, stall_s=limits.fetch_stall_timeout_s
        )
        exchange.done.add_done_callback(lambda _: self._stirred.set())
        try:
            while not exchange.done.done():
                if self._full():
                    part = self._next_chunk()
                    if not self._full():
                        self._protocol.release()
                    yield part
                    continue
                self._stirred.clear()
                self._protocol.release()
                await self._stirred.wait()
            for uid, message in self._partial.items():
                self._ready[uid] = message
            self._partial = {}
            while self._ready or self._vanished or self._unreadable:
                yield self._next_chunk()
            self._tagged = exchange.done.result()
        finally:
            if not exchange.done.done():
                self._protocol.fail(ConnectionLost("FETCH was given up", code="cancelled"))

    def _full(self) -> bool:
        return len(self._ready) >= self._chunk or self._bytes >= CHUNK_BYTES or self._too_unreadable()

    def _too_unreadable(self) -> bool:
        return len(self._unreadable) >= _MAX_UNREADABLE

    def _next_chunk(self) -> FetchChunk:
        if len(self._ready) <= self._chunk:
            messages = list(self._ready.values())
            self._ready = {}
            self._bytes = 0
        else:
            uids = list(self._ready)[: self._chunk]
            self._bytes -= self._bytes * len(uids) // len(self._ready)
            messages = [self._ready.pop(uid) for uid in uids]
        self._delivered.update([message.uid for message in messages])
        vanished, self._vanished = self._vanished, BitMap()
        unreadable, self._unreadable = tuple(self._unreadable), []
        return FetchChunk(messages, vanished, unreadable)

    def _take(self, response: Response) -> bool:
        if isinstance(response, Fetched):
            message = response.message
            if message is None or message.uid not in self._asked or message.uid in self._delivered:
                self._changes.add(response)
            else:
                self._take_message(message)
        elif isinstance(response, Vanished) and response.earlier and self._earlier:
            self._vanished |= response.uids
        elif isinstance(response, Malformed) and response.kind == "FETCH":
            self._unreadable.append(UnreadableFetch(response.uid, response.reason))
        else:
            return False
        if self._full():
            self._stirred.set()
            if len(self._ready) >= 2 * self._chunk or self._bytes >= 2 * CHUNK_BYTES or self._too_unreadable():
                self._protocol.hold()
        return True

    def _take_message(self, message: FetchedMessage) -> None:
        uid = message.uid
        known = self._ready.get(uid)
        if known is not None:
            self._ready[uid] = merge(known, message)
            self._bytes += self._protocol.response_bytes
            return
        if self._partial:
            known = self._partial.pop(uid, None)
            if known is not None:
                message = merge(known, message)
        if self._complete(message):
            self._ready[uid] = message
            self._bytes += self._protocol.response_bytes
            return
        self._partial[uid] = message
        self._bytes += self._protocol.response_bytes
        if len(self._partial) > self._chunk or self._bytes >= CHUNK_BYTES:
            # A server that never tells an item: do not wait for it in all of them.
            oldest = next(iter(self._partial))
            self._ready[oldest] = self._partial.pop(oldest)

    def _complete(self, message: FetchedMessage) -> bool:
        if self._told is not None and None in self._told(message):
            return False
        return not self._sections or all(map(message.sections.__contains__, self._sections))


def _section_of(name: bytes) -> bytes:
    """The key under which the section of a FETCH item is told."""
    if name == b"RFC822.HEADER":
        return b"HEADER"
    kind, _, rest = name.partition(b"[")
    section = rest.split(b"]", 1)[0].split(b" ", 1)[0].split(b"(", 1)[0]
    return b"BINARY " + section if kind.startswith(b"BINARY") else section


def fetch_command(uids: str, items: Sequence[bytes], changed_since: int | None, *, vanished: bool) -> Command:
    """UID FETCH of checked arguments; UID is always among the items."""
    names = [fetch_item(item) for item in items]
    if not any(name.upper() == b"UID" for name in names):
        names.insert(0, b"UID")
    parts = [sequence_set(uids), b"(" + b" ".join(names) + b")"]
    if changed_since is not None:
        parts.append(b"(CHANGEDSINCE %d%s)" % (changed_since, b" VANISHED" if vanished else b""))
    return Command("UID FETCH", tuple(parts))
