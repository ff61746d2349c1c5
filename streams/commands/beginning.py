"""When the log is told that an attempt has begun.

Invariant: it is told before anything else of the attempt is, or in one entry with its conclusion.
"""

from __future__ import annotations

from typing import Final

from streams.commands import publishing
from streams.commands.ports import Entry, OutRecord
from streams.commands.surroundings import Surroundings
from streams.commands.work import Work

BEGIN_DELAY_S: Final = 0.01
"""What is over sooner is written as one entry, beginning and conclusion, which costs half. Nobody notices the delay."""


class Beginnings:
    """Holds beginnings back for a moment.

    Attempts get their time limit here, too: most end before a timer is worth its price.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._new: list[Work] = []
        self._due: list[Work] = []
        self._looking = False

    def note(self, work: Work) -> None:
        """An attempt begins now."""
        work.unwritten_since = self._surroundings.now()
        self._new.append(work)
        if not self._looking:
            self._looking = True
            self._surroundings.later(BEGIN_DELAY_S, self._look)

    def write(self, work: Work) -> None:
        """Tell the log now, if it does not know yet."""
        began = work.unwritten_since
        if began is not None:
            records = self.take(work)
            if not work.session.over:
                work.session.submit(Entry(records, work.state(work.attempt, None, began)))

    def take(self, work: Work) -> tuple[OutRecord, ...]:
        """What is still to be published of the beginning, for an entry which says more than that."""
        began, work.unwritten_since = work.unwritten_since, None
        if began is None or work.announced:
            return ()
        work.announced = True
        lane = work.session.lane
        return (publishing.started(work.command, work.attempt, self._surroundings.worker, began, lane.partition),)

    def _look(self) -> None:
        """Tell of what has begun and is not over yet, and give it its time limit."""
        # What was there at the last look has had a whole delay, and a turn of the event loop, to be over.
        due, self._due = self._due, [work for work in self._new if work.running is not None]
        self._new.clear()
        for work in due:
            self.write(work)
            if work.running is not None:
                work.running.limit()
        self._looking = bool(self._due)
        if self._looking:
            self._surroundings.later(BEGIN_DELAY_S, self._look)
