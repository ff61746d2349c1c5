"""Whether the event loop turns, seen from a thread beside it, and how late it is, seen from within.

A blocked loop keeps its Kafka membership (heartbeats run in another thread), so only an observer outside of it can
tell. When the loop stands still the line that blocks it is logged, once per stall; when it still stands after the
time in which a drain must be over, the process is ended (row W7).
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

import structlog

from streams.observer import RuntimeObserver
from streams.runtime.exit import EXIT_BLOCKED, ExitGuard
from streams.runtime.shutdown import Shutdown

log = structlog.get_logger(__name__)

SAMPLE_S: Final = 0.1
"""Between two measurements of the loop's lateness."""
TASKS_S: Final = 10.0
"""Between two counts of the loop's tasks, which looks at each of them."""
ASK_S: Final = 0.5
"""Between two questions of the thread whether the loop turns."""
STALL_S: Final = 2.0
"""A stall this long is logged with the line that blocks."""


class LoopWatch:
    """Watches one event loop from a daemon thread."""

    def __init__(self, shutdown: Shutdown, observer: RuntimeObserver, closing_s: Callable[[], float]) -> None:
        self._shutdown = shutdown
        self._observer = observer
        self._closing_s = closing_s
        self._turned_at = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._sampling: asyncio.Task[None] | None = None

    def standing_still_s(self) -> float:
        """Seconds since the loop was last seen turning; 0 before it is watched and after."""
        return time.monotonic() - self._turned_at if self._thread is not None and not self._ended.is_set() else 0.0

    def start(self) -> None:
        """Begin; to be called on the loop that is to be watched."""
        self._turned_at = time.monotonic()
        loop = asyncio.get_running_loop()
        self._sampling = loop.create_task(self._sample(), name="loop-lag")
        self._thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="loop-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is measured any more."""
        self._ended.set()
        if self._sampling is not None:
            self._sampling.cancel()

    async def _sample(self) -> None:
        counted_at = -math.inf
        while True:
            before = time.monotonic()
            if before - counted_at >= TASKS_S:
                self._observer.loop_tasks(len(asyncio.all_tasks()))
                counted_at = before
                before = time.monotonic()
            await asyncio.sleep(SAMPLE_S)
            self._observer.loop_lag(max(0.0, time.monotonic() - before - SAMPLE_S))

    def _turn(self) -> None:
        self._turned_at = time.monotonic()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        reported = False
        while not self._ended.wait(ASK_S):
            still_s = time.monotonic() - self._turned_at
            if still_s > STALL_S and not reported:
                frame = sys._current_frames().get(thread_id)
                where = traceback.extract_stack(frame)[-1] if frame is not None else None
                log.error(
                    "the event loop stands still",
                    seconds=round(still_s, 1),
                    at=f"{where.filename}:{where.lineno} {where.name}" if where is not None else "unknown",
                )
                reported = True
            elif still_s <= STALL_S:
                reported = False
            overdue_s = self._shutdown.overdue_s(self._closing_s())
            if overdue_s > 0:
                log.error("the process does not end by itself; it is ended", overdue_s=round(overdue_s, 1))
                ExitGuard.now(EXIT_BLOCKED)
            try:
                loop.call_soon_threadsafe(self._turn)
            except RuntimeError:  # the loop is closed: there is nothing left to watch
                return
