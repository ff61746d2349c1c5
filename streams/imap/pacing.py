"""How fast history is read from one mail host, by all accounts of this process together.

A turn is the permission to read one window. What a window costs is known only afterwards, so each turn is charged what
windows of this host cost of late, and the difference is settled when it is over. Invariants: over any time no more is
read than the rates allow plus the windows under way; accounts take turns, one window each, in the order in which they
came; nothing else than history waits here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from streams.errors import RetryLater


@dataclass(frozen=True, slots=True)
class Rates:
    """What may be read per second; 0 is unlimited."""

    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def unlimited(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.messages_per_s <= 0 and self.bytes_per_s <= 0

    def seconds(self, messages: int, received: int) -> float:
        """Time that so much takes at these rates."""
        by_messages = messages / self.messages_per_s if self.messages_per_s > 0 else 0.0
        by_bytes = received / self.bytes_per_s if self.bytes_per_s > 0 else 0.0
        return max(by_messages, by_bytes)


class Turn:
    """One window may be read. `settle` ends it, whatever became of it."""

    __slots__ = ("_pace", "charged_s")

    def __init__(self, pace: Pace | None, charged_s: float) -> None:
        self._pace = pace
        self.charged_s = charged_s

    def settle(self, messages: int, received: int) -> None:
        """What was read, in messages and bytes; 0 and 0 when nothing was. Only the first call counts."""
        pace, self._pace = self._pace, None
        if pace is not None:
            pace.settle(self.charged_s, messages, received)


class Pace:
    """Turns for one host. `rates` is asked each time, since this process's share changes with the fleet."""

    __slots__ = ("_clock", "_due", "_expected_s", "_max_waiting", "_rates", "_timer", "_under_way", "_waiters")

    def __init__(self, rates: Callable[[], Rates], clock: Callable[[], float], max_waiting: int) -> None:
        self._rates = rates
        self._clock = clock
        self._max_waiting = max_waiting
        self._waiters: deque[asyncio.Future[Turn]] = deque()
        self._under_way = 0
        self._due = 0.0  # when everything read so far is paid
        self._expected_s: float | None = None  # what a window costs, as last seen
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Accounts in the queue."""
        return sum(not waiter.done() for waiter in self._waiters)

    def idle(self, now: float) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return not self._waiters and not self._under_way and self._due <= now

    def turn_now(self) -> Turn | None:
        """A turn if none has to wait for one; else None."""
        if self._rates().unlimited:
            return Turn(None, 0.0)
        if self.waiting or self._due > self._clock() or (self._expected_s is None and self._under_way):
            return None
        return self._take()

    async def turn(self, timeout_s: float) -> Turn:
        """Wait for a turn. Raises `RetryLater` when none came in time, or too many wait already."""
        if self._rates().unlimited:
            return Turn(None, 0.0)
        if len(self._waiters) >= self._max_waiting:
            raise RetryLater(
                "too many accounts wait for history of this host", code="history_queue_full", retry_after_s=timeout_s
            )
        waiter: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._advance()
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # the turn came while we left
                waiter.result().settle(0, 0)
            else:
                waiter.cancel()
                self._advance()
            if isinstance(error, TimeoutError):
                raise RetryLater("no turn to read history came in time", code="history_queue_slow") from None
            raise

    def settle(self, charged_s: float, messages: int, received: int) -> None:
        """The end of a turn."""
        self._under_way -= 1
        cost = self._rates().seconds(messages, received)
        self._due += cost - charged_s
        if messages or received:
            self._expected_s = cost if self._expected_s is None else (self._expected_s + cost) / 2
        self._advance()

    def _advance(self) -> None:
        """Give turns as far as the rates allow; come back when the next is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()
                continue
            if self._expected_s is None and self._under_way:
                return  # the first window tells what they cost
            now = self._clock()
            if self._due > now and not self._rates().unlimited:
                self._timer = asyncio.get_running_loop().call_later(self._due - now, self._advance)
                return
            self._waiters.popleft().set_result(self._take())

    def _take(self) -> Turn:
        charged_s = self._expected_s or 0.0
        self._due = max(self._due, self._clock()) + charged_s
        self._under_way += 1
        return Turn(self, charged_s)
