"""Startup and shutdown hooks: how code of third parties takes part in the life of the process.

A hook is an async function without arguments. Startup hooks run in order, before anything connects; a stop during one
cancels it at once (row W4), and one that fails ends the process. Only hooks of a pair whose startup succeeded are
shut down, in reverse order, within one common budget (row W5); one that fails or is late is logged and does not hold
up the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

Hook = Callable[[], Awaitable[None]]
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Pair:
    name: str
    startup: Hook | None
    shutdown: Hook | None


class Hooks:
    """Hooks of one process."""

    def __init__(self) -> None:
        self._pairs: list[_Pair] = []
        self._up: list[_Pair] = []

    def add(self, name: str, *, startup: Hook | None = None, shutdown: Hook | None = None) -> None:
        """Register a pair. Not possible any more once startup hooks have run."""
        if self._up:
            raise RuntimeError("hooks are registered before the process starts")
        self._pairs.append(_Pair(name, startup, shutdown))

    def on_startup(self, hook: Hook) -> Hook:
        """Decorator: run `hook` before anything connects."""
        self.add(hook.__name__ if hasattr(hook, "__name__") else repr(hook), startup=hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Decorator: run `hook` after everything has stopped."""
        self.add(hook.__name__ if hasattr(hook, "__name__") else repr(hook), shutdown=hook)
        return hook

    async def run_startup(self) -> None:
        """Run startup hooks in order. What one raises ends the start."""
        for pair in self._pairs:
            if pair.startup is not None:
                log.debug("startup hook", hook=pair.name)
                await pair.startup()
            self._up.append(pair)

    async def run_shutdown(self, budget_s: float) -> bool:
        """Run shutdown hooks in reverse order, all together within `budget_s` seconds. Returns whether all of them
        succeeded.
        """
        ends_at = time.monotonic() + budget_s
        good = True
        while self._up:
            pair = self._up.pop()
            if pair.shutdown is None:
                continue
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                log.error("shutdown hook skipped: the budget is used up", hook=pair.name, budget_s=budget_s)
                good = False
                continue
            task = asyncio.ensure_future(pair.shutdown())
            done, _ = await asyncio.wait({task}, timeout=left_s)
            if not done:
                task.cancel()
                log.error("shutdown hook took too long", hook=pair.name, budget_s=budget_s)
                good = False
            elif task.cancelled() or task.exception() is not None:
                error = None if task.cancelled() else task.exception()
                log.error("shutdown hook failed", hook=pair.name, exc_info=error)
                good = False
        return good
