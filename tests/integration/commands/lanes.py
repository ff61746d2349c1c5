"""The three lanes behind one face, for the contract that all of them keep."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from streams.commands.job_lane import JobLane
from streams.commands.job_writer import JobWriter
from streams.commands.memory_lane import MemoryLane, MemoryTopic
from streams.commands.owner_lane import OwnerLane
from streams.commands.ports import Lane
from streams.contracts import topics
from streams.errors import MembershipLost
from streams.observer import NoopObserver
from streams.sync.log import ShardLog
from streams.sync.store import MirrorStore
from tests.integration.commands.rig import Jobs, job_group

PARTITION = 1


class LaneMaker(Protocol):
    """Opens lanes over one and the same partition, as owners that follow each other do."""

    def open(self) -> contextlib.AbstractAsyncContextManager[Lane]:
        """A new owner: fences the one before."""
        ...

    async def published(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """Partition, key and value of what a reader sees (read_committed), in order within each partition."""
        ...


class MemoryMaker:
    """Over `MemoryLane`."""

    def __init__(self) -> None:
        self._topic = MemoryTopic(partition=PARTITION)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Lane]:
        yield MemoryLane(self._topic)

    async def published(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        return [
            (record.partition if record.partition is not None else PARTITION, record.key, record.value)
            for record in self._topic.committed
            if record.topic == topic
        ]


class JobMaker:
    """Over `JobLane`; whoever opened last is the member of the group."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._generation = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Lane]:
        settings = self._jobs.settings
        self._generation += 1
        generation = self._generation

        async def prove() -> int:
            if generation != self._generation:
                raise MembershipLost("another member has the partition")
            return await self._jobs.committed(topics.JOBS, PARTITION)

        writer = JobWriter(settings, PARTITION, job_group(settings), prove)
        await writer.open()
        lane = JobLane(writer, PARTITION)
        try:
            yield lane
        finally:
            await lane.close()

    async def published(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.partition, record.key, record.value) for record in await self._jobs.records(topic)]


class OwnerMaker:
    """Over `OwnerLane` and the log of a real shard."""

    def __init__(self, jobs: Jobs, directory: Callable[[], Path]) -> None:
        self._jobs = jobs
        self._directory = directory

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Lane]:
        settings = self._jobs.settings
        store = MirrorStore(self._directory())
        log = ShardLog(PARTITION, settings=settings, store=store, observer=NoopObserver(), worker="w")
        await log.fence()
        await log.restore()
        try:
            yield OwnerLane(log, remembered=settings.COMMANDS_REMEMBERED, full_name=settings.topic)
        finally:
            await log.close()
            store.close()

    async def published(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.partition, record.key, record.value) for record in await self._jobs.records(topic)]
