"""Rows W5 and W6: the grace counts from the first signal, a second one ends it."""

from __future__ import annotations

import asyncio
import signal

import pytest

from streams.runtime.shutdown import ECHO_S, Shutdown


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_w5_the_grace_is_counted_from_the_first_signal() -> None:
    clock = Clock()
    shutdown = Shutdown(20.0, clock=clock)
    assert shutdown.remaining_s() == 20.0
    shutdown.request("SIGTERM")
    clock.now += 5
    assert shutdown.requested
    assert shutdown.remaining_s() == 15.0
    clock.now += 50
    assert shutdown.remaining_s() == 0.0


def test_w6_a_second_signal_skips_the_rest() -> None:
    clock = Clock()
    shutdown = Shutdown(20.0, clock=clock)
    shutdown.request("SIGTERM")
    clock.now += 1
    shutdown.request("SIGINT")
    assert shutdown.hurried
    assert shutdown.remaining_s() == 0.0
    assert shutdown.reason == "SIGTERM"


def test_w6_the_echo_of_a_signal_is_no_second_one() -> None:
    """A terminal signals the whole group, and a parent passes its own on: both arrive at once."""
    clock = Clock()
    shutdown = Shutdown(20.0, clock=clock)
    shutdown.request("SIGINT")
    clock.now += ECHO_S / 2
    shutdown.request("SIGINT")
    assert not shutdown.hurried


def test_overdue_counts_from_the_end_of_the_grace() -> None:
    clock = Clock()
    shutdown = Shutdown(20.0, clock=clock)
    assert shutdown.overdue_s(10.0) == float("-inf")
    shutdown.request("SIGTERM")
    clock.now += 1
    assert shutdown.overdue_s(10.0) == -29.0
    shutdown.request("SIGTERM")
    clock.now += 12
    assert shutdown.overdue_s(10.0) == 2.0
    shutdown.request("SIGTERM")
    assert shutdown.overdue_s(10.0) == 2.0, "a third signal moves nothing"


async def test_requests_before_the_loop_are_not_lost() -> None:
    shutdown = Shutdown(20.0)
    shutdown.request("SIGTERM", hurry=True)
    shutdown.bind(asyncio.get_running_loop())
    async with asyncio.timeout(5):
        await shutdown.wait_requested()
        await shutdown.wait_hurried()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_real_signal_wakes_the_loop(number: signal.Signals) -> None:
    shutdown = Shutdown(20.0)
    shutdown.bind(asyncio.get_running_loop())
    before = signal.signal(number, signal.SIG_DFL)
    try:
        shutdown.catch_signals()
        try:
            signal.raise_signal(number)
            async with asyncio.timeout(5):
                await shutdown.wait_requested()
        finally:
            shutdown.release_signals()
        assert shutdown.reason == number.name
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_under_nohup_a_terminal_that_closes_says_nothing() -> None:
    shutdown = Shutdown(20.0)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        shutdown.catch_signals()
        signal.raise_signal(signal.SIGHUP)
        assert not shutdown.requested
        shutdown.release_signals()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
