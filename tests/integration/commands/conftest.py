"""A lane of jobs on the shared broker."""

from __future__ import annotations

import pytest

from tests.fixtures.services import Broker
from tests.integration.commands.rig import Jobs, settings_for


@pytest.fixture
async def jobs(kafka: Broker, topic_prefix: str) -> Jobs:
    """Topics of four partitions, nothing in them."""
    jobs = Jobs(settings_for(kafka.bootstrap, topic_prefix))
    await jobs.create_topics()
    return jobs
