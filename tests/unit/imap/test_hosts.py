"""The gate in front of a mail host: its rate, its number at once, its backoff, its fairness.

Where time is the point it is virtual: a loop whose clock jumps to the next timer, so that figures are exact and nothing
depends on how busy the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streams.errors import CommandTimedOut, ConnectionLost, CredentialsRefused, HostBusy, MailstreamsError
from streams.imap.hosts import HostGate, HostPolicy

LATE = 5.0


class JumpingSelector(selectors.DefaultSelector):
    """Does not wait: the time that it would have waited passes at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on a loop of its own whose time jumps."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.close()

    return run


def virtual_gate(policy: HostPolicy) -> HostGate:
    """A gate on the running loop's clock."""
    return HostGate(policy, clock=asyncio.get_running_loop().time)


async def use(gate: HostGate, host: str, log: list[float], hold_s: float = 0.0, late_s: float = LATE) -> None:
    async with gate.login(host, timeout_s=late_s):
        log.append(asyncio.get_running_loop().time())
        await asyncio.sleep(hold_s)


async def fail(gate: HostGate, error: BaseException, host: str = "h") -> None:
    with contextlib.suppress(type(error)):
        async with gate.login(host, timeout_s=LATE):
            raise error


def pause_of(gate: HostGate, host: str = "h") -> float:
    return next((state.pause_s for state in gate.states() if state.host == host), 0.0)


@in_virtual_time
async def test_logins_never_pass_the_rate() -> None:
    gate = virtual_gate(HostPolicy(logins_per_s=100, concurrent_logins=1000))
    log: list[float] = []
    await asyncio.gather(*(use(gate, "h", log) for _ in range(40)))
    assert [round(at, 6) for at in log] == [round(number / 100, 6) for number in range(40)]


@in_virtual_time
async def test_a_burst_is_taken_from_a_quiet_time() -> None:
    gate = virtual_gate(HostPolicy(logins_per_s=5, burst=10, concurrent_logins=1000))
    log: list[float] = []
    await asyncio.gather(*(use(gate, "h", log) for _ in range(11)))
    assert log[9] == log[0]
    assert log[10] - log[0] == pytest.approx(0.2)


@in_virtual_time
async def test_the_rate_is_shared_by_the_workers() -> None:
    gate = virtual_gate(HostPolicy(logins_per_s=100, concurrent_logins=1000))
    gate.set_workers(4)
    log: list[float] = []
    await asyncio.gather(*(use(gate, "h", log) for _ in range(6)))
    assert log[-1] - log[0] == pytest.approx(5 * 4 / 100)


async def test_the_number_at_once_is_bounded_and_hosts_do_not_wait_for_each_other() -> None:
    gate = HostGate(HostPolicy(logins_per_s=10_000, concurrent_logins=3))
    running = peak = 0

    async def login(host: str) -> None:
        nonlocal running, peak
        async with gate.login(host, timeout_s=LATE):
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.01)
            running -= 1

    await asyncio.gather(*(login("h") for _ in range(20)))
    assert peak == 3
    peak = 0
    await asyncio.gather(*(login(f"h{number}") for number in range(20)))
    assert peak == 20


async def test_who_came_first_goes_first() -> None:
    gate = HostGate(HostPolicy(logins_per_s=10_000, concurrent_logins=1))
    order: list[int] = []

    async def login(number: int) -> None:
        async with gate.login("H.", timeout_s=LATE):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(login(number) for number in range(50)))
    assert order == list(range(50))


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (HostBusy("x"), True),
        (ConnectionLost("x", code="unreachable"), True),
        (CommandTimedOut("x", code="connect_timed_out"), True),
        (ConnectionLost("x"), False),
        (CredentialsRefused("x"), False),
        (ValueError("x"), False),
    ],
)
async def test_only_what_tells_of_the_host_holds_the_host_back(error: Exception, pauses: bool) -> None:
    gate = HostGate(HostPolicy(logins_per_s=1e6, backoff_base_s=10), uniform=lambda low, high: high)
    await fail(gate, error)
    assert (pause_of(gate) > 5) is pauses


async def test_backoff_doubles_is_jittered_capped_and_forgotten() -> None:
    now = 0.0
    bounds: list[float] = []

    def uniform(low: float, high: float) -> float:
        assert low == 0.0
        bounds.append(high)
        return 0.0  # full jitter may be nothing

    gate = HostGate(
        HostPolicy(logins_per_s=1e6, backoff_base_s=1, backoff_cap_s=10), clock=lambda: now, uniform=uniform
    )
    for _ in range(6):
        now += 1
        await fail(gate, ConnectionLost("x", code="unreachable"))
    assert bounds == [1, 2, 4, 8, 10, 10]
    now += 1
    async with gate.login("h", timeout_s=LATE):
        pass
    assert not gate.states() or gate.states()[0].failures == 0
    now += 1
    await fail(gate, ConnectionLost("x", code="unreachable"))
    assert bounds[-1] == 1


async def test_a_hint_is_the_least() -> None:
    gate = HostGate(HostPolicy(logins_per_s=1e6), uniform=lambda low, high: 0.0)
    await fail(gate, HostBusy("x", retry_after_s=120))
    assert pause_of(gate) == pytest.approx(120, abs=1)
    gate.slow_down("other", retry_after_s=60)
    assert pause_of(gate, "other") == pytest.approx(60, abs=1)


async def test_while_a_host_is_down_one_at_a_time_tries() -> None:
    gate = HostGate(HostPolicy(logins_per_s=1e6, concurrent_logins=50), uniform=lambda low, high: 0.01)
    await fail(gate, ConnectionLost("x", code="unreachable"))
    running = peak = 0

    async def attempt() -> None:
        nonlocal running, peak
        with contextlib.suppress(MailstreamsError):
            async with gate.login("h", timeout_s=LATE):
                running += 1
                peak = max(peak, running)
                await asyncio.sleep(0)
                running -= 1
                raise ConnectionLost("x", code="unreachable")

    await asyncio.gather(*(attempt() for _ in range(10)))
    assert peak == 1


async def test_nobody_waits_for_ever_and_the_queue_has_a_bound() -> None:
    gate = HostGate(HostPolicy(logins_per_s=1e6, concurrent_logins=1, max_waiting=2))
    async with gate.login("h", timeout_s=LATE):
        waiting = [asyncio.ensure_future(use(gate, "h", [])) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(HostBusy, match="too many"):
            async with gate.login("h", timeout_s=LATE):
                pass
        waiting[1].cancel()
        await asyncio.sleep(0)
    await waiting[0]
    async with gate.login("h", timeout_s=LATE):
        with pytest.raises(HostBusy, match="in time"):
            async with gate.login("h", timeout_s=0.02):
                pass
    async with asyncio.timeout(LATE), gate.login("h", timeout_s=LATE):
        pass  # nothing was leaked by those who left


async def test_a_turn_that_comes_while_its_owner_is_cancelled_goes_to_the_next() -> None:
    gate = HostGate(HostPolicy(logins_per_s=1e6, concurrent_logins=1))
    for _ in range(20):
        first = asyncio.ensure_future(use(gate, "h", []))
        second = asyncio.ensure_future(use(gate, "h", []))
        third = asyncio.ensure_future(use(gate, "h", []))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        async with asyncio.timeout(LATE):
            await asyncio.gather(first, second, third, return_exceptions=True)
    assert all(state.logging_in == 0 and state.waiting == 0 for state in gate.states())


@in_virtual_time
async def test_five_thousand_accounts_come_back_within_their_share() -> None:
    gate = virtual_gate(HostPolicy(logins_per_s=20, concurrent_logins=100))
    log: list[float] = []
    await asyncio.gather(*(use(gate, "h", log, hold_s=2.0, late_s=3600) for _ in range(5000)))
    assert 4999 / 20 <= log[-1] - log[0] + 1e-6 < 5000 / 20 * 1.2
    for earlier, later in zip(log, log[20:], strict=False):
        assert later - earlier >= 1 - 1e-6
