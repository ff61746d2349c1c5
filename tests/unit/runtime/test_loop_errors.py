"""Errors that nobody awaited: a Kafka client's leftovers are quiet, ours are not."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiokafka.errors import ProducerFenced

from streams.runtime.loop_errors import report


@pytest.mark.parametrize(("error", "reported"), [(ProducerFenced(), 0), (ValueError("ours"), 1)])
async def test_only_errors_of_ours_are_reported(
    caplog: pytest.LogCaptureFixture, error: Exception, reported: int
) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    with caplog.at_level(logging.ERROR):
        report(loop, {"message": "Future exception was never retrieved", "exception": error, "future": future})
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == reported
    future.cancel()
