"""Fixtures for what is projected: settings of a deployment of one's own, its log, its rows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from streams.projection.migrations import migrate
from streams.settings import Settings
from tests.fixtures.services import Broker
from tests.integration.projection.log import LogWriter, Rows, create_topics, deployment


@pytest.fixture
def settings(kafka: Broker, database: str, topic_prefix: str) -> Settings:
    """Settings of a deployment of our own."""
    return deployment(kafka.bootstrap, database, topic_prefix)


@pytest.fixture
async def log_writer(settings: Settings) -> AsyncIterator[LogWriter]:
    """A writer of an empty log."""
    await create_topics(settings)
    writer = LogWriter(settings)
    await writer.start()
    yield writer
    await writer.stop()


@pytest.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    """A look into the migrated database."""
    await migrate(database)
    connection = await asyncpg.connect(database)
    yield Rows(connection)
    await connection.close()
