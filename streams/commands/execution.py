"""One attempt at one command: run the handler under its time limit and say how it ended.

Invariant: an attempt ends exactly once, whatever its handler does. A handler which ignores its cancellation is given up
after a limit and stays behind; it cannot publish anything any more.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from streams.commands.handlers import HandlerSpec, Task, TaskFailed, TaskStopped
from streams.commands.ports import OutRecord
from streams.commands.threads import start_thread
from streams.domain.retry import Failure
from streams.errors import MailstreamsError, RetryLater, ShardError

log = structlog.get_logger(__name__)

CANCEL_LIMIT_S: Final = 0.7
"""How long the end of a process waits for a cancelled handler; row W7 leaves 2 s for everything that follows."""

MAX_CODE_BYTES: Final = 200
"""Longest code of a failure: a word, which is published and counted by."""


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned."""

    result: Any
    emitted: tuple[OutRecord, ...]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The engine took the attempt back (shutdown, loss of the partition); nothing is known about its work."""

    ignored: str | None = None  # name of the thread or task that did not end in time


AttemptResult = Succeeded | Failure | Interrupted


@dataclass(eq=False, slots=True)
class Attempt:
    """One attempt, running from `start` to the one call of `ended`.

    The usual case costs one task (or thread) and one timer. Only when the time is over, or the engine takes the attempt
    back, a second task sees to it that the handler ends or is given up.
    """

    task: Task
    spec: HandlerSpec
    args: Any
    timeout_s: float
    give_up_s: float  # after the time limit: how long to wait for a handler that does not react
    ended: Callable[[AttemptResult], None]
    loop: asyncio.AbstractEventLoop
    _running: asyncio.Future[Any] | None = None
    _timer: asyncio.TimerHandle | None = None
    _ending: asyncio.Task[None] | None = None
    _interruption: asyncio.Future[None] | None = None
    _interrupted: bool = False
    _over: bool = False

    @property
    def name(self) -> str:
        """Name of the thread or task that runs the handler."""
        return f"{self.spec.kind}:{self.task.command_id}"

    def start(self, context: contextvars.Context) -> None:
        """Begin, with `context` for everything that the handler does and logs."""
        if self.spec.threaded:
            self._running = context.run(start_thread, self.name, self.spec.function, self.args, self.task)[1]
        else:
            coroutine = self.spec.function(self.args, self.task)
            self._running = self.loop.create_task(_contained(coroutine), name=self.name, context=context)
        self._running.add_done_callback(self._handler_ended, context=context)

    def limit(self) -> None:
        """Let the time limit run. Not part of `start`, since most handlers end before a timer is worth its price."""
        if not self._over and self._ending is None:
            self._timer = self.loop.call_later(self.timeout_s, self._time_is_over)

    def interrupt(self) -> None:
        """Take the attempt back. The handler is cancelled and has `CANCEL_LIMIT_S` to react."""
        if self._over or self._interrupted:
            return
        self._interrupted = self.task._stopping = True
        if self._interruption is not None:
            self._interruption.set_result(None)
        if self._ending is None:
            self._ending = self.loop.create_task(self._end_interrupted(), name=f"end:{self.name}")

    def _time_is_over(self) -> None:
        self.task._stopping = True
        if self._ending is None and not self._over:
            self._ending = self.loop.create_task(self._end_late(), name=f"end:{self.name}")

    def _handler_ended(self, running: asyncio.Future[Any]) -> None:
        if self._over:
            _consume(running)
        elif self._ending is None:
            self._end(self._outcome(running))

    def _end(self, result: AttemptResult) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self.ended(result)

    async def _end_late(self) -> None:
        running = self._cancelled()
        self._interruption = interruption = self.loop.create_future()
        await asyncio.wait({running, interruption}, timeout=self.give_up_s, return_when=asyncio.FIRST_COMPLETED)
        self._interruption = None
        if running.done():
            outcome = self._outcome(running)
            late = Failure("timed_out", f"the handler did not end within {self.timeout_s:g} s", retryable=True)
            self._end(outcome if isinstance(outcome, Succeeded) else late)
        elif self._interrupted:
            await self._end_interrupted()
        else:
            log.error("a handler ignores that its time is over and is given up", handler=self.name)
            self._end(
                Failure(
                    "stuck",
                    f"the handler did not end within {self.timeout_s:g} s and ignored its cancellation",
                    retryable=False,
                    unexpected=True,
                )
            )

    async def _end_interrupted(self) -> None:
        running = self._cancelled()
        await asyncio.wait({running}, timeout=CANCEL_LIMIT_S)
        if not running.done():
            self._end(Interrupted(ignored=self.name))
            return
        # What was finished in the last moment is finished; anything else is repeated by whoever comes next.
        outcome = self._outcome(running)
        self._end(outcome if isinstance(outcome, Succeeded) else Interrupted())

    def _cancelled(self) -> asyncio.Future[Any]:
        """The handler, told to end: a coroutine by its cancellation, a thread by what `Task.stopping` says."""
        assert self._running is not None
        if not self.spec.threaded:
            self._running.cancel()
        return self._running

    def _outcome(self, running: asyncio.Future[Any]) -> AttemptResult:
        if running.cancelled():
            return Failure("cancelled", "the handler cancelled itself", retryable=True, unexpected=True)
        error = running.exception()
        if error is None:
            return Succeeded(running.result(), tuple(self.task._emitted))
        return classify(error)


class _Exited(Exception):
    """A coroutine raised what asyncio lets through to whoever runs the event loop; the cause is what it raised."""


async def _contained(coroutine: Awaitable[Any]) -> Any:
    """Await a handler. A task that ends with one of these two ends the event loop, and all other work with it."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise _Exited from error


def classify(error: BaseException) -> AttemptResult:
    """What an exception of a handler means for its command."""
    if isinstance(error, _Exited) and error.__cause__ is not None:
        error = error.__cause__
    try:
        told = _told(error)
    except Exception as why:  # it is of the handler's making, so anything may be wrong with it
        log.error("a handler failed with an error that cannot be told", why=type(why).__name__)
        told = None
    if told is not None:
        return told
    log.error("a handler failed unexpectedly", exc_info=error)
    # Only the type is public: the text of a foreign exception may quote anything.
    return Failure("handler_failed", f"the handler raised {type(error).__name__}", retryable=True, unexpected=True)


def _told(error: BaseException) -> AttemptResult | None:
    """What an error says by itself; None when it is a fault. Raises whatever its parts raise."""
    match error:
        case TaskFailed():
            return Failure(
                _code(error.code), str(error), bool(error.retryable), retry_after_s=_seconds(error.retry_after_s)
            )
        case ShardError():
            # The shard under the handler is starting over: so will the command.
            return Interrupted()
        case RetryLater():
            return Failure(_code(error.code), str(error), retryable=True, retry_after_s=_seconds(error.retry_after_s))
        case MailstreamsError():
            return Failure(_code(error.code), str(error), retryable=False)
        case TaskStopped():
            return Failure("cancelled", "the handler stopped by itself", retryable=True, unexpected=True)
        case _:
            return None


def _code(code: Any) -> str:
    """A code that can be published. Raises `ValueError`."""
    if not isinstance(code, str) or not 0 < len(code.encode()) <= MAX_CODE_BYTES:
        raise ValueError("no code")
    return code


def _seconds(seconds: Any) -> float | None:
    """A wait that can be compared. Raises `ValueError`, `TypeError`, `OverflowError`."""
    if seconds is not None and math.isnan(seconds):
        raise ValueError("no number of seconds")
    return None if seconds is None else float(seconds)


def _consume(future: asyncio.Future[Any]) -> None:
    """Take the result of an abandoned handler, so that nobody complains that it was never looked at."""
    if not future.cancelled():
        future.exception()
