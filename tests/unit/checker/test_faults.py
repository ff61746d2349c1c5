"""Faults: each is drawn, each service is stopped, killed and paused, and what is broken is whole again after each."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.rig.fleet import Fleet
from tests.storm.faults import Faults
from tests.storm.services import StormServices


class _Service:
    def __init__(self, done: Counter[str], name: str) -> None:
        self._done, self._name = done, name

    def __getattr__(self, what: str) -> Any:
        self._done[f"{what} {self._name}"] += 1
        return self.now if what in ("pause", "resume") else self.later

    def now(self) -> None:
        """SIGSTOP and SIGCONT take no time."""

    async def later(self) -> None:
        """Everything else does."""


async def test_every_service_is_stopped_killed_and_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_: float) -> None:
        """No time is lost here."""

    monkeypatch.setattr("tests.storm.faults.asyncio.sleep", sleep)
    done: Counter[str] = Counter()
    services = SimpleNamespace(
        kafka=_Service(done, "kafka"), postgres=_Service(done, "postgres"), mail={"full": _Service(done, "mail")}
    )
    fleet = SimpleNamespace(environment={"KAFKA_SESSION_TIMEOUT_S": "6"})
    faults = Faults(cast("Fleet", fleet), cast("StormServices", services), random.Random(1), pause_s=1)
    catalogue = dict(Faults._catalogue)
    assert all(weight > 0 for weight in catalogue.values())
    for fault in catalogue:
        if any(name in fault.__name__ for name in ("kafka", "postgres", "mail")):
            await fault(faults)
    for name in ("kafka", "postgres", "mail"):
        assert [done[f"{what} {name}"] for what in ("stop", "kill", "start", "pause", "resume")] == [1, 1, 2, 1, 1]
    assert len(faults.happened) == 9
