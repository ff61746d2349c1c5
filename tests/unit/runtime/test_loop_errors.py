"""Errors that nobody awaited: a Kafka client's leftovers are quiet, ours are not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import ProducerFenced

from streams.runtime.loop_errors import report


@pytest.mark.parametrize(("error", "reported"), [(ProducerFenced(), 0), (ValueError("ours"), 1)])
async def test_only_errors_of_ours_are_reported(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reported: int
) -> None:
    loop = asyncio.get_running_loop()
    handled: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "default_exception_handler", handled.append)
    future: asyncio.Future[None] = loop.create_future()
    report(loop, {"message": "Future exception was never retrieved", "exception": error, "future": future})
    assert len(handled) == reported
    future.cancel()
