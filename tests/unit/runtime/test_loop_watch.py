"""A loop that stands still is seen from outside, with the line that blocks it."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from streams.observer import NoopObserver
from streams.runtime import loop_watch
from streams.runtime.loop_watch import LoopWatch
from streams.runtime.shutdown import Shutdown


class Lags(NoopObserver):
    def __init__(self) -> None:
        self.lags: list[float] = []
        self.tasks: list[int] = []

    def loop_lag(self, seconds: float) -> None:
        self.lags.append(seconds)

    def loop_tasks(self, count: int) -> None:
        self.tasks.append(count)


async def test_w10_lag_is_measured_and_a_stall_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "ASK_S", 0.02)
    monkeypatch.setattr(loop_watch, "SAMPLE_S", 0.02)
    monkeypatch.setattr(loop_watch, "STALL_S", 0.2)
    observer = Lags()
    watch = LoopWatch(Shutdown(1.0), observer, lambda: 10.0)
    assert watch.standing_still_s() == 0.0
    with capture_logs() as logs:
        watch.start()
        await asyncio.sleep(0.1)
        assert watch.standing_still_s() < 0.5
        time.sleep(0.6)
        still_s = watch.standing_still_s()
        await asyncio.sleep(0.1)
    tasks = len(asyncio.all_tasks())
    watch.stop()
    assert still_s > 0.4
    assert watch.standing_still_s() == 0.0
    assert max(observer.lags) > 0.4
    assert observer.tasks == [tasks]
    (stall,) = [line for line in logs if line["event"] == "the event loop stands still"]
    assert "test_loop_watch.py" in stall["at"]
