"""The lane over one partition of `sync.jobs`: what the engine sees of a `JobWriter`."""

from __future__ import annotations

import asyncio

from streams.commands.job_writer import JobWriter
from streams.commands.ports import CommandState, Entry
from streams.contracts import topics


class JobLane:
    """A partition of `sync.jobs` that was opened. See `streams.commands.ports.Lane`."""

    def __init__(self, writer: JobWriter, partition: int) -> None:
        self._writer = writer
        self._partition = partition

    @property
    def topic(self) -> str:
        return topics.JOBS

    @property
    def partition(self) -> int:
        return self._partition

    @property
    def position(self) -> int:
        return self._writer.position

    def known(self, account_id: str, command_id: str) -> CommandState | None:
        return self._writer.memory.get(account_id, command_id)

    def submit(self, entry: Entry) -> asyncio.Future[None]:
        return self._writer.submit(entry)

    async def close(self) -> None:
        """Give the partition up. What is not committed fails."""
        await self._writer.close()
