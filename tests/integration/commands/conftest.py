"""A lane of jobs on the shared broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.services import Broker
from tests.integration.commands.processes import Starter, starter
from tests.integration.commands.rig import Jobs, settings_for


@pytest.fixture
async def jobs(kafka: Broker, topic_prefix: str) -> Jobs:
    """Topics of four partitions, nothing in them."""
    jobs = Jobs(settings_for(kafka.bootstrap, topic_prefix))
    await jobs.create_topics()
    return jobs


@pytest.fixture
async def processes(jobs: Jobs, tmp_path: Path) -> AsyncIterator[Starter]:
    """Starts processes that run jobs."""
    async with starter(jobs, tmp_path) as made:
        yield made
