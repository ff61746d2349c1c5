"""The Faust app as one service of our process: started last, stopped first of what only closes, never in charge.

Faust's own worker is not used: it ends by itself when no broker answers, closes its loop for over a second, waits
without a limit for whatever hangs, and knows one exit code for all failures. Stopping the app commits offsets and
leaves the group, so that peers take over at once (row S4).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from streams.observer import RuntimeObserver
from streams.runtime.services import Health

log = structlog.get_logger(__name__)

REBALANCE_LIMIT_S: Final = 120.0
"""A rebalance that takes longer than this is stuck (the longest seen with hung peers is two session time-outs)."""


class FaustService:
    """Runs a `faust.App` within a process."""

    name = "faust"

    def __init__(
        self,
        app: Any,
        observer: RuntimeObserver,
        *,
        problems: Callable[[], list[str]] = list,
        rebalance_limit_s: float = REBALANCE_LIMIT_S,
    ) -> None:
        """`problems` says what keeps the agents from their work; that makes the worker unready, not dead: most of it is
        the brokers' doing."""
        self._app = app
        self._observer = observer
        self._problems = problems
        self._rebalance_limit_s = rebalance_limit_s
        self._starting: asyncio.Task[None] | None = None
        self._recovered = False
        self._rebalancing_since: float | None = None

    async def start(self) -> None:
        """Start the app; returns when its tables are recovered. Raises what made it fail."""
        self._app.in_worker = True
        self._app.on_startup_finished = None
        began = time.monotonic()
        self._starting = asyncio.create_task(self._app.start(), name="faust-start")
        crashed = asyncio.create_task(self._app.wait_until_stopped(), name="faust-start-crash")
        try:
            await asyncio.wait({self._starting, crashed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            crashed.cancel()
        if self._app.crashed:
            raise self._app.crash_reason or RuntimeError("the Faust app has crashed")
        await self._starting
        self._recovered = True
        self._observer.table_recovery(time.monotonic() - began)

    async def wait(self) -> None:
        """Return never; raise when the app has crashed."""
        await self._app.wait_until_stopped()
        if self._app.crashed:
            raise self._app.crash_reason or RuntimeError("the Faust app has crashed")
        await asyncio.Event().wait()

    async def stop(self, deadline_s: float) -> None:
        """Commit offsets, leave the group, stop. Abandons what is not done after `deadline_s` seconds."""
        self._recovered = False
        stopping = asyncio.create_task(self._app.stop(), name="faust-stop")
        _, pending = await asyncio.wait({stopping}, timeout=deadline_s)
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting}, timeout=1.0)
        for task in pending:
            task.cancel()
        if pending:
            raise TimeoutError(f"Faust did not stop within {deadline_s:g} s")
        with contextlib.suppress(asyncio.CancelledError):
            await stopping

    def health(self) -> Health:
        """Dead when the app has crashed, an agent has no running actor, or a rebalance does not end."""
        app = self._app
        if app.crashed:
            return Health(alive=False, ready=False, reason=f"crashed: {type(app.crash_reason).__name__}")
        if not self._recovered:
            return Health(ready=False, reason="tables are being recovered")
        dead = dead_agents(app)
        if dead:
            return Health(alive=False, ready=False, reason=f"agents have ended: {', '.join(dead)}")
        detail: dict[str, object] = {"rebalancing": bool(app.rebalancing), "rebalances": app.rebalancing_count}
        if not app.rebalancing:
            self._rebalancing_since = None
            problems = self._problems()
            return Health(ready=not problems, reason="; ".join(problems) or None, detail=detail)
        now = time.monotonic()
        if self._rebalancing_since is None:
            self._rebalancing_since = now
        since_s = now - self._rebalancing_since
        if since_s > self._rebalance_limit_s:
            return Health(alive=False, ready=False, reason=f"rebalancing for {since_s:.0f} s", detail=detail)
        return Health(detail=detail)


def dead_agents(app: Any) -> list[str]:
    """Names of agents none of whose actors runs (Faust logs the end of an agent's stream, and goes on without it)."""
    dead = []
    for name, agent in app.agents.items():
        if not agent.started or agent.should_stop:
            continue
        tasks = [actor.actor_task for actor in list(agent._actors) if actor.actor_task is not None]
        if tasks and all(task.done() for task in tasks):
            dead.append(str(name))
    return dead
