"""One shard on this worker: performs what `streams.domain.ownership` decides for its partition.

A single task takes events one after the other, so that a fence, a proof and a restore never overlap. Runners ask for
the log with `running`, and wait while there is none; their connections stay through a lost producer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from streams.domain.backoff import full_jitter
from streams.domain.ownership import ShardAction, ShardEvent, ShardPhase, step
from streams.errors import MembershipLost, MirrorDamaged, ProducerLost, RetryLater
from streams.observer import RuntimeObserver
from streams.runtime.clients import cancelled_from_elsewhere
from streams.settings import Settings
from streams.sync.log import ShardLog
from streams.sync.store import MirrorStore

log = logging.getLogger(__name__)

LOST_PAUSE_S = 0.05
PROOF_TRIES = 5
"""Proofs without an answer before the fence is tried again."""


class Membership(Protocol):
    """Our place in the group, as of one assignment."""

    async def prove(self) -> None:
        """Commit an offset in the generation of the assignment. Raises `MembershipLost`, or `RetryLater` without an
        answer.
        """
        ...


class Shard:
    """One partition, from its assignment to its loss."""

    def __init__(
        self,
        partition: int,
        *,
        settings: Settings,
        store: MirrorStore,
        observer: RuntimeObserver,
        worker: str,
        membership: Callable[[], Membership],
        restores: asyncio.Semaphore,
        on_running: Callable[[Shard], Awaitable[None]],
        on_broken: Callable[[Shard], Awaitable[None]],
        after: asyncio.Task[None] | None = None,
    ) -> None:
        """`after` is the end of an earlier tenure of the same partition here: two never overlap in the local store."""
        self.partition = partition
        self.phase = ShardPhase.IDLE
        self.since = time.monotonic()
        self.error: str | None = None
        self._settings = settings
        self._store = store
        self._observer = observer
        self._worker = worker
        self._membership = membership
        self._restores = restores
        self._on_running = on_running
        self._on_broken = on_broken
        self._after = after
        self._events: asyncio.Queue[ShardEvent] = asyncio.Queue(maxsize=64)
        self._log: ShardLog | None = None
        self._running: asyncio.Future[ShardLog] = asyncio.get_running_loop().create_future()
        self._failures = 0
        self._task = asyncio.create_task(self._run(), name=f"shard-{partition}")
        self._watcher: asyncio.Task[None] | None = None
        self.tell(ShardEvent.ASSIGNED)

    # --- for the host and the runners --------------------------------------------------------------------------------
    def tell(self, event: ShardEvent) -> None:
        """Something happened; handled in order."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("shard %d: %s was not queued, too much is waiting", self.partition, event.value)

    @property
    def log(self) -> ShardLog | None:
        """The log while the shard runs; None, too, when it was lost and the shard has yet to hear of it."""
        current = self._log
        usable = self.phase is ShardPhase.RUNNING and current is not None and not current.lost.done()
        return current if usable else None

    async def running(self) -> ShardLog:
        """The log in force; waits until the shard runs. Raises `ProducerLost` when the shard has been closed."""
        while True:
            current = await asyncio.shield(self._running)
            if not current.lost.done():
                return current
            await asyncio.sleep(LOST_PAUSE_S)  # the shard has yet to hear of the loss

    def mirror_unreadable(self, error: MirrorDamaged) -> None:
        """A runner could not read its mirror: the shard stops, visibly, until it is assigned again."""
        self.error = str(error)
        self.tell(ShardEvent.MIRROR_UNREADABLE)

    @property
    def last_commit_at(self) -> float | None:
        """When something was last committed (unix seconds)."""
        return self._log.last_commit_at if self._log is not None else None

    async def close(self, *, flush_s: float) -> None:
        """The assignment ended or the worker stops. What runners submitted is committed while time is left."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=5.0)
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._running.done():
            self._running.set_exception(ProducerLost(f"shard {self.partition} is not ours any more"))
            self._running.exception()
        self.phase = ShardPhase.IDLE
        if self._log is not None:
            current, self._log = self._log, None
            await current.close(flush_s=flush_s)

    # --- the machine -------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        if self._after is not None:
            await asyncio.wait({self._after}, timeout=30.0)
        while True:
            event = await self._events.get()
            before = self.phase
            self.phase, actions = step(self.phase, event)
            if self.phase is not before:
                self.since = time.monotonic()
                log.info("shard %d: %s, now %s", self.partition, event.value, self.phase.value)
            for action in actions:
                try:
                    await self._perform(action)
                except asyncio.CancelledError as error:
                    if not cancelled_from_elsewhere(error):
                        raise
                    self._start_over("a Kafka client has cancelled what was waited for")
                except Exception as error:  # a task that ends here would leave the partition to nobody, unseen
                    log.exception("shard %d: %s failed unexpectedly", self.partition, action.value)
                    self._start_over(f"{action.value} failed: {type(error).__name__}")

    def _start_over(self, reason: str) -> None:
        fencing = self.phase is ShardPhase.FENCING
        self._failed(reason, ShardEvent.FENCE_FAILED if fencing else ShardEvent.WRITER_LOST)

    async def _perform(self, action: ShardAction) -> None:
        match action:
            case ShardAction.OPEN_FENCE:
                await self._open_fence()
            case ShardAction.PROVE:
                await self._prove()
            case ShardAction.RESTORE:
                await self._restore()
            case ShardAction.RUN:
                await self._start()
            case ShardAction.PAUSE_RUNNERS:
                self._running = asyncio.get_running_loop().create_future()
            case ShardAction.STOP_RUNNERS:
                if self._running.done():
                    self._running = asyncio.get_running_loop().create_future()
                await self._on_broken(self)
            case ShardAction.CLOSE_WRITER:
                if self._log is not None:
                    current, self._log = self._log, None
                    await current.close()

    async def _open_fence(self) -> None:
        if self._failures:
            await asyncio.sleep(full_jitter(self._failures, minimum_s=0.2, maximum_s=10.0, random=random.random()))
        self._log = ShardLog(
            self.partition, settings=self._settings, store=self._store, observer=self._observer, worker=self._worker
        )
        try:
            async with self._restores:
                await self._log.fence()
        except ProducerLost as error:
            self._failed(str(error), ShardEvent.FENCE_FAILED)
        else:
            self.tell(ShardEvent.FENCED)

    async def _prove(self) -> None:
        """Fence first, then prove: a sleeper that fenced the rightful owner fails here and goes away."""
        for attempt in range(1, PROOF_TRIES + 1):
            membership = self._membership()
            try:
                await membership.prove()
            except MembershipLost as error:
                if self._membership() is not membership:
                    continue  # a newer assignment came while we asked for the older one
                log.info("shard %d: not proved: %s", self.partition, error)
                self.error = str(error)
                self.tell(ShardEvent.PROOF_REFUSED)
                return
            except RetryLater as error:
                log.info("shard %d: no answer to the proof: %s", self.partition, error)
                await asyncio.sleep(full_jitter(attempt, minimum_s=0.1, maximum_s=2.0, random=random.random()))
                continue
            self.tell(ShardEvent.PROVED)
            return
        self._failed("membership could not be proved", ShardEvent.WRITER_LOST)

    async def _restore(self) -> None:
        assert self._log is not None
        started = time.monotonic()
        try:
            async with self._restores:
                count = await self._log.restore()
        except MirrorDamaged as error:
            log.error("shard %d stands still: %s", self.partition, error)
            self.error = str(error)
            self.tell(ShardEvent.MIRROR_UNREADABLE)
        except ProducerLost as error:
            self._failed(str(error), ShardEvent.WRITER_LOST)
        else:
            seconds = time.monotonic() - started
            self._observer.table_recovery(seconds)
            log.info("shard %d: %d mirror records read in %.2f s", self.partition, count, seconds)
            self.tell(ShardEvent.RESTORED)

    async def _start(self) -> None:
        current = self._log
        assert current is not None
        self.error = None
        if current.lost.done():
            self.tell(ShardEvent.WRITER_LOST)
            return
        self._watcher = asyncio.create_task(self._watch(current), name=f"shard-watch-{self.partition}")
        if not self._running.done():
            self._running.set_result(current)
        await self._on_running(self)
        if not current.lost.done():
            self._failures = 0

    async def _watch(self, current: ShardLog) -> None:
        reason = await asyncio.shield(current.lost)
        if current is self._log:
            self._failed(str(reason), ShardEvent.WRITER_LOST)

    def _failed(self, reason: str, event: ShardEvent) -> None:
        self._failures += 1
        # Each reason once: a shard that cannot start tries every few seconds.
        log.log(logging.INFO if reason == self.error else logging.WARNING, "shard %d: %s", self.partition, reason)
        self.error = reason
        self.tell(event)
