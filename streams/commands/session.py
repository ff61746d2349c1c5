"""A lane while an engine works for it: what was taken of it, what is on its way to it, and its loss.

Invariants: the position an entry carries is the lowest unfinished offset; at most `ahead` deliveries are taken beyond
what is committed; of a session that is over nothing is counted or told any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from streams.commands.acknowledge import Acknowledgements
from streams.commands.ports import Delivery, Entry, Lane
from streams.commands.surroundings import Surroundings
from streams.errors import ShardError

log = structlog.get_logger(__name__)


class Session:
    """A lane attached to an engine. Made by `Engine.attach`, ended by `Engine.detach` or by the lane's loss.

    `delivered` is called with what is new among the deliveries, `ended` when the lane is lost, `on_room` when there is
    room again after `room` said that there was none.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        lane: Lane,
        number: int,
        *,
        delivered: Callable[[Session, list[Delivery]], None],
        ended: Callable[[Session], None],
        on_room: Callable[[], None],
    ) -> None:
        self._surroundings = surroundings
        self._delivered = delivered
        self._ended = ended
        self._on_room = on_room
        self._ahead = surroundings.limits.ahead
        self._uncommitted = 0
        self._awaited = False
        self.number = number
        self.lane = lane
        self.acks = Acknowledgements(lane.position, self._ahead)
        self.lost: asyncio.Future[ShardError] = surroundings.loop.create_future()
        self.over = False
        self.concluding: dict[tuple[str, str], float] = {}
        """Commands whose conclusion is on its way to the log, and when they began. What is submitted later is committed
        later, or never."""

    @property
    def room(self) -> int:
        """How many deliveries it takes now. Whoever is told 0 is called (`on_room`) when there is some."""
        room = 0 if self.over else max(0, min(self.acks.room, self._ahead - self._uncommitted))
        # It is not deliveries alone that use room up: a command may have several entries on their way to the log.
        self._awaited = self._awaited or room == 0
        return room

    @property
    def next_offset(self) -> int:
        """Where reading goes on."""
        return self.acks.next_offset

    @property
    def committing(self) -> bool:
        """Whether something is on its way to the log."""
        return self._uncommitted > 0

    @property
    def settled(self) -> bool:
        """Whether everything that was taken is finished and committed."""
        return self.acks.unfinished == 0 and not self.committing

    def restart_at(self, offset: int) -> None:
        """Read from another offset than the lane's position; only before anything was delivered."""
        self.acks = Acknowledgements(offset, self._ahead)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Hand over what was read. Offsets that were handed over before are passed by."""
        if self.over:
            return
        self._delivered(self, [delivery for delivery in deliveries if self.acks.take(delivery.offset)])

    def deliver_from(self, kept: deque[Delivery]) -> bool:
        """Hand over of what was read as much as there is room for; returns whether more may be read now."""
        while kept and (room := self.room):
            self.deliver([kept.popleft() for _ in range(min(room, len(kept)))])
        return not kept and self.room > 0

    def submit(self, entry: Entry, committed: Callable[[], None] | None = None) -> asyncio.Future[None]:
        """Send an entry to the lane; `committed` is called when it is."""
        self._uncommitted += 1
        future = self.lane.submit(entry)
        future.add_done_callback(partial(self._submitted, entry, committed), context=self._surroundings.context)
        return future

    def end(self) -> None:
        """Nothing of it counts any more."""
        self.over = True
        if not self.lost.done():
            self.lost.cancel()

    def _submitted(self, entry: Entry, committed: Callable[[], None] | None, future: asyncio.Future[None]) -> None:
        self._uncommitted -= 1
        if entry.state is not None and entry.state.concluded is not None:
            self.concluding.pop((entry.state.account_id, entry.state.command_id), None)
        error = ShardError("the lane was closed") if future.cancelled() else future.exception()
        if error is not None:
            self._failed(entry, error)
            return
        if not self.over:
            for record in entry.records:
                self._surroundings.observer.published(record.kind)
            if committed is not None:
                committed()
        if not self._uncommitted:
            self._surroundings.changed()
        # Not for every single place: reading goes on when a good part of what was taken has been written.
        if self._awaited and self._uncommitted <= self._ahead // 2 and self.room > 0:
            self._awaited = False
            self._on_room()

    def _failed(self, entry: Entry, error: BaseException) -> None:
        observer = self._surroundings.observer
        for record in entry.records:
            observer.publish_failed(record.kind)
        if entry.position is not None:
            observer.acknowledge_failed(self.lane.topic)
        if self.over:
            return
        lost = error if isinstance(error, ShardError) else ShardError(f"the lane failed: {type(error).__name__}")
        if lost is not error:
            log.error("a lane failed unexpectedly", lane=self.lane.topic, exc_info=error)
        if not self.lost.done():
            self.lost.set_result(lost)
        log.warning(
            "a lane is lost", lane=self.lane.topic, partition=self.lane.partition, code=lost.code, error=str(lost)
        )
        self._ended(self)
