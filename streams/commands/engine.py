"""The task engine: takes deliveries of lanes, runs their commands, concludes each of them once.

It knows no transport: lanes give it deliveries and take entries (`streams.commands.ports`). Invariants:

* a command's conclusion, what follows from it and the position that passes it are one entry; what was committed about a
  command is asked before it is run; so whatever dies and whatever is delivered twice, readers see one conclusion (W15);
* of one account at most one command runs, in the order they came (a command that came twice waits for itself);
* nothing of a lost lane is published, counted or remembered.

The life of a command, and the module that each step is in::

    delivered --poison------------------------------------------> settled (dead letter)              admission
        | queued by account                                                                          ordering
        v
      judged --concluded before--------------------------------> settled                             admission
        |    --expired, unknown kind, bad args-----------------> settled (failure, dead letter)      conclusion
        v
     running --succeeded, failed for good----------------------> settled (success | failure)         running,
      ^   |  --failed for now--> backing off --(time)--> queued in front                             conclusion
      |___|  --stop, lane lost---------------------------------> left to whoever comes next

This module keeps the lanes, the line of accounts, and the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streams.commands.admission import Admission
from streams.commands.beginning import Beginnings
from streams.commands.conclusion import Conclusions
from streams.commands.handlers import Handlers
from streams.commands.ordering import AccountQueues
from streams.commands.ports import Delivery, Lane
from streams.commands.reporting import Reports
from streams.commands.running import Running
from streams.commands.session import Session
from streams.commands.snapshot import DrainReport, EngineSnapshot
from streams.commands.surroundings import Surroundings
from streams.commands.work import Work


class Engine:
    """Runs the commands of any number of lanes on one event loop, in surroundings of its own."""

    def __init__(self, handlers: Handlers, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._limits = surroundings.limits
        self._queues: AccountQueues[tuple[int, str], Work] = AccountQueues()
        beginnings = Beginnings(surroundings)
        conclusions = Conclusions(surroundings, beginnings)
        reports = Reports(surroundings, beginnings)
        self._admission = Admission(surroundings, handlers, conclusions)
        self._run = Running(surroundings, self._queues, beginnings, conclusions, reports, self._pump_soon)
        self._sessions: set[Session] = set()
        self._numbers = 0
        self._pumping = False

    # --- lanes -----------------------------------------------------------------------------------------------------
    def attach(self, lane: Lane, on_room: Callable[[], None] = lambda: None) -> Session:
        """Begin with a lane that is ours from now on."""
        self._numbers += 1
        session = Session(
            self._surroundings, lane, self._numbers, delivered=self._deliver, ended=self.detach, on_room=on_room
        )
        self._sessions.add(session)
        return session

    def detach(self, session: Session) -> None:
        """End with a lane: what runs is cancelled, what waits is forgotten, nothing of it is published any more."""
        if session.over:
            return
        session.end()
        self._sessions.discard(session)
        self._queues.drop(lambda work: work.session is session)
        self._run.forget_retries(session)
        self._run.interrupt(session)
        self._surroundings.changed()
        self._pump()

    # --- what others look at ---------------------------------------------------------------------------------------
    @property
    def hungry(self) -> bool:
        """Whether a command delivered now would start at once: for callers that must not take more than they run."""
        return (
            not self._surroundings.draining
            and not self.quota_reached
            and len(self._run.running) + len(self._run.backing_off) + len(self._queues) < self._limits.concurrency
        )

    @property
    def quota_reached(self) -> bool:
        """Whether no further command may be started."""
        return self._limits.quota is not None and self._run.taken >= self._limits.quota

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits, or is on its way to the log."""
        return (
            not self._run.running
            and not self._run.backing_off
            and not len(self._queues)
            and all(session.settled for session in self._sessions)
        )

    @property
    def taken(self) -> int:
        """How many commands were started."""
        return self._run.taken

    def busy_partitions(self, longer_than_s: float = 0.0) -> frozenset[int]:
        """Partitions with a command that began longer ago than that and whose conclusion is not in the log yet."""
        before = self._surroundings.clock() - longer_than_s
        busy = {
            work.session.lane.partition
            for work in self._run.running | self._run.backing_off
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
        return EngineSnapshot(
            running=self._run.tasks(),
            backing_off=len(self._run.backing_off),
            waiting=len(self._queues),
            lanes=len(self._sessions),
            stuck=self._run.stuck,
        )

    async def changed(self) -> None:
        """Wait for the next change of what this engine is doing (a settled command, a lost lane)."""
        await self._surroundings.change()

    # --- the end ---------------------------------------------------------------------------------------------------
    def stop_taking(self) -> None:
        """Start nothing any more; retries that wait are left to others at once (row W5)."""
        if self._surroundings.draining:
            return
        self._surroundings.draining = True
        self._run.hand_back_retries()
        self._queues.drop(lambda _: True)
        self._surroundings.changed()

    async def drain(self, grace_s: float, hurried: asyncio.Event | None = None) -> DrainReport:
        """Let what runs finish within `grace_s`, then take it back. `hurried` skips what is left of the grace (row W6).

        Everything that was concluded is committed when this returns, or the commit was given up by the lane.
        """
        self.stop_taking()
        ends = self._surroundings.clock() + grace_s
        hurry = asyncio.ensure_future(hurried.wait()) if hurried is not None else None
        try:
            while (
                self._run.running and (left := ends - self._surroundings.clock()) > 0 and not (hurry and hurry.done())
            ):
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
        self._run.interrupt()
        while self._run.running:  # each ends within CANCEL_LIMIT_S
            await self.changed()
        while any(session.committing for session in self._sessions):  # or its lane is lost, which ends it as well
            await self.changed()
        if self._run.requeued:
            self._surroundings.observer.shutdown_requeued(self._run.requeued)
        return DrainReport(self._run.requeued, tuple(self._run.ignored))

    # --- who is next -----------------------------------------------------------------------------------------------
    def _deliver(self, session: Session, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            work = self._admission.admit(session, delivery)
            if work is not None:
                self._queues.put(work.account, work)
        self._pump()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._surroundings.soon(self._pump)

    def _pump(self) -> None:
        """Start what may be started."""
        self._pumping = False
        while len(self._run.running) < self._limits.concurrency and not self._surroundings.draining:
            taken = self._queues.take()
            if taken is None:
                return
            account, work = taken
            if work.began_at is None and not self._admission.judge(work):
                self._queues.done(account)
                continue
            if work.began_at is None and self.quota_reached:
                self._queues.back(account, work)
                return
            self._run.begin(work)
