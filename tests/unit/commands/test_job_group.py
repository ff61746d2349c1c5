"""The member of the group of jobs while brokers are away."""

from __future__ import annotations

import asyncio
import time

import pytest

from streams.commands import job_group
from streams.commands.job_group import JobGroup
from streams.errors import ServiceUnavailable
from tests.fixtures.engine import engine_settings
from tests.unit.commands.rig import Rig, registry, running


async def test_w9_a_broker_that_is_away_while_a_consumer_is_replaced_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The probe of a worker with thousands of accounts must not fail for that: Kafka would not come back sooner."""
    monkeypatch.setattr(job_group, "ERROR_PAUSE_S", 0.01)

    async def nobody() -> None:
        raise ServiceUnavailable("Kafka: KafkaConnectionError")

    async with running(Rig(registry())) as rig:
        group = JobGroup(engine_settings(), rig.engine)
        monkeypatch.setattr(group, "_join", nobody)
        group.read_at -= 1000.0
        joining = asyncio.create_task(group._join_anew())
        await asyncio.sleep(0.05)
        assert time.monotonic() - group.read_at < 1.0
        group.stop_reading()
        await asyncio.wait_for(joining, 5)
