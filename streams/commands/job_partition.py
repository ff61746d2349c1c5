"""One assigned partition of `sync.jobs` in this process, from its first record to its loss.

It is opened (fenced, proven, restored) when the first record comes, not before: an idle partition costs nothing, and a
job process fences only what it works on. States::

    idle --a record--> opening --opened--> running --lost--> closing --> idle (read again from the position)
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from streams.commands.engine import Engine
from streams.commands.job_lane import JobLane
from streams.commands.job_writer import JobWriter
from streams.commands.ports import Delivery
from streams.commands.session import Session
from streams.errors import ProducerLost, ShardError

log = structlog.get_logger(__name__)

REOPEN_MIN_S: Final = 0.5
REOPEN_MAX_S: Final = 30.0


class Source(Protocol):
    """What a partition asks of the consumer that reads it."""

    def seek(self, partition: int, offset: int) -> None: ...

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...


class JobPartition:
    """Passes records of one partition to the engine, and opens and reopens the lane they need."""

    def __init__(self, partition: int, engine: Engine, source: Source, make_writer: Callable[[int], JobWriter]) -> None:
        self._partition = partition
        self._engine = engine
        self._source = source
        self._make_writer = make_writer
        self._lane: JobLane | None = None
        self._session: Session | None = None
        self._kept: deque[Delivery] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._failures = 0
        self._opened_at = 0.0
        self._unread = False

    @property
    def open(self) -> bool:
        """Whether its commands can run."""
        return self._session is not None

    @property
    def opening(self) -> bool:
        """Whether a record waits for the lane to open."""
        return self._task is not None and self._session is None

    @property
    def blocked(self) -> bool:
        """Whether nothing is to be read of it now."""
        return self.opening or bool(self._kept) or (self._session is not None and self._session.room == 0)

    @property
    def unread_for_s(self) -> float | None:
        """Seconds since it was opened, when nothing has been read of it since; else None."""
        return time.monotonic() - self._opened_at if self._session is not None and self._unread else None

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Records as they were read. The first opens the lane; what there is no room for is kept, and no more read."""
        if self._ended:
            return
        if self._session is None:
            # They are read again when the lane is open, from the position that is right then.
            self._source.pause(self._partition)
            if self._task is None:
                self._task = asyncio.create_task(self._live(), name=f"jobs-partition-{self._partition}")
            return
        self._unread = False
        self._kept.extend(deliveries)
        self._pass_on()

    def reassigned(self) -> None:
        """It stays ours in a new generation: reading goes on where we are, not at the committed offset."""
        if self._session is not None:
            self._kept.clear()
            self._source.seek(self._partition, self._session.next_offset)
            if self._session.room == 0:
                self._source.pause(self._partition)
        elif self._task is not None:
            self._source.pause(self._partition)

    async def end(self) -> None:
        """It is not ours any more, or the process ends: cancel what runs, write nothing further."""
        self._ended = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._close()

    def _pass_on(self) -> None:
        session = self._session
        if session is None or session.over:
            return
        if session.deliver_from(self._kept):
            self._source.resume(self._partition)
        else:
            self._source.pause(self._partition)

    async def _live(self) -> None:
        """Open, run until the lane is lost, and again, until the partition is taken from us."""
        while True:
            try:
                await self._open()
                assert self._session is not None
                # Shielded: who stops waiting must not make the loss unheard of.
                lost: ShardError = await asyncio.shield(self._session.lost)
            except ShardError as error:
                lost = error
            except Exception as error:  # a client's own, say: a task that ends here would leave the partition unread
                log.error("a partition of jobs failed unexpectedly", partition=self._partition, exc_info=error)
                lost = ProducerLost(f"the partition could not be opened: {type(error).__name__}")
            await self._close()
            lived_s = time.monotonic() - self._opened_at
            self._failures = 1 if lived_s > 2 * REOPEN_MAX_S else self._failures + 1
            log.warning(
                "a partition of jobs has to start over",
                partition=self._partition,
                code=lost.code,
                error=str(lost),
                failures=self._failures,
            )
            await asyncio.sleep(min(REOPEN_MAX_S, REOPEN_MIN_S * 2 ** min(self._failures - 1, 10)))

    async def _open(self) -> None:
        writer = self._make_writer(self._partition)
        await writer.open()
        self._lane = JobLane(writer, self._partition)
        self._session = self._engine.attach(self._lane, self._pass_on)
        self._opened_at, self._unread = time.monotonic(), True
        self._source.seek(self._partition, self._session.next_offset)
        self._source.resume(self._partition)
        log.debug("a partition of jobs is open", partition=self._partition, position=self._lane.position)

    async def _close(self) -> None:
        self._kept.clear()
        session, self._session = self._session, None
        if session is not None:
            self._engine.detach(session)
        lane, self._lane = self._lane, None
        if lane is not None:
            await lane.close()
