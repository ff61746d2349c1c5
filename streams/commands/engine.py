"""The task engine: takes deliveries of lanes, runs their commands, concludes each of them once.

It knows no transport: lanes give it deliveries and take entries (`streams.commands.ports`). Invariants:

* a command's conclusion, what follows from it and the position that passes it are one entry; what was committed about a
  command is asked before it is run; so whatever dies and whatever is delivered twice, readers see one conclusion (W15);
* of one account at most one command runs, in the order they came (a command that came twice waits for itself);
* nothing of a lost lane is published, counted or remembered.

The life of a command here::

    delivered --poison------------------------------------------> settled (dead letter)
        | queued by account
        v
      judged --concluded before--------------------------------> settled
        |    --expired, unknown kind, bad args-----------------> settled (failure, dead letter)
        v
     running --succeeded, failed for good----------------------> settled (success | failure)
      ^   |  --failed for now--> backing off --(time)--> queued in front
      |___|  --stop, lane lost---------------------------------> left to whoever comes next
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, assert_never

import structlog

from streams.commands import publishing
from streams.commands.acknowledge import Acknowledgements
from streams.commands.context import task_context
from streams.commands.execution import Attempt, AttemptResult, Interrupted, Succeeded
from streams.commands.handlers import Handlers, HandlerSpec, Task
from streams.commands.ordering import AccountQueues
from streams.commands.ports import CommandState, Delivery, Entry, Lane, OutRecord
from streams.commands.progress import COALESCED, NOT_PUBLISHED, ProgressGate
from streams.commands.publishing import ResultInvalid
from streams.commands.validation import Misplaced, Runnable, judge, read_envelope
from streams.contracts.commands import Command
from streams.domain.retry import Conclude, Failure, Retry, RetryLimits, decide
from streams.errors import PoisonRecord, ShardError
from streams.observer import NoopObserver, RuntimeObserver

log = structlog.get_logger(__name__)

BEGIN_DELAY_S: Final = 0.01
"""What is over sooner is written as one entry, beginning and conclusion, which costs half. Nobody notices the delay."""

POISON_LOG_S: Final = 5.0

SLOW_S: Final = 1.0
"""Commands that took longer than this, or failed, are worth a line in the log each."""

LOST_ATTEMPTS: Final = 5
"""Attempts that may vanish with their process, beyond the retries. A command over it is concluded: it kills workers."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of one engine; durations in seconds. `quota` is how many commands it may start in its life."""

    retry: RetryLimits
    concurrency: int = 16
    ahead: int = 1024
    overrun_grace_s: float = 30.0
    progress_interval_s: float = 0.25
    quota: int | None = None


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A command in execution, as status and probes show it."""

    task_id: str
    kind: str
    account_id: str
    attempt: int
    seconds: float
    overrun: bool


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What an engine is doing."""

    running: tuple[RunningTask, ...]
    backing_off: int
    waiting: int
    lanes: int
    stuck: int

    @property
    def overrunning(self) -> tuple[str, ...]:
        """Ids of the tasks which are over their limit and its grace (row W9)."""
        return tuple(task.task_id for task in self.running if task.overrun)


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How a drain ended: what is left to others, and which handlers did not end."""

    requeued: int
    ignored: tuple[str, ...]


@dataclass(eq=False, slots=True)
class _Work:
    """One delivered command."""

    session: Session
    delivery: Delivery
    command: Command
    account: tuple[int, str]
    spec: HandlerSpec | None = None
    args: Any = None
    attempt: int = 0
    began_at: float | None = None  # first attempt in this process
    attempt_at: float = 0.0
    gate: ProgressGate = field(default_factory=ProgressGate)
    reporting: bool = False
    beginning: Entry | None = None  # not submitted yet
    running: Attempt | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def state_key(self) -> tuple[str, str]:
        return self.command.account_id, self.command.command_id


class Session:
    """A lane attached to an engine. Made by `Engine.attach`, ended by `Engine.detach` or by the lane's loss."""

    def __init__(self, engine: Engine, lane: Lane, ahead: int, on_room: Callable[[], None], number: int) -> None:
        self._engine = engine
        self._on_room = on_room
        self._uncommitted = 0
        self.concluding: dict[tuple[str, str], float] = {}
        """Commands whose conclusion is on its way to the log, and when they began. What is submitted later is committed
        later, or never."""

        self._ahead = ahead
        self._full = False
        self.number = number
        self.lane = lane
        self.acks = Acknowledgements(lane.position, ahead)
        self.lost: asyncio.Future[ShardError] = asyncio.get_running_loop().create_future()
        self.over = False

    @property
    def room(self) -> int:
        """How many deliveries it takes now. After a delivery left none, `on_room` is called when there is some."""
        return 0 if self.over else max(0, min(self.acks.room, self._ahead - self._uncommitted))

    @property
    def next_offset(self) -> int:
        """Where reading goes on."""
        return self.acks.next_offset

    def restart_at(self, offset: int) -> None:
        """Read from another offset than the lane's position; only before anything was delivered."""
        self.acks = Acknowledgements(offset, self._ahead)

    @property
    def settled(self) -> bool:
        """Whether everything that was taken is finished and committed."""
        return self.acks.unfinished == 0 and self._uncommitted == 0

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Hand over what was read. Offsets that were handed over before are passed by."""
        if self.over:
            return
        for delivery in deliveries:
            if self.acks.take(delivery.offset):
                self._engine._admit(self, delivery)
        self._engine._pump()
        self._full = self.room == 0

    def submit(self, entry: Entry, committed: Callable[[], None] | None = None) -> asyncio.Future[None]:
        """Send an entry to the lane; `committed` is called when it is."""
        self._uncommitted += 1
        future = self.lane.submit(entry)
        future.add_done_callback(partial(self._submitted, entry, committed), context=self._engine.context)
        return future

    def _submitted(self, entry: Entry, committed: Callable[[], None] | None, future: asyncio.Future[None]) -> None:
        self._uncommitted -= 1
        if entry.state is not None and entry.state.concluded is not None:
            self.concluding.pop((entry.state.account_id, entry.state.command_id), None)
        observer = self._engine.observer
        error = ShardError("the lane was closed") if future.cancelled() else future.exception()
        if error is not None:
            for record in entry.records:
                observer.publish_failed(record.kind)
            if entry.position is not None:
                observer.acknowledge_failed(self.lane.topic)
            self._engine._lose(self, error)
            return
        if not self.over:
            for record in entry.records:
                observer.published(record.kind)
            if committed is not None:
                committed()
        if not self._uncommitted:
            self._engine._changed()
        # Not for every single place: reading goes on when a good part of what was taken has been written.
        if self._full and self._uncommitted <= self._ahead // 2 and self.room > 0:
            self._full = False
            self._on_room()


class Engine:
    """Runs the commands of any number of lanes on one event loop."""

    def __init__(
        self,
        handlers: Handlers,
        limits: EngineLimits,
        *,
        partitions: int,
        worker: str,
        service: str,
        resources: Mapping[str, Any] | None = None,
        observer: RuntimeObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.observer: RuntimeObserver = observer or NoopObserver()
        # What one task sets off must not log in the name of that task.
        self.context = contextvars.copy_context()
        self._handlers = handlers
        self._limits = limits
        self._partitions = partitions
        self._worker = worker
        self._service = service
        self._resources = dict(resources or {})
        self._clock = clock
        self._now = now
        self._rng = rng
        self._sessions: set[Session] = set()
        self._numbers = 0
        self._queues: AccountQueues[tuple[int, str], _Work] = AccountQueues()
        self._running: set[_Work] = set()
        self._backing_off: set[_Work] = set()
        self._taken = 0  # commands started that count against the quota
        self._stuck = 0
        self._draining = False
        self._requeued = 0
        self._ignored: list[str] = []
        self._pumping = False
        self._beginning: list[_Work] = []
        self._due: list[_Work] = []
        self._looking = False
        self._poison_logged: dict[str, tuple[float, int]] = {}  # by reason: when, and how many since
        self._changes = asyncio.Event()

    # --- lanes -----------------------------------------------------------------------------------------------------
    def attach(self, lane: Lane, on_room: Callable[[], None] = lambda: None) -> Session:
        """Begin with a lane that is ours from now on."""
        self._numbers += 1
        session = Session(self, lane, self._limits.ahead, on_room, self._numbers)
        self._sessions.add(session)
        return session

    def detach(self, session: Session) -> None:
        """End with a lane: what runs is cancelled, what waits is forgotten, nothing of it is published any more."""
        if session.over:
            return
        session.over = True
        self._sessions.discard(session)
        self._queues.drop(lambda work: work.session is session)
        for work in [work for work in self._backing_off if work.session is session]:
            self._stop_backing_off(work)
        for work in self._running:
            if work.session is session and work.running is not None:
                work.running.interrupt()
        if not session.lost.done():
            session.lost.cancel()
        self._changed()
        self._pump()

    def _lose(self, session: Session, error: BaseException) -> None:
        if session.over:
            return
        lost = error if isinstance(error, ShardError) else ShardError(f"the lane failed: {type(error).__name__}")
        if not isinstance(error, ShardError):
            log.error("a lane failed unexpectedly", lane=session.lane.topic, exc_info=error)
        if not session.lost.done():
            session.lost.set_result(lost)
        log.warning(
            "a lane is lost", lane=session.lane.topic, partition=session.lane.partition, code=lost.code, error=str(lost)
        )
        self.detach(session)

    # --- what others look at ---------------------------------------------------------------------------------------
    @property
    def hungry(self) -> bool:
        """Whether a command delivered now would start at once: for callers that must not take more than they run."""
        return (
            not self._draining
            and not self.quota_reached
            and len(self._running) + len(self._backing_off) + len(self._queues) < self._limits.concurrency
        )

    @property
    def quota_reached(self) -> bool:
        """Whether no further command may be started."""
        return self._limits.quota is not None and self._taken >= self._limits.quota

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits, or is on its way to the log."""
        return (
            not self._running
            and not self._backing_off
            and not len(self._queues)
            and all(session.settled for session in self._sessions)
        )

    @property
    def taken(self) -> int:
        """How many commands were started."""
        return self._taken

    def busy_partitions(self, longer_than_s: float = 0.0) -> frozenset[int]:
        """Partitions with a command that began longer ago than that and whose conclusion is not in the log yet."""
        before = self._clock() - longer_than_s
        busy = {
            work.session.lane.partition
            for work in self._running | self._backing_off
            if not work.session.over and work.began_at is not None and work.began_at <= before
        }
        busy |= {
            session.lane.partition
            for session in self._sessions
            if any(began_at <= before for began_at in session.concluding.values())
        }
        return frozenset(busy)

    def snapshot(self) -> EngineSnapshot:
        """What it is doing right now."""
        now = self._clock()
        return EngineSnapshot(
            running=tuple(
                RunningTask(
                    task_id=work.command.command_id,
                    kind=work.command.kind,
                    account_id=work.command.account_id,
                    attempt=work.attempt,
                    seconds=now - work.attempt_at,
                    overrun=now - work.attempt_at > self._timeout(work) + self._limits.overrun_grace_s,
                )
                for work in self._running
            ),
            backing_off=len(self._backing_off),
            waiting=len(self._queues),
            lanes=len(self._sessions),
            stuck=self._stuck,
        )

    async def changed(self) -> None:
        """Wait for the next change of what this engine is doing (a settled command, a lost lane)."""
        self._changes.clear()
        await self._changes.wait()

    # --- the end ---------------------------------------------------------------------------------------------------
    def stop_taking(self) -> None:
        """Start nothing any more; retries that wait are left to others at once (row W5)."""
        if self._draining:
            return
        self._draining = True
        for work in list(self._backing_off):
            self._stop_backing_off(work)
            self._hand_back(work, work.attempt)
        self._queues.drop(lambda _: True)
        self._changed()

    async def drain(self, grace_s: float, hurried: asyncio.Event | None = None) -> DrainReport:
        """Let what runs finish within `grace_s`, then take it back. `hurried` skips what is left of the grace (row W6).

        Everything that was concluded is committed when this returns, or the commit was given up by the lane.
        """
        self.stop_taking()
        ends = self._clock() + grace_s
        hurry = asyncio.ensure_future(hurried.wait()) if hurried is not None else None
        try:
            while self._running and (left := ends - self._clock()) > 0 and not (hurry and hurry.done()):
                change = asyncio.ensure_future(self.changed())
                try:
                    await asyncio.wait(
                        {change, *([hurry] if hurry else [])}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    change.cancel()
        finally:
            if hurry is not None:
                hurry.cancel()
        for work in list(self._running):
            if work.running is not None:
                work.running.interrupt()
        while self._running:  # each ends within CANCEL_LIMIT_S
            await self.changed()
        await self._committed()
        if self._requeued:
            self.observer.shutdown_requeued(self._requeued)
        return DrainReport(self._requeued, tuple(self._ignored))

    async def _committed(self) -> None:
        """Wait until nothing is on its way to the log; a lane that fails is lost, which ends the waiting as well."""
        while any(session._uncommitted for session in self._sessions):
            await self.changed()

    def _stop_backing_off(self, work: _Work) -> None:
        assert work.timer is not None
        work.timer.cancel()
        work.timer = None
        self._backing_off.discard(work)
        self._queues.done(work.account)

    def _hand_back(self, work: _Work, attempts: int) -> None:
        """The command is left to whoever comes next, with the number of attempts that count against it."""
        self._requeued += 1
        log.info("command left to another worker", task_id=work.command.command_id, kind=work.command.kind)
        work.session.submit(Entry(state=self._state(work, attempts, None)))

    # --- from delivery to attempt ----------------------------------------------------------------------------------
    def _admit(self, session: Session, delivery: Delivery) -> None:
        topic = session.lane.topic
        try:
            read = read_envelope(delivery, self._partitions)
        except PoisonRecord as poison:
            self.observer.poison(topic, poison.reason)
            self._log_poison(topic, delivery, poison)
            letter = publishing.dead_letter(topic, delivery, poison.reason, str(poison))
            session.submit(Entry((letter,), position=session.acks.finish(delivery.offset)))
            return
        match read:
            case Misplaced(_, partition):
                self.observer.rekeyed(topic)
                moved = publishing.sent_on(topic, delivery, partition)
                session.submit(Entry((moved,), position=session.acks.finish(delivery.offset)))
            case Command():
                account = (session.number, read.account_id)
                self._queues.put(account, _Work(session, delivery, read, account))
            case _:
                assert_never(read)

    def _log_poison(self, topic: str, delivery: Delivery, poison: PoisonRecord) -> None:
        """One line for the first of each reason, then one a while: a broken producer sends thousands."""
        logged_at, left_out = self._poison_logged.get(poison.reason, (-POISON_LOG_S, 0))
        if self._clock() - logged_at < POISON_LOG_S:
            self._poison_logged[poison.reason] = (logged_at, left_out + 1)
            return
        self._poison_logged[poison.reason] = (self._clock(), 0)
        log.warning(
            "record is no command",
            topic=topic,
            partition=delivery.partition,
            offset=delivery.offset,
            reason=poison.reason,
            more_before=left_out,
        )

    def _pump(self) -> None:
        """Start what may be started."""
        self._pumping = False
        while len(self._running) < self._limits.concurrency and not self._draining:
            taken = self._queues.take()
            if taken is None:
                return
            account, work = taken
            if work.began_at is None and not self._judge(work):
                self._queues.done(account)
                continue
            if work.began_at is None and self.quota_reached:
                self._queues.back(account, work)
                return
            self._begin(work)

    def _judge(self, work: _Work) -> bool:
        """Whether the command is to be run; otherwise it is settled here."""
        session, command = work.session, work.command
        known = session.lane.known(*work.state_key)
        if work.state_key in session.concluding or (known is not None and known.concluded is not None):
            log.debug("command concluded before", task_id=command.command_id, kind=command.kind)
            session.submit(Entry(position=session.acks.finish(work.delivery.offset)), self._changed)
            return False
        work.attempt = known.attempts if known is not None else 0
        if work.attempt > self._limits.retry.retries + LOST_ATTEMPTS:
            self._conclude_failure(
                work,
                Failure("lost", f"{work.attempt} attempts ended with their process", retryable=False, unexpected=True),
            )
            return False
        try:
            runnable: Runnable = judge(command, self._handlers, self._now())
        except PoisonRecord as poison:
            self.observer.poison(session.lane.topic, poison.reason)
            self._conclude_failure(work, Failure(poison.reason, str(poison), retryable=False), letter=poison.reason)
            return False
        work.spec, work.args = runnable.spec, runnable.args
        return True

    def _begin(self, work: _Work) -> None:
        assert work.spec is not None
        command, session = work.command, work.session
        work.attempt += 1
        work.attempt_at = self._clock()
        work.gate = ProgressGate()
        now = self._now()
        records: tuple[OutRecord, ...] = ()
        if work.began_at is None:
            work.began_at = work.attempt_at
            self._taken += 1
            self.observer.task_started(command.kind)
            records = (
                publishing.started(command, work.attempt, self._worker, now, session.lane.partition),
            )  # fmt: skip
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(BEGIN_DELAY_S, self._write_beginnings, context=self.context)
        work.beginning = Entry(records, self._state(work, work.attempt, None, now))
        self._beginning.append(work)
        context = task_context(
            task_id=command.command_id,
            service=self._service,
            attempt=work.attempt,
            kind=command.kind,
            account_id=command.account_id,
        )
        loop = asyncio.get_running_loop()
        gate = work.gate

        def report(fraction: Any, counts: Any, message: Any) -> None:
            loop.call_soon_threadsafe(self._report, work, gate, fraction, counts, message, context=self.context)

        timeout_s = self._timeout(work)
        work.running = Attempt(
            task=Task(
                command.command_id,
                command.account_id,
                command.kind,
                work.attempt,
                command.deadline,
                self._resources,
                work.spec.emits,
                report,
            ),
            spec=work.spec,
            args=work.args,
            timeout_s=timeout_s,
            give_up_s=max(0.0, self._limits.retry.give_up_s - (work.attempt_at - work.began_at) - timeout_s),
            ended=partial(self._ended, work),
        )
        self._running.add(work)
        try:
            work.running.start(context)
        except Exception as error:  # the handler cannot even be called; the command is concluded all the same
            log.error("a handler cannot be called", kind=command.kind, exc_info=error)
            self._ended(
                work,
                Failure(
                    "handler_failed", f"the handler raised {type(error).__name__}", retryable=False, unexpected=True
                ),
            )

    def _write_beginnings(self) -> None:
        """Submit what has begun and is not over yet, and give it its time limit."""
        # What was there at the last look has had a whole delay, and a turn of the event loop, to be over.
        due, self._due = self._due, [work for work in self._beginning if work.running is not None]
        self._beginning.clear()
        for work in due:
            self._write_beginning(work)
            if work.running is not None:
                work.running.limit()
        self._looking = bool(self._due)
        if self._looking:
            asyncio.get_running_loop().call_later(BEGIN_DELAY_S, self._write_beginnings, context=self.context)

    def _write_beginning(self, work: _Work) -> None:
        entry, work.beginning = work.beginning, None
        if entry is not None and not work.session.over:
            work.session.submit(entry)

    def _timeout(self, work: _Work) -> float:
        own = work.spec.timeout_s if work.spec is not None else None
        return self._limits.retry.attempt_s if own is None else min(own, self._limits.retry.attempt_s)

    # --- from attempt to conclusion --------------------------------------------------------------------------------
    def _ended(self, work: _Work, result: AttemptResult) -> None:
        self._running.discard(work)
        work.running = None
        if (dropped := work.gate.close()) is not None:
            self.observer.progress_dropped(dropped)
        if work.session.over:
            # What did not end is still worth a name when the process is to end.
            if isinstance(result, Interrupted) and result.ignored:
                self._ignored.append(result.ignored)
            self._queues.done(work.account)
        else:
            self._settle(work, result)
        self._changed()
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump, context=self.context)

    def _settle(self, work: _Work, result: AttemptResult) -> None:
        if not isinstance(result, Succeeded):
            self._write_beginning(work)
        match result:
            case Succeeded():
                self._conclude_success(work, result)
            case Interrupted() if self._draining:
                if result.ignored:
                    self._ignored.append(result.ignored)
                self._queues.done(work.account)
                self._hand_back(work, work.attempt - 1)  # taken back by us: it does not count
            case Interrupted():
                self._fail(work, Failure("shard", "what the command works on is starting over", retryable=True))
            case Failure():
                self._fail(work, result)
            case _:
                assert_never(result)

    def _fail(self, work: _Work, failure: Failure) -> None:
        assert work.began_at is not None
        deadline = work.command.deadline
        decision = decide(
            failure,
            work.attempt,
            self._limits.retry,
            self._rng,
            elapsed_s=self._clock() - work.began_at,
            remaining_s=None if deadline is None else (deadline - self._now()).total_seconds(),
        )
        match decision:
            case Conclude(why):
                if why.code == "stuck":
                    self._stuck += 1
                self._conclude_failure(work, why, letter="handler_failed" if why.unexpected else None)
                self._queues.done(work.account)
            case Retry() if self._draining:
                self._queues.done(work.account)
                self._hand_back(work, work.attempt)
            case Retry(after):
                self.observer.task_retried(work.command.kind, failure.code)
                log.info(
                    "attempt failed, trying again", code=failure.code, error=failure.message, after_s=round(after, 3)
                )
                self._backing_off.add(work)
                work.timer = asyncio.get_running_loop().call_later(after, self._again, work, context=self.context)
            case _:
                assert_never(decision)

    def _again(self, work: _Work) -> None:
        work.timer = None
        self._backing_off.discard(work)
        self._queues.back(work.account, work)
        self._pump()

    def _conclude_success(self, work: _Work, result: Succeeded) -> None:
        session = work.session
        try:
            event = publishing.success(
                work.command, work.attempt, result.result, self._worker, self._now(), session.lane.partition
            )
            publishing.check_emitted(result.emitted)
        except ResultInvalid as error:
            self._fail(work, Failure("result_invalid", str(error), retryable=False, unexpected=True))
            return
        self._conclude(work, (event, *result.emitted), "success", "")
        self._queues.done(work.account)

    def _conclude_failure(self, work: _Work, why: Failure, letter: str | None = None) -> None:
        """Settle as failed. `letter` is the reason of the dead letter that goes with it."""
        session = work.session
        records = [
            publishing.failure(work.command, work.attempt, why, self._worker, self._now(), session.lane.partition)
        ]
        if letter is None and why.unexpected:
            letter = "handler_failed"
        if letter is not None:
            records.append(
                publishing.dead_letter(session.lane.topic, work.delivery, letter, f"{why.code}: {why.message}")
            )
        self._conclude(work, tuple(records), "failure", why.code)

    def _conclude(
        self, work: _Work, records: tuple[OutRecord, ...], status: Literal["success", "failure"], code: str
    ) -> None:
        session = work.session
        seconds = 0.0 if work.began_at is None else self._clock() - work.began_at
        state = self._state(work, work.attempt, status)

        def committed() -> None:
            self.observer.task_finished(work.command.kind, status, code, seconds)
            (log.info if status == "failure" or seconds > SLOW_S else log.debug)(
                "command concluded",
                task_id=work.command.command_id, kind=work.command.kind, account_id=work.command.account_id,
                status=status, code=code or None, attempts=work.attempt, seconds=round(seconds, 3),
            )  # fmt: skip
            self._changed()

        if work.beginning is not None:
            records, work.beginning = (*work.beginning.records, *records), None
        session.concluding[work.state_key] = self._clock() if work.began_at is None else work.began_at
        session.submit(Entry(records, state, session.acks.finish(work.delivery.offset)), committed)

    def _state(
        self, work: _Work, attempts: int, concluded: Literal["success", "failure"] | None, now: datetime | None = None
    ) -> CommandState:
        return CommandState(
            work.command.account_id,
            work.command.command_id,
            attempts,
            concluded,
            work.delivery.offset,
            now or self._now(),
        )

    # --- progress --------------------------------------------------------------------------------------------------
    def _report(self, work: _Work, gate: ProgressGate, fraction: Any, counts: Any, message: Any) -> None:
        dropped = gate.offer(fraction, counts, message)
        if dropped is not None:
            self.observer.progress_dropped(dropped)
        if (dropped is None or dropped == COALESCED) and not work.reporting:
            self._publish_progress(work)

    def _publish_progress(self, work: _Work) -> None:
        """Send the newest report; the next one goes out when this one is in the log and the interval has passed."""
        work.reporting = False
        session = work.session
        report = None if session.over else work.gate.take()
        if report is None:
            return
        self._write_beginning(work)
        work.reporting = True
        event = publishing.progress(
            work.command, work.attempt, report, self._worker, self._now(), session.lane.partition
        )
        future = session.submit(Entry((event,)))
        loop = asyncio.get_running_loop()

        def sent(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                self.observer.progress_dropped(NOT_PUBLISHED)
            loop.call_later(self._limits.progress_interval_s, self._publish_progress, work, context=self.context)

        future.add_done_callback(sent, context=self.context)

    def _changed(self) -> None:
        self._changes.set()
