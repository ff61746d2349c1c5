"""One connection to an IMAP server: bytes in and out, commands in flight, deadlines, back-pressure.

Derives from aioimaplib's protocol class for its tags, states and the table of which command is legal in which state,
and replaces its whole response path. Invariants:

* every response reaches a handler: that of a command in flight, or the session's for what comes unasked;
* the connection ends once, and then every command in flight fails at once with the reason;
* nothing waits without a deadline, and after one that passed the connection is thrown away (case 80);
* parsing holds the event loop for `SLICE_S` at most, and does not run ahead of a reader that asked it to wait;
* no byte that was sent or received is ever logged.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from typing import Any, Final

import aioimaplib.aioimaplib as base

from streams.errors import CommandTimedOut, ConnectionLost, MailstreamsError
from streams.imap.errors import ProtocolViolation
from streams.imap.observer import SessionObserver
from streams.imap.protocol.codes import During, classify
from streams.imap.protocol.commands import Command, LiteralMode, encode
from streams.imap.protocol.framing import Framer
from streams.imap.protocol.parser import parse
from streams.imap.protocol.responses import (
    Continuation,
    Fetched,
    Malformed,
    Response,
    Tagged,
    Unknown,
    Untagged,
)
from streams.imap.values import Limits, TrafficCounters

# aioimaplib prints lines of the dialogue, passwords among them (cases 103 and 104).
_LIBRARY_LOGGERS: Final = ("aioimaplib", "aioimaplib.aioimaplib")
SLICE_S: Final = 0.004
_SLICE_CHECK_EVERY: Final = 16  # responses between two looks at the clock
_INFLATE_STEP: Final = 64 << 10


def pin_library_loggers() -> None:
    """Make sure that the library's loggers emit nothing, whatever the level of the root logger."""
    for name in _LIBRARY_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
        logger.disabled = True


class Exchange:
    """One command in flight. Awaiting `done` gives its tagged response, or raises what ended the connection."""

    __slots__ = (
        *("name", "tag", "chunks", "done", "on_untagged", "on_continuation"),
        *("deadline", "stall_s", "pauses", "started", "timeout_s"),
    )

    def __init__(
        self,
        name: str,
        tag: bytes,
        chunks: list[bytes],
        done: asyncio.Future[Tagged],
        on_untagged: Callable[[Response], bool] | None,
        on_continuation: Callable[[bytes], bytes | None] | None,
    ) -> None:
        self.name = name
        self.tag = tag
        self.chunks = chunks  # still to be sent, each after a "+"
        self.done = done
        self.on_untagged = on_untagged
        self.on_continuation = on_continuation
        self.timeout_s: float | None = None  # counted from when it is the oldest in flight: servers answer in order
        self.deadline: float | None = None  # loop time by which it must have ended
        self.stall_s: float | None = None  # longest time without a byte
        self.pauses = False  # reading stops with its tagged response: what follows is not ours to parse yet
        self.started = 0.0


class ImapProtocol(base.IMAP4ClientProtocol):  # type: ignore[misc]
    """See the module. Used by `connecting` and `session` only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, observer: SessionObserver) -> None:
        pin_library_loggers()
        super().__init__(loop)
        self.limits = limits
        self.observer = observer
        self.transport: asyncio.Transport | None = None
        self.failure: MailstreamsError | None = None
        self.literal_mode = LiteralMode.SYNCHRONISING
        self.greeting: asyncio.Future[Untagged] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.on_unasked: Callable[[Response], None] | None = None
        self.redact: Callable[[bytes], bytes] | None = None  # while a secret is under way and may be repeated to us
        self.on_failure: Callable[[MailstreamsError], None] | None = None
        self._framer = Framer(
            max_line=limits.max_line_bytes,
            max_literal=limits.max_literal_bytes,
            max_response=limits.max_response_bytes,
        )
        self._in_flight: dict[bytes, Exchange] = {}
        self._bye: Untagged | None = None
        self._closing = False
        self._reading = True
        self.response_bytes = 0  # of the response being handled
        self._held = False  # a reader of a streamed answer asked us to wait
        self._held_since = 0.0
        self._halted = False  # STARTTLS or COMPRESS: bytes after its tagged answer are another stream
        self._slice: asyncio.Handle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._last_byte = loop.time()
        self._inflate: Any = None
        self._deflate: Any = None
        self._compressed = b""
        self._bytes_received = 0
        self._bytes_sent = 0
        self._commands_sent = 0
        self._round_trips = 0

    # --- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._last_byte = self.loop.time()

    def data_received(self, d: bytes) -> None:
        self._last_byte = self.loop.time()
        self._bytes_received += len(d)
        if self.failure is not None:
            return
        if self._inflate is not None:
            self._compressed += d
        else:
            self._framer.feed(d)
        self._pump()

    def eof_received(self) -> bool:
        return False  # the transport closes itself, connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        if self.failure is None:
            if self._held or self._slice is not None:
                self._held = False
                self._drain()
            self.fail(self._loss(exc))
        if not self.closed.done():
            self.closed.set_result(None)

    def _loss(self, exc: Exception | None) -> MailstreamsError:
        if self._closing:
            return ConnectionLost("the connection was closed", code="closed")
        if self._bye is not None:
            text = self._bye.text if self.redact is None else self.redact(self._bye.text)
            return classify(During.BYE, "BYE", self._bye.code, text)
        # The class alone: texts of TLS and socket errors may hold addresses, and never help to decide.
        return ConnectionLost(f"the connection was lost ({type(exc).__name__ if exc is not None else 'end of stream'})")

    # --- responses ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Handle what is complete, for a slice of time; the rest when the loop comes round."""
        if self._slice is not None or self._held or self._halted:
            return
        clock = self.loop.time
        until = clock() + SLICE_S
        count = 0
        try:
            while not self._stopped():
                raw = self._framer.next_response()
                if raw is None:
                    if not self._compressed or not self._inflate_some():
                        break
                    continue
                self.response_bytes = len(raw.data)
                self._dispatch(parse(raw))
                count += 1
                if not count % _SLICE_CHECK_EVERY and clock() > until:
                    self._slice = self.loop.call_soon(self._resume_slice)
                    break
        except ProtocolViolation as error:
            self.fail(error)
            return
        except Exception as error:
            self._fail_unforeseen(error)
            return
        self._set_reading(self._slice is None and not self._stopped())

    def _stopped(self) -> bool:
        return self._held or self._halted or self.failure is not None

    def _resume_slice(self) -> None:
        self._slice = None
        self._pump()

    def _drain(self) -> None:
        """The peer is gone: what it sent before is handled still, a tagged answer among it."""
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None
        try:
            while not self._stopped():
                raw = self._framer.next_response()
                if raw is None:
                    break
                self.response_bytes = len(raw.data)
                self._dispatch(parse(raw))
        except ProtocolViolation as error:
            self.fail(error)
        except Exception as error:
            self._fail_unforeseen(error)

    def _fail_unforeseen(self, error: Exception) -> None:
        """A defect of ours ends this connection, whose place in the dialogue is lost, and nothing else (case 81)."""
        self.fail(ProtocolViolation(f"an answer could not be handled ({type(error).__name__})", code="internal"))

    def _inflate_some(self) -> bool:
        """Inflate one bounded step, so that a small packet cannot grow without bound. False: more input is needed."""
        try:
            plain = self._inflate.decompress(self._compressed, _INFLATE_STEP)
        except zlib.error:
            raise ProtocolViolation("the compressed stream is damaged") from None
        self._compressed = self._inflate.unconsumed_tail
        if self._inflate.eof:
            raise ProtocolViolation("the compressed stream ended")
        self._framer.feed(plain)
        return bool(plain)

    def _dispatch(self, response: Response) -> None:
        if isinstance(response, Fetched) and self._in_flight:  # nearly all there is
            self._offer(response)
            return
        if not self.greeting.done():
            self._take_greeting(response)
            return
        if isinstance(response, Tagged):
            self._finish(response)
            return
        if isinstance(response, Continuation):
            self._continue(response.text)
            return
        if isinstance(response, Untagged) and response.condition == "BYE":
            self._bye = response
            if not self._closing:
                self.fail(self._loss(None))
            return
        if isinstance(response, Unknown):
            self.observer.response_ignored("unknown", response.label)
        elif isinstance(response, Malformed):
            self.observer.response_ignored("malformed", response.kind)
        self._offer(response)

    def _offer(self, response: Response) -> None:
        """To the commands in flight, oldest first; what none of them takes came unasked."""
        for exchange in self._in_flight.values():
            if exchange.on_untagged is not None and exchange.on_untagged(response):
                return
        if self.on_unasked is not None:
            self.on_unasked(response)

    def _take_greeting(self, response: Response) -> None:
        if isinstance(response, Untagged):
            if response.condition == "BYE":  # P5
                self.fail(classify(During.GREETING, "BYE", response.code, response.text))
            else:
                self.greeting.set_result(response)
                self._halted = True  # until the one who connects has looked at it
        else:
            self.greeting.set_exception(ProtocolViolation("what answers is no IMAP server", code="not_imap"))

    def _finish(self, response: Tagged) -> None:
        exchange = self._in_flight.pop(response.tag, None)
        if exchange is None:
            raise ProtocolViolation("an answer came to a command that was not sent")
        if exchange.pauses:
            self._halted = True
        now = self.loop.time()
        self.observer.command_finished(exchange.name, now - exchange.started, response.condition)
        if not exchange.done.done():
            exchange.done.set_result(response)
        for waiting in self._in_flight.values():
            if waiting.timeout_s is not None:
                waiting.deadline = now + waiting.timeout_s

    def _continue(self, text: bytes) -> None:
        for exchange in self._in_flight.values():
            if exchange.chunks:
                self.send(exchange.chunks.pop(0))
                self._round_trips += 1
                return
            if exchange.on_continuation is not None:
                reply = exchange.on_continuation(text)
                if reply is not None:
                    self.send(reply)
                    self._round_trips += 1
                return

    # --- commands -------------------------------------------------------------------------------------------------

    def send(self, line: bytes, scrub: str | None = None) -> None:
        """Write bytes. Nothing is logged, whatever `scrub` says."""
        if self.transport is None or self.failure is not None:
            return
        if self._deflate is not None:
            line = self._deflate.compress(line) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._bytes_sent += len(line)
        self.transport.write(line)

    def start(
        self,
        command: Command,
        *,
        on_untagged: Callable[[Response], bool] | None = None,
        on_continuation: Callable[[bytes], bytes | None] | None = None,
        timeout_s: float | None,
        stall_s: float | None = None,
        pauses: bool = False,
    ) -> Exchange:
        """Send a command. `on_untagged` gets each untagged response first and says whether it was meant for it.

        Raises:
            MailstreamsError: the connection has ended already; its reason.
        """
        if self.failure is not None:
            raise self.failure
        legal = base.Commands.get(command.name.split(" ", 1)[0])
        if legal is not None and self.state not in legal.valid_states:
            raise RuntimeError(f"{command.name} is not legal in state {self.state}")
        now = self.loop.time()
        tag = self.new_tag().encode()
        chunks = encode(tag, command, self.literal_mode)
        exchange = Exchange(command.name, tag, chunks[1:], self.loop.create_future(), on_untagged, on_continuation)
        exchange.started = now
        exchange.timeout_s = timeout_s
        exchange.deadline = None if timeout_s is None else now + timeout_s
        exchange.stall_s = stall_s
        exchange.pauses = pauses
        if not self._in_flight:
            self._round_trips += 1
        self._in_flight[tag] = exchange
        self._commands_sent += 1
        self._last_byte = now
        self.arm()
        self.send(chunks[0])
        return exchange

    async def execute(self, command: Command, **how: Any) -> Tagged:
        """Send a command and wait for its tagged response. Cancelling it throws the connection away."""
        return await self.finish(self.start(command, **how))

    async def finish(self, exchange: Exchange) -> Tagged:
        """Wait for a command's tagged response."""
        try:
            return await exchange.done
        except asyncio.CancelledError:
            self.fail(ConnectionLost(f"{exchange.name} was given up", code="cancelled"))
            raise

    async def login(self, user: str, password: str) -> Any:
        """Refused: this way the library logs the password. `session.ImapSession.login` does it without."""
        raise TypeError("a login goes through ImapSession.login")

    async def xoauth2(self, user: str, token: str) -> Any:
        """Refused, see `login`."""
        raise TypeError("a login goes through ImapSession.login")

    # --- deadlines ------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Set the timer anew after a deadline was changed."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        due = self._next_due()
        if due is not None and self.failure is None:
            self._watchdog = self.loop.call_at(due, self._watch)

    def _next_due(self) -> float | None:
        """Time of the earliest deadline. None while a reader makes us wait: the server is not to blame then."""
        if self._held:
            return None
        flying = self._in_flight.values()
        dues = [exchange.deadline for exchange in flying if exchange.deadline is not None]
        dues += [self._last_byte + exchange.stall_s for exchange in flying if exchange.stall_s is not None]
        return min(dues, default=None)

    def _watch(self) -> None:
        self._watchdog = None
        due = self._next_due()
        if due is None:
            return
        if due > self.loop.time() or self._slice is not None:
            self._watchdog = self.loop.call_at(max(due, self.loop.time() + 0.01), self._watch)
            return
        names = ", ".join(sorted({exchange.name for exchange in self._in_flight.values()}))
        self.fail(CommandTimedOut(f"no answer in time to {names}"))

    # --- flow -----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stop handling responses until `release`: a reader has as much as it wants in memory."""
        if not self._held:
            self._held = True
            self._held_since = self.loop.time()
            self._set_reading(False)
            self.arm()

    def release(self) -> None:
        """Go on after `hold`. The time held counts against no deadline."""
        if self._held:
            self._held = False
            now = self.loop.time()
            for exchange in self._in_flight.values():
                if exchange.deadline is not None:
                    exchange.deadline += now - self._held_since
            self._last_byte = now
            self.arm()
            self._pump()

    def unhalt(self) -> None:
        """Go on after the greeting, or after a command that `pauses`."""
        self._halted = False
        self._pump()

    @property
    def leftover(self) -> int:
        """Bytes received and not handled."""
        return self._framer.buffered + len(self._compressed)

    def _set_reading(self, on: bool) -> None:
        if self.transport is None or on == self._reading or self.transport.is_closing():
            return
        self._reading = on
        if on:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """STARTTLS is done: go on over TLS, which begins with reading switched on."""
        self.transport = transport
        self._reading = True

    def start_compression(self) -> None:
        """COMPRESS=DEFLATE was accepted (RFC 4978): what follows, in both directions, is raw DEFLATE."""
        self._inflate = zlib.decompressobj(-15)
        self._deflate = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -15)
        self._compressed = self._framer.take_rest()

    # --- the end --------------------------------------------------------------------------------------------------

    def expect_end(self) -> None:
        """From here on BYE and the end of the stream are what we want."""
        self._closing = True

    def fail(self, error: MailstreamsError) -> None:
        """End the connection with a reason, once. Every command in flight raises it."""
        if self.failure is not None:
            return
        self.failure = error
        self.state = base.LOGOUT
        for handle in (self._watchdog, self._slice):
            if handle is not None:
                handle.cancel()
        self._watchdog = self._slice = None
        self._held = False
        in_flight, self._in_flight = self._in_flight, {}
        for exchange in in_flight.values():
            self.observer.command_finished(exchange.name, self.loop.time() - exchange.started, error.code)
            if not exchange.done.done():
                exchange.done.set_exception(error)
                exchange.done.exception()  # seen: nobody may be waiting when the socket ends
        if not self.greeting.done():
            self.greeting.set_exception(error)
            self.greeting.exception()
        if self.transport is not None:
            self.transport.abort()
        self.observer.session_ended(error.code)
        if self.on_failure is not None:
            self.on_failure(error)

    @property
    def traffic(self) -> TrafficCounters:
        """What was moved so far."""
        return TrafficCounters(self._bytes_received, self._bytes_sent, self._commands_sent, self._round_trips)
