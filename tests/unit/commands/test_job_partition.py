"""A partition of jobs opens its lane when the first record comes, and opens it again whatever went wrong."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from streams.commands import job_partition
from streams.commands.job_partition import JobPartition
from streams.commands.job_state import CommandMemory
from streams.commands.job_writer import JobWriter
from streams.commands.ports import Delivery
from tests.unit.commands.rig import Rig, registry, running


class Reader:
    """What the consumer was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def seek(self, partition: int, offset: int) -> None:
        self.told.append(f"seek {offset}")

    def pause(self, partition: int) -> None:
        self.told.append("pause")

    def resume(self, partition: int) -> None:
        self.told.append("resume")


class Writer:
    """Opens unless it raises."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error
        self.position = 0
        self.memory = CommandMemory(10)

    async def open(self) -> None:
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Nothing is open."""


async def test_s16_a_lane_that_fails_in_an_unknown_way_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop refuses to write to a connection that is closed, and aiokafka passes that on as it is."""
    monkeypatch.setattr(job_partition, "REOPEN_MIN_S", 0.01)
    refusal = RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
    outcomes: list[BaseException | None] = [refusal, None]
    source = Reader()

    def make(partition: int) -> JobWriter:
        return cast(JobWriter, Writer(outcomes.pop(0)))

    async with running(Rig(registry())) as rig:
        partition = JobPartition(0, rig.engine, source, make)
        partition.deliver([Delivery(0, 0, None, None)])
        async with asyncio.timeout(5):
            while not partition.open:
                await asyncio.sleep(0.01)
        assert source.told == ["pause", "seek 0", "resume"]
        await partition.end()
