"""Progress on its way out (row W12).

Invariant: of one command at most one report is under way; what comes meanwhile replaces what waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from streams.commands import publishing
from streams.commands.beginning import Beginnings
from streams.commands.handlers import Report
from streams.commands.ports import Entry
from streams.commands.progress import COALESCED, NOT_PUBLISHED, ProgressGate
from streams.commands.surroundings import Surroundings
from streams.commands.work import Work


class Reports:
    """Takes reports from handlers, in whatever thread they run."""

    def __init__(self, surroundings: Surroundings, beginnings: Beginnings) -> None:
        self._surroundings = surroundings
        self._beginnings = beginnings

    def of(self, work: Work) -> Report:
        """Where the attempt that begins now reports to."""
        surroundings, gate = self._surroundings, work.gate

        def report(fraction: Any, counts: Any, message: Any) -> None:
            surroundings.loop.call_soon_threadsafe(
                self._take, work, gate, fraction, counts, message, context=surroundings.context
            )

        return report

    def close(self, work: Work) -> None:
        """The attempt is over: what did not go out is dropped."""
        if (dropped := work.gate.close()) is not None:
            self._surroundings.observer.progress_dropped(dropped)

    def _take(self, work: Work, gate: ProgressGate, fraction: Any, counts: Any, message: Any) -> None:
        dropped = gate.offer(fraction, counts, message)
        if dropped is not None:
            self._surroundings.observer.progress_dropped(dropped)
        if (dropped is None or dropped == COALESCED) and not work.reporting:
            self._publish(work)

    def _publish(self, work: Work) -> None:
        """Send the newest report; the next one goes out when this one is in the log and the interval has passed."""
        work.reporting = False
        surroundings, session = self._surroundings, work.session
        report = None if session.over else work.gate.take()
        if report is None:
            return
        self._beginnings.write(work)
        work.reporting = True
        event = publishing.progress(
            work.command, work.attempt, report, surroundings.worker, surroundings.now(), session.lane.partition
        )

        def sent(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                surroundings.observer.progress_dropped(NOT_PUBLISHED)
            surroundings.later(surroundings.limits.progress_interval_s, self._publish, work)

        session.submit(Entry((event,))).add_done_callback(sent, context=surroundings.context)
