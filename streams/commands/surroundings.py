"""What the parts of one engine have in common: who it is, its limits, its clocks, and the event that tells of a change.

Invariant: what one task sets off (a timer, a callback of the lane) runs in `context`, so that it never logs in the name
of that task (row W16).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from streams.commands.limits import EngineLimits
from streams.observer import NoopObserver, RuntimeObserver


class Surroundings:
    """Made once for an engine, on its event loop. `worker` and `service` are how events and log records name it."""

    def __init__(
        self,
        limits: EngineLimits,
        *,
        partitions: int,
        worker: str,
        service: str,
        resources: Mapping[str, Any] | None = None,
        observer: RuntimeObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.limits = limits
        self.partitions = partitions
        self.worker = worker
        self.service = service
        self.resources = dict(resources or {})
        self.observer: RuntimeObserver = observer or NoopObserver()
        self.clock = clock
        self.now = now
        self.rng = rng
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.draining = False
        """Nothing is started any more."""
        self._changes = asyncio.Event()

    def soon(self, call: Callable[[], object]) -> None:
        """Call it in the next round of the event loop."""
        self.loop.call_soon(call, context=self.context)

    def later(self, after_s: float, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call it after a while."""
        return self.loop.call_later(after_s, call, *args, context=self.context)

    def changed(self) -> None:
        """Tell that the engine is doing something else than before."""
        self._changes.set()

    async def change(self) -> None:
        """Wait for the next call of `changed`."""
        self._changes.clear()
        await self._changes.wait()
