"""One attempt at one command: run the handler under its time limit and say how it ended.

Invariant: `run_attempt` always ends. A handler which ignores its cancellation is given up after a limit and stays
behind; it cannot publish anything any more.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from streams.commands.handlers import HandlerSpec, Task, TaskFailed, TaskStopped
from streams.commands.ports import OutRecord
from streams.commands.threads import start_thread
from streams.domain.retry import Failure
from streams.errors import MailstreamsError, RetryLater, ShardError

log = structlog.get_logger(__name__)

CANCEL_LIMIT_S: Final = 0.7
"""How long the end of a process waits for a cancelled handler; row W7 leaves 2 s for everything that follows."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""

    result: Any
    emitted: tuple[OutRecord, ...]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The engine took the attempt back (shutdown, loss of the partition); nothing is known about its work."""

    ignored: str | None = None  # name of the thread or task that did not end in time


AttemptResult = Succeeded | Failure | Interrupted


@dataclass(slots=True)
class Attempt:
    """A running attempt, as seen from outside."""

    task: Task
    spec: HandlerSpec
    args: Any
    timeout_s: float
    give_up_s: float  # after the time limit: how long to wait for a handler that does not react
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Name of the thread or task that runs the handler."""
        return f"{self.spec.kind}:{self.task.command_id}"

    def interrupt(self) -> None:
        """Take the attempt back. The handler is cancelled and has `CANCEL_LIMIT_S` to react."""
        self.task._stop.set()
        self.interrupted.set()


async def run_attempt(attempt: Attempt) -> AttemptResult:
    """Run the handler to its end, its time limit, or the interruption, whichever comes first."""
    running = _begin(attempt)
    interruption = asyncio.ensure_future(attempt.interrupted.wait())
    try:
        await asyncio.wait({running, interruption}, timeout=attempt.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return _outcome(attempt, running)
        attempt.task._stop.set()
        if attempt.thread is None:
            running.cancel()
        if not attempt.interrupted.is_set():
            await asyncio.wait({running, interruption}, timeout=attempt.give_up_s, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not attempt.interrupted.is_set():
                log.error("a handler ignores that its time is over and is given up", thread=attempt.name)
                return Failure(
                    "stuck",
                    f"the handler did not end within {attempt.timeout_s:g} s and ignored its cancellation",
                    retryable=False,
                    unexpected=True,
                )
            if running.done():
                outcome = _outcome(attempt, running)
                return outcome if isinstance(outcome, Succeeded) else _timed_out(attempt)
        await asyncio.wait({running}, timeout=CANCEL_LIMIT_S)
        if not running.done():
            return Interrupted(ignored=attempt.name)
        # What was finished in the last moment is finished; anything else is repeated by whoever comes next.
        outcome = _outcome(attempt, running)
        return outcome if isinstance(outcome, Succeeded) else Interrupted()
    finally:
        interruption.cancel()
        if not running.done():
            running.add_done_callback(_consume)
            running.cancel()


def _begin(attempt: Attempt) -> asyncio.Future[Any]:
    if not attempt.spec.threaded:
        coroutine = attempt.spec.function(attempt.args, attempt.task)
        return asyncio.get_running_loop().create_task(coroutine, name=attempt.name)
    attempt.thread, future = start_thread(attempt.name, attempt.spec.function, attempt.args, attempt.task)
    return future


def _outcome(attempt: Attempt, running: asyncio.Future[Any]) -> AttemptResult:
    if running.cancelled():
        return Failure("cancelled", "the handler cancelled itself", retryable=True, unexpected=True)
    error = running.exception()
    if error is None:
        return Succeeded(running.result(), tuple(attempt.task._emitted))
    return classify(error)


def classify(error: BaseException) -> AttemptResult:
    """What an exception of a handler means for its command."""
    match error:
        case TaskFailed():
            return Failure(error.code, str(error), error.retryable, retry_after_s=error.retry_after_s)
        case ShardError():
            # The shard under the handler is starting over: so will the command.
            return Interrupted()
        case RetryLater():
            return Failure(error.code, str(error), retryable=True, retry_after_s=error.retry_after_s)
        case MailstreamsError():
            return Failure(error.code, str(error), retryable=False)
        case TaskStopped():
            return Failure("cancelled", "the handler stopped by itself", retryable=True, unexpected=True)
        case _:
            log.error("a handler failed unexpectedly", exc_info=error)
            # Only the type is public: the text of a foreign exception may quote anything.
            return Failure(
                "handler_failed", f"the handler raised {type(error).__name__}", retryable=True, unexpected=True
            )


def _timed_out(attempt: Attempt) -> Failure:
    return Failure("timed_out", f"the handler did not end within {attempt.timeout_s:g} s", retryable=True)


def _consume(future: asyncio.Future[Any]) -> None:
    """Take the result of an abandoned handler, so that nobody complains that it was never looked at."""
    if not future.cancelled():
        future.exception()
