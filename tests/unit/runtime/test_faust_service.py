"""The Faust app as a service: silent deaths are seen, nothing holds the stop (case 110, rows W5, W9)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from streams.observer import NoopObserver
from streams.runtime.faust_service import FaustService


class Actor:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self.actor_task = task


class Agent:
    started = True
    should_stop = False

    def __init__(self, *actors: Actor) -> None:
        self._actors = set(actors)


class App:
    """What `FaustService` uses of a Faust app."""

    def __init__(self) -> None:
        self.crashed = False
        self.crash_reason: BaseException | None = None
        self.rebalancing = False
        self.rebalancing_count = 1
        self.agents: dict[str, Agent] = {}
        self.in_worker = False
        self.on_startup_finished: Any = print
        self.stop_hangs = False
        self.start_hangs = False
        self._stopped = asyncio.Event()

    async def start(self) -> None:
        if self.start_hangs:
            await asyncio.sleep(60)

    async def stop(self) -> None:
        if self.stop_hangs:
            await asyncio.sleep(60)
        self._stopped.set()

    async def wait_until_stopped(self) -> None:
        await self._stopped.wait()

    def crash(self, error: BaseException) -> None:
        self.crashed, self.crash_reason = True, error
        self._stopped.set()


@pytest.fixture
async def app() -> App:
    return App()


async def test_ready_only_when_tables_are_recovered(app: App) -> None:
    service = FaustService(app, NoopObserver())
    assert not service.health().ready
    assert service.health().alive
    await service.start()
    assert service.health().ready
    assert app.in_worker


async def test_a_crash_at_start_is_raised(app: App) -> None:
    service = FaustService(app, NoopObserver())
    app.start_hangs = True
    app.crash(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await service.start()


async def test_a_crash_ends_the_wait_and_the_life(app: App) -> None:
    service = FaustService(app, NoopObserver())
    await service.start()
    waiting = asyncio.create_task(service.wait())
    app.crash(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await waiting
    health = service.health()
    assert not health.alive
    assert health.reason == "crashed: ValueError"


async def test_case_110_an_agent_that_has_ended_silently_is_not_alive(app: App) -> None:
    service = FaustService(app, NoopObserver())
    await service.start()
    running = asyncio.create_task(asyncio.sleep(60))
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    app.agents = {"accounts": Agent(Actor(running)), "heat": Agent(Actor(ended))}
    health = service.health()
    assert not health.alive
    assert health.reason == "agents have ended: heat"
    app.agents["heat"] = Agent(Actor(ended), Actor(running))
    assert service.health().alive, "one of its actors runs again"
    running.cancel()


async def test_a_rebalance_without_end_is_not_alive(app: App) -> None:
    service = FaustService(app, NoopObserver(), rebalance_limit_s=0.0)
    await service.start()
    app.rebalancing = True
    service.health()
    await asyncio.sleep(0.01)
    assert not service.health().alive
    app.rebalancing = False
    assert service.health().alive


async def test_problems_make_it_unready_not_dead(app: App) -> None:
    service = FaustService(app, NoopObserver(), problems=lambda: ["no proof of membership"])
    await service.start()
    health = service.health()
    assert (health.alive, health.ready, health.reason) == (True, False, "no proof of membership")


async def test_w5_a_stop_that_hangs_is_abandoned(app: App) -> None:
    service = FaustService(app, NoopObserver())
    await service.start()
    app.stop_hangs = True
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await service.stop(0.1)
    assert time.monotonic() - began < 5


async def test_w4_a_start_that_hangs_is_cancelled_by_the_stop(app: App) -> None:
    service = FaustService(app, NoopObserver())
    app.start_hangs = True
    starting = asyncio.create_task(service.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await service.stop(0.5)
    assert service._starting is not None
    assert service._starting.done()
