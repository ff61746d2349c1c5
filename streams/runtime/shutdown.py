"""Signals and the time they leave: running, then draining until a deadline, then hurried.

The deadline is counted from the first signal (row W5), wherever the process was when it came; a second signal puts it
to now (row W6). Signals are caught from the first moment, before there is an event loop, so that a container's PID 1
reacts to them.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

ECHO_S: Final = 0.2
"""Signals this close together are one: a terminal signals the whole process group, and a parent often passes its own
on.
"""


class Shutdown:
    """State of the shutdown of this process. All waiting is done on one event loop; signals may come at any time."""

    def __init__(self, grace_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._first_at: float | None = None
        self._grace_ends_at = 0.0
        self._hurried = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requested_event: asyncio.Event | None = None
        self._hurried_event: asyncio.Event | None = None
        self._kept: dict[int, object] = {}
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        """Whether the process is to end."""
        return self._first_at is not None

    @property
    def hurried(self) -> bool:
        """Whether what is left of the grace is skipped."""
        return self._hurried

    def remaining_s(self) -> float:
        """Seconds of grace that are left; all of it while nothing was requested."""
        if self._first_at is None:
            return self._grace_s
        return max(0.0, self._grace_ends_at - self._clock())

    def overdue_s(self, closing_s: float) -> float:
        """Seconds past the moment at which the process had to be gone, given `closing_s` after the grace; negative
        before.
        """
        if self._first_at is None:
            return float("-inf")
        return self._clock() - self._grace_ends_at - closing_s

    def request(self, reason: str, *, hurry: bool = False) -> None:
        """Ask for the end. The first request starts the grace; a later one (not an echo of the first) skips what is
        left of it.
        """
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
            self._grace_ends_at = now if hurry else now + self._grace_s
            self.reason = reason
            self._hurried = hurry
        elif not self._hurried and (hurry or now - self._first_at > ECHO_S):
            self._grace_ends_at = min(self._grace_ends_at, now)
            self._hurried = True
        self._publish()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say which loop waits. Requests made before are not lost."""
        self._requested_event, self._hurried_event = asyncio.Event(), asyncio.Event()
        self._loop = loop
        self._publish()

    async def wait_requested(self) -> None:
        """Wait for the first request."""
        assert self._requested_event is not None
        await self._requested_event.wait()

    async def wait_hurried(self) -> None:
        """Wait until nothing is to be waited for any more."""
        assert self._hurried_event is not None
        await self._hurried_event.wait()

    def catch_signals(self) -> None:
        """Take SIGTERM, SIGINT and SIGHUP over (main thread only); not a SIGHUP that is ignored, as under nohup."""
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._kept[number] = signal.signal(number, self._on_signal)

    def release_signals(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._kept.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._kept.clear()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)

    def _publish(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set_events)

    def _set_events(self) -> None:
        assert self._requested_event is not None
        assert self._hurried_event is not None
        if self.requested:
            self._requested_event.set()
        if self._hurried:
            self._hurried_event.set()
