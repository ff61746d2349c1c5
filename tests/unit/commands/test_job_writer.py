"""The writer of a partition of jobs while no broker answers."""

from __future__ import annotations

import pytest

from streams.commands.job_writer import JobWriter
from streams.errors import ProducerLost
from tests.fixtures.engine import engine_settings


async def test_s16_a_partition_that_cannot_be_fenced_is_lost_and_not_more() -> None:
    """Whoever opens it tries again after this error; another one would be taken for a fault."""

    async def prove() -> int:
        raise AssertionError("nothing was fenced")

    writer = JobWriter(engine_settings(KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1"), 0, "jobs", prove)
    with pytest.raises(ProducerLost):
        await writer.open()
