"""Commands in execution, and those that wait to be tried again (rows W5, W14).

Invariant: a command that was begun is in `running` or in `backing_off` until it is concluded, handed back, or its lane
is lost; whichever it is, its account is free again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

import structlog

from streams.commands.beginning import Beginnings
from streams.commands.conclusion import Conclusions
from streams.commands.context import task_context
from streams.commands.execution import Attempt, AttemptResult, Interrupted, Succeeded
from streams.commands.handlers import Task
from streams.commands.ordering import AccountQueues
from streams.commands.progress import ProgressGate
from streams.commands.reporting import Reports
from streams.commands.session import Session
from streams.commands.snapshot import RunningTask
from streams.commands.surroundings import Surroundings
from streams.commands.work import Work
from streams.domain.retry import Conclude, Failure, Retry, decide

log = structlog.get_logger(__name__)


class Running:
    """Runs attempts and decides what follows from their ends. `pump` is called when an account or a place is free."""

    def __init__(
        self,
        surroundings: Surroundings,
        queues: AccountQueues[tuple[int, str], Work],
        beginnings: Beginnings,
        conclusions: Conclusions,
        reports: Reports,
        pump: Callable[[], None],
    ) -> None:
        self._surroundings = surroundings
        self._queues = queues
        self._beginnings = beginnings
        self._conclusions = conclusions
        self._reports = reports
        self._pump = pump
        self.running: set[Work] = set()
        self.backing_off: set[Work] = set()
        self.taken = 0
        """Commands begun here; repeated attempts do not count again."""
        self.stuck = 0
        self.requeued = 0
        self.ignored: list[str] = []
        """Names of handlers that did not end when they had to."""

    def tasks(self) -> tuple[RunningTask, ...]:
        """What runs right now."""
        now, limits = self._surroundings.clock(), self._surroundings.limits
        return tuple(
            RunningTask(
                task_id=work.command.command_id,
                kind=work.command.kind,
                account_id=work.command.account_id,
                attempt=work.attempt,
                seconds=now - work.attempt_at,
                overrun=now - work.attempt_at > work.timeout_s(limits.retry.attempt_s) + limits.overrun_grace_s,
            )
            for work in self.running
        )

    def begin(self, work: Work) -> None:
        """Start an attempt."""
        assert work.spec is not None
        surroundings, command = self._surroundings, work.command
        work.attempt += 1
        work.attempt_at = surroundings.clock()
        work.gate = ProgressGate()
        if work.began_at is None:
            work.began_at = work.attempt_at
            self.taken += 1
        surroundings.observer.task_started(command.kind)
        self._beginnings.note(work)
        retry = surroundings.limits.retry
        timeout_s = work.timeout_s(retry.attempt_s)
        work.running = Attempt(
            task=Task(
                command.command_id,
                command.account_id,
                command.kind,
                work.attempt,
                command.deadline,
                surroundings.resources,
                work.spec.emits,
                self._reports.of(work),
            ),
            spec=work.spec,
            args=work.args,
            timeout_s=timeout_s,
            give_up_s=max(0.0, retry.give_up_s - (work.attempt_at - work.began_at) - timeout_s),
            ended=partial(self._ended, work),
            loop=surroundings.loop,
        )
        self.running.add(work)
        context = task_context(
            task_id=command.command_id,
            service=surroundings.service,
            attempt=work.attempt,
            kind=command.kind,
            account_id=command.account_id,
        )
        try:
            work.running.start(context)
        except Exception as error:  # the handler cannot even be called; the command is concluded all the same
            log.error("a handler cannot be called", kind=command.kind, exc_info=error)
            what = f"the handler raised {type(error).__name__}"
            self._ended(work, Failure("handler_failed", what, retryable=False, unexpected=True))

    def interrupt(self, session: Session | None = None) -> None:
        """Take back what runs, of one session or all of it. Each ends within `CANCEL_LIMIT_S`."""
        for work in list(self.running):
            if work.running is not None and session in (None, work.session):
                work.running.interrupt()

    def forget_retries(self, session: Session) -> None:
        """The session is over: what waits to be tried again is not tried here."""
        for work in [work for work in self.backing_off if work.session is session]:
            self._stop_backing_off(work)

    def hand_back_retries(self) -> None:
        """What waits to be tried again is left to others, at once."""
        for work in list(self.backing_off):
            self._stop_backing_off(work)
            self._hand_back(work, work.attempt)

    def _ended(self, work: Work, result: AttemptResult) -> None:
        self.running.discard(work)
        work.running = None
        # Not with the conclusion: there is one of what never ran, and none of what is left to others.
        self._surroundings.observer.task_stopped(work.command.kind)
        self._reports.close(work)
        if work.session.over:
            # What did not end is still worth a name when the process is to end.
            if isinstance(result, Interrupted):
                self._note_ignoring(result)
            self._queues.done(work.account)
        else:
            self._settle(work, result)
        self._surroundings.changed()
        self._pump()

    def _settle(self, work: Work, result: AttemptResult) -> None:
        if not isinstance(result, Succeeded):
            self._beginnings.write(work)
        match result:
            case Succeeded():
                failure = self._conclusions.succeeded(work, result)
                if failure is None:
                    self._queues.done(work.account)
                else:
                    self._fail(work, failure)
            case Interrupted() if self._surroundings.draining:
                self._note_ignoring(result)
                self._queues.done(work.account)
                self._hand_back(work, work.attempt - 1)  # taken back by us: it does not count
            case Interrupted():
                self._fail(work, Failure("shard", "what the command works on is starting over", retryable=True))
            case Failure():
                self._fail(work, result)
            case _:
                assert_never(result)

    def _note_ignoring(self, result: Interrupted) -> None:
        """Name a handler that did not end, at once: what is left of the end of the process may be cut short (W7)."""
        if result.ignored:
            self.ignored.append(result.ignored)
            log.error("a handler ignores its cancellation", handler=result.ignored)

    def _fail(self, work: Work, failure: Failure) -> None:
        assert work.began_at is not None
        surroundings, deadline = self._surroundings, work.command.deadline
        decision = decide(
            failure,
            work.attempt,
            surroundings.limits.retry,
            surroundings.rng,
            elapsed_s=surroundings.clock() - work.began_at,
            remaining_s=None if deadline is None else (deadline - surroundings.now()).total_seconds(),
        )
        match decision:
            case Conclude(why):
                if why.code == "stuck":
                    self.stuck += 1
                self._conclusions.failed(work, why)
                self._queues.done(work.account)
            case Retry() if surroundings.draining:
                self._queues.done(work.account)
                self._hand_back(work, work.attempt)
            case Retry(after):
                surroundings.observer.task_retried(work.command.kind, failure.code)
                log.info(
                    "attempt failed, trying again", code=failure.code, error=failure.message, after_s=round(after, 3)
                )
                self.backing_off.add(work)
                work.timer = surroundings.later(after, self._again, work)
            case _:
                assert_never(decision)

    def _again(self, work: Work) -> None:
        work.timer = None
        self.backing_off.discard(work)
        self._queues.back(work.account, work)
        self._pump()

    def _stop_backing_off(self, work: Work) -> None:
        assert work.timer is not None
        work.timer.cancel()
        work.timer = None
        self.backing_off.discard(work)
        self._queues.done(work.account)

    def _hand_back(self, work: Work, attempts: int) -> None:
        self.requeued += 1
        self._conclusions.handed_back(work, attempts)
