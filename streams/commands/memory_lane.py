"""A lane in memory: the engine without Kafka, for tests and for trying handlers out.

It keeps what the real lanes keep: entries become visible whole and in order, a new owner fences the old one, and what
the old one had not committed is gone. `MemoryTopic` outlives its lanes, as a broker does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from streams.commands.ports import CommandState, Delivery, Entry, OutRecord
from streams.commands.session import Session
from streams.errors import ProducerLost, ShardError


@dataclass(slots=True)
class MemoryTopic:
    """One partition of commands and everything that was committed about it."""

    topic: str = "sync.jobs"
    partition: int = 0
    deliveries: list[Delivery] = field(default_factory=list)
    committed: list[OutRecord] = field(default_factory=list)
    states: dict[tuple[str, str], CommandState] = field(default_factory=dict)
    position: int = 0
    fence: int = 0

    def produce(self, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()) -> int:
        """Append a record; returns its offset."""
        offset = len(self.deliveries)
        self.deliveries.append(Delivery(self.partition, offset, key, value, headers))
        return offset


class MemoryLane:
    """A lane over a `MemoryTopic`. Opening one fences the lane opened before."""

    def __init__(self, log: MemoryTopic) -> None:
        log.fence += 1
        self._log = log
        self._fence = log.fence
        self._states = dict(log.states)
        self.topic = log.topic
        self.partition = log.partition
        self.position = log.position
        self._queue: list[tuple[Entry, asyncio.Future[None]]] = []
        self._held = False
        self.failing: ShardError | None = None

    def known(self, account_id: str, command_id: str) -> CommandState | None:
        """What was committed about a command."""
        return self._states.get((account_id, command_id))

    def submit(self, entry: Entry) -> asyncio.Future[None]:
        """Queue an entry; it is committed in the next round of the event loop."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((entry, future))
        if len(self._queue) == 1 and not self._held:
            asyncio.get_running_loop().call_soon(self._commit)
        return future

    def hold(self) -> None:
        """Commit nothing until `release`, as a broker does that does not answer."""
        self._held = True

    def release(self) -> None:
        """Commit what was held."""
        self._held = False
        self._commit()

    def feed(self, session: Session) -> None:
        """Hand over everything that the session has room for."""
        while session.room and session.next_offset < len(self._log.deliveries):
            start = session.next_offset
            session.deliver(self._log.deliveries[start : start + session.room])

    def _commit(self) -> None:
        if self._held:
            return
        queue, self._queue = self._queue, []
        for entry, future in queue:
            error = self.failing or (None if self._fence == self._log.fence else ProducerLost("a newer lane exists"))
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
                continue
            self._log.committed.extend(entry.records)
            if entry.state is not None:
                key = (entry.state.account_id, entry.state.command_id)
                self._states[key] = self._log.states[key] = entry.state
            if entry.position is not None:
                self._log.position = entry.position
            future.set_result(None)
