"""A shard whose start fails in an unforeseen way starts over, visibly."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from streams.domain.ownership import ShardPhase
from streams.observer import NoopObserver
from streams.sync import shard as shards
from streams.sync.shard import Shard
from tests.fixtures.engine import engine_settings
from tests.fixtures.memory_log import MemoryLog, MemoryPartition


class Log(MemoryLog):
    """A log that opens at once."""

    async def fence(self) -> None:
        """Opening it has fenced the others."""

    async def restore(self) -> int:
        return 0


class Member:
    """Of the group, always."""

    async def prove(self) -> None:
        """It is one."""


async def test_s16_accounts_that_cannot_be_listed_do_not_end_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot be read for a moment (its database is locked, the disk is full)."""
    truth = MemoryPartition()

    def opened(partition: int, **_: Any) -> Log:
        truth.fence += 1
        return Log(truth, truth.fence, "w1")

    monkeypatch.setattr(shards, "ShardLog", opened)
    starts = 0
    loaded = asyncio.Event()

    async def load(_: Shard) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise RuntimeError("the database is locked")
        loaded.set()

    async def stop(_: Shard) -> None:
        """No runners."""

    shard = Shard(
        0,
        settings=engine_settings(),
        store=cast(Any, None),
        observer=NoopObserver(),
        worker="w1",
        membership=Member,
        restores=asyncio.Semaphore(1),
        on_running=load,
        on_broken=stop,
    )
    try:
        await asyncio.wait_for(loaded.wait(), 5)
        assert shard.phase is ShardPhase.RUNNING
    finally:
        await shard.close(flush_s=0.0)
