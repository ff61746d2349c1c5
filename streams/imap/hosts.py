"""How often, and how many at once, this process may knock at one mail host, and how fast it may read history there.

All accounts of the process share what a host allows. A takeover makes thousands of them want to log in at the same
moment; a host that is down makes them all fail. The gate turns both into a queue. Invariants: logins to one host never
pass its rate, nor its number at once; who came first goes first; while a host refuses, one login at a time tries
whether it is back; nobody waits without a deadline, and the queue has a bound.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from streams.errors import CommandTimedOut, ConnectionLost, HostBusy, RetryLater
from streams.imap.pacing import Pace, Rates, Turn


def server_key(host: str, port: int) -> str:
    """The name under which the gate knows a mail server. With the port: one account whose port is wrong must not hold
    back, by its failures, all others of the host.
    """
    return f"{host.lower().rstrip('.')}:{port}"


_TIMER_LATE_S: Final = 0.005
_MAX_IDLE_HOSTS: Final = 10_000
# Codes of `ConnectionLost` and `CommandTimedOut` that tell of the host rather than of one session.
_HOST_DOWN: Final = frozenset(
    {"unreachable", "connect_timed_out", "greeting_timed_out", "refused_at_greeting", "name_lookup_failed"}
)


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Limits for each host. `logins_per_s` and `history` are shared evenly by the workers (`HostGate.set_workers`)."""

    logins_per_s: float = 10.0
    burst: int = 1  # logins that may start together after a quiet time
    concurrent_logins: int = 10
    max_waiting: int = 50_000
    backoff_base_s: float = 1.0
    backoff_cap_s: float = 300.0
    history: Rates = field(default_factory=Rates)


@dataclass(frozen=True, slots=True)
class HostState:
    """What the gate knows of a host, for metrics and status."""

    host: str
    waiting: int
    logging_in: int
    failures: int  # in a row
    pause_s: float  # until the next login may start
    history_waiting: int = 0  # accounts that want to read a window of history


class _Host:
    __slots__ = ("failures", "in_progress", "next_at", "pace", "pause_until", "timer", "waiters")

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.waiters: deque[asyncio.Future[None]] = deque()
        self.in_progress = 0
        self.failures = 0
        self.next_at = 0.0  # theoretical time of the next login (generic cell rate algorithm)
        self.pause_until = 0.0
        self.timer: asyncio.TimerHandle | None = None

    def idle(self, now: float) -> bool:
        quiet = not (self.waiters or self.in_progress or self.failures) and self.next_at <= now
        return quiet and self.pace.idle(now)


class HostGate:
    """Wrap each connect-and-login in `async with gate.login(host)`. One gate for a process and its event loop."""

    def __init__(
        self,
        policy: HostPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._policy = policy if policy is not None else HostPolicy()
        self._clock = clock
        self._uniform = uniform
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self._workers = 1

    def set_workers(self, count: int) -> None:
        """How many workers share each host's rates, as far as is known."""
        self._workers = max(1, count)

    @asynccontextmanager
    async def login(self, host: str, *, timeout_s: float = 600.0) -> AsyncIterator[None]:
        """Wait for a turn and hold it while logging in. What the block raises is learnt from.

        Raises:
            HostBusy: no turn came in time, or too many wait already.
        """
        key = host.lower().rstrip(".")
        entry = self._entry(key)
        if len(entry.waiters) >= self._policy.max_waiting:
            raise HostBusy("too many logins wait for this host", code="login_queue_full", retry_after_s=timeout_s)
        await self._turn(entry, timeout_s)
        try:
            yield
        except BaseException as error:
            self._learn(entry, error)
            raise
        else:
            entry.failures = 0
        finally:
            entry.in_progress -= 1
            self._advance(entry)

    def slow_down(self, host: str, *, retry_after_s: float | None = None) -> None:
        """A session was told to wait, outside of a login. Holds back logins to the host."""
        self._pause(self._entry(host.lower().rstrip(".")), retry_after_s)

    async def history_turn(self, host: str, *, timeout_s: float = 600.0) -> Turn:
        """Wait until one more window of history may be read from the host; settle the turn in any case.

        Raises:
            RetryLater: no turn came in time, or too many wait already.
        """
        return await self._entry(host.lower().rstrip(".")).pace.turn(timeout_s)

    def history_turn_now(self, host: str) -> Turn | None:
        """A turn if nobody has to wait; else None."""
        return self._entry(host.lower().rstrip(".")).pace.turn_now()

    def states(self) -> list[HostState]:
        """All hosts that anything is going on with."""
        now = self._clock()
        return [
            HostState(
                host,
                len(entry.waiters),
                entry.in_progress,
                entry.failures,
                max(0.0, self._free_at(entry) - now),
                entry.pace.waiting,
            )
            for host, entry in self._hosts.items()
            if not entry.idle(now)
        ]

    def _entry(self, key: str) -> _Host:
        entry = self._hosts.get(key)
        if entry is None:
            if len(self._hosts) >= _MAX_IDLE_HOSTS:
                now = self._clock()
                for name in [name for name, old in self._hosts.items() if old.idle(now)]:
                    del self._hosts[name]
            entry = self._hosts[key] = _Host(Pace(self._history_rates, self._clock, self._policy.max_waiting))
        return entry

    def _history_rates(self) -> Rates:
        """This worker's part."""
        whole = self._policy.history
        return Rates(whole.messages_per_s / self._workers, whole.bytes_per_s / self._workers)

    async def _turn(self, entry: _Host, timeout_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry.waiters.append(waiter)
        self._advance(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # the turn came while we left
                entry.in_progress -= 1
            else:
                waiter.cancel()
            self._advance(entry)
            if isinstance(error, TimeoutError):
                raise HostBusy("no turn to log in came in time", code="login_queue_slow") from None
            raise

    def _free_at(self, entry: _Host) -> float:
        interval = self._workers / self._policy.logins_per_s
        return max(entry.pause_until, entry.next_at - (self._policy.burst - 1) * interval)

    def _advance(self, entry: _Host) -> None:
        """Give turns to those who wait, as far as rate and number allow; come back when the next is due."""
        interval = self._workers / self._policy.logins_per_s
        # After a failure one login tries whether the host is back; the others wait for what it finds.
        at_once = 1 if entry.failures else self._policy.concurrent_logins
        while entry.waiters and entry.in_progress < at_once:
            if entry.waiters[0].done():
                entry.waiters.popleft()
                continue
            now = self._clock()
            due = self._free_at(entry)
            if due > now:
                if entry.timer is not None:
                    entry.timer.cancel()
                entry.timer = asyncio.get_running_loop().call_later(due - now, self._advance, entry)
                return
            # A turn that our own timer gave a little late does not push the ones behind it back.
            entry.next_at = (entry.next_at if now - entry.next_at <= interval + _TIMER_LATE_S else now) + interval
            entry.in_progress += 1
            entry.waiters.popleft().set_result(None)

    def _learn(self, entry: _Host, error: BaseException) -> None:
        down = isinstance(error, ConnectionLost | CommandTimedOut) and error.code in _HOST_DOWN
        if isinstance(error, RetryLater) and (down or isinstance(error, HostBusy)):
            self._pause(entry, error.retry_after_s)
        elif not isinstance(error, RetryLater | asyncio.CancelledError):
            entry.failures = 0  # the host answered; that it refused this account says nothing about the others

    def _pause(self, entry: _Host, hint_s: float | None) -> None:
        """Full jitter: anything up to the exponential bound, but no less than the host asked for."""
        entry.failures += 1
        bound = min(self._policy.backoff_cap_s, self._policy.backoff_base_s * 2.0 ** min(entry.failures - 1, 30))
        pause = self._uniform(0.0, bound)
        if hint_s is not None:
            pause += hint_s
        entry.pause_until = max(entry.pause_until, self._clock() + pause)
