"""The life of a process with services that behave and services that do not (rows W3 to W7)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from streams.errors import ConfigurationError, ServiceUnavailable
from streams.runtime.hooks import Hooks
from streams.runtime.process import Process
from streams.runtime.services import Check, Health, Stage
from streams.runtime.shutdown import ECHO_S, Shutdown


class Recorded:
    """A service that writes down what happens to it."""

    def __init__(self, name: str, order: list[str], on_stop: Callable[[float], Awaitable[None]] | None = None) -> None:
        self.name = name
        self.order = order
        self.on_stop = on_stop
        self.deadlines: list[float] = []

    async def start(self) -> None:
        self.order.append(f"+{self.name}")

    async def stop(self, deadline_s: float) -> None:
        self.deadlines.append(deadline_s)
        if self.on_stop is not None:
            await self.on_stop(deadline_s)
        self.order.append(f"-{self.name}")

    def health(self) -> Health:
        return Health()


class Ending(Recorded):
    """A service that ends by itself."""

    def __init__(self, order: list[str], error: Exception | None = None) -> None:
        super().__init__("ending", order)
        self.error = error

    async def wait(self) -> None:
        if self.error is not None:
            raise self.error


def run(shutdown: Shutdown, **kwargs: Any) -> int:
    kwargs.setdefault("hooks", Hooks())
    return Process(shutdown=shutdown, retry_interval_s=0.05, **kwargs).run()


def request_after(shutdown: Shutdown, *delays_s: float) -> None:
    """Signals that come while the process runs, out of another thread."""

    def signals() -> None:
        for delay_s in delays_s:
            time.sleep(delay_s)
            shutdown.request("test")

    threading.Thread(target=signals, daemon=True).start()


def test_w3_checks_pass_before_services_start_and_hooks_run_before_checks() -> None:
    order: list[str] = []
    shutdown = Shutdown(5.0)
    hooks = Hooks()

    @hooks.on_startup
    async def hook() -> None:
        order.append("hook")

    attempts = 0

    async def probe() -> None:
        nonlocal attempts
        attempts += 1
        order.append("check")
        if attempts < 3:
            raise ServiceUnavailable("not yet")

    stages = [Stage([Recorded("a", order)]), Stage([Ending(order)])]
    assert run(shutdown, hooks=hooks, checks=[Check("Kafka", probe)], stages=stages) == 0
    assert order == ["hook", "check", "check", "check", "+a", "+ending", "-ending", "-a"]


def test_w3_a_broker_that_comes_late_is_one_line_per_retry() -> None:
    shutdown = Shutdown(5.0)
    attempts = 0

    async def probe() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise ServiceUnavailable("nobody there")

    with capture_logs() as logs:
        assert run(shutdown, checks=[Check("Kafka", probe)], stages=[Stage([Ending([])])]) == 0
    assert len([line for line in logs if line["log_level"] == "warning"]) == 3
    assert not [line for line in logs if "exc_info" in line]


def test_w3_what_goes_away_between_its_check_and_the_start_is_waited_for() -> None:
    """A broker that restarts in that second ended workers."""
    order: list[str] = []

    class Late(Recorded):
        async def start(self) -> None:
            await super().start()
            if len(self.order) < 3:
                raise ServiceUnavailable("nobody there")

    shutdown = Shutdown(5.0)
    with capture_logs() as logs:
        assert run(shutdown, stages=[Stage([Late("late", order)]), Stage([Ending([])])]) == 0
    assert order == ["+late", "+late", "+late", "-late"]
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["late cannot start yet"] * 2


def test_w8_a_job_process_does_not_wait_for_longer_than_it_may() -> None:
    class Never(Recorded):
        async def start(self) -> None:
            raise ServiceUnavailable("nobody there")

    assert run(Shutdown(5.0), stages=[Stage([Never("never", [])])], connect_timeout_s=0.1) == 1


def test_w4_a_stop_cancels_a_running_startup_hook_at_once() -> None:
    shutdown = Shutdown(30.0)
    order: list[str] = []
    hooks = Hooks()

    async def hangs() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            order.append("cancelled")

    hooks.add("hangs", startup=hangs)
    request_after(shutdown, 0.2)
    began = time.monotonic()
    assert run(shutdown, hooks=hooks, stages=[Stage([Recorded("a", order)])]) == 0
    assert time.monotonic() - began < 20.0
    assert order == ["cancelled"]


def test_w4_a_stop_cancels_a_connection_attempt_at_once() -> None:
    shutdown = Shutdown(30.0)

    async def probe() -> None:
        await asyncio.sleep(60)

    request_after(shutdown, 0.2)
    began = time.monotonic()
    assert run(shutdown, checks=[Check("Kafka", probe)]) == 0
    assert time.monotonic() - began < 20.0


def test_w5_stages_stop_in_reverse_and_tasks_get_the_grace() -> None:
    order: list[str] = []
    shutdown = Shutdown(7.0)
    first, tasks = Recorded("first", order), Recorded("tasks", order)
    request_after(shutdown, 0.2)
    assert run(shutdown, stages=[Stage([first]), Stage([tasks], uses_grace=True)]) == 0
    assert order == ["+first", "+tasks", "-tasks", "-first"]
    assert 5.0 < tasks.deadlines[0] <= 7.0


def test_the_order_of_stopping_can_be_given() -> None:
    order: list[str] = []
    shutdown = Shutdown(1.0)
    a, b = Stage([Recorded("a", order)]), Stage([Recorded("b", order)])
    request_after(shutdown, 0.2)
    assert run(shutdown, stages=[a, b], stop_order=[a, b]) == 0
    assert order == ["+a", "+b", "-a", "-b"]


def test_w5_a_service_that_hangs_is_abandoned_and_the_rest_is_stopped() -> None:
    order: list[str] = []

    async def hangs(_deadline_s: float) -> None:
        await asyncio.sleep(600)

    shutdown = Shutdown(0.2)
    request_after(shutdown, 0.1)
    began = time.monotonic()
    stages = [Stage([Recorded("first", order)]), Stage([Recorded("hangs", order, hangs)], uses_grace=True)]
    assert run(shutdown, stages=stages) == 1
    assert time.monotonic() - began < 20.0
    assert order == ["+first", "+hangs", "-first"]


def test_w6_a_second_signal_stops_tasks_at_once() -> None:
    order: list[str] = []

    async def slow(deadline_s: float) -> None:
        await asyncio.sleep(deadline_s)

    shutdown = Shutdown(60.0)
    tasks = Recorded("tasks", order, slow)
    request_after(shutdown, 0.2, ECHO_S + 0.3)
    began = time.monotonic()
    assert run(shutdown, stages=[Stage([tasks], uses_grace=True)]) == 0
    assert time.monotonic() - began < 20.0
    assert tasks.deadlines[1:] == [0.0]
    assert order == ["+tasks", "-tasks"]


def test_w7_a_failed_start_ends_with_1_and_stops_what_runs() -> None:
    order: list[str] = []

    class Broken(Recorded):
        async def start(self) -> None:
            raise RuntimeError("no")

    shutdown = Shutdown(1.0)
    assert run(shutdown, stages=[Stage([Recorded("a", order)]), Stage([Broken("b", order)])]) == 1
    assert order == ["+a", "-b", "-a"]


def test_w7_a_service_that_fails_ends_the_process_with_1() -> None:
    order: list[str] = []
    assert run(Shutdown(1.0), stages=[Stage([Ending(order, RuntimeError("died"))])]) == 1
    assert order == ["+ending", "-ending"]


def test_w1_a_configuration_error_in_a_check_is_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def probe() -> None:
        raise ConfigurationError("PARTITIONS is 9,\n but 8 partitions have x")

    assert run(Shutdown(1.0), checks=[Check("topics", probe)]) == 2
    assert capsys.readouterr().err == "configuration error: PARTITIONS is 9, but 8 partitions have x\n"


def test_w8_checks_are_given_up_after_the_connect_timeout() -> None:
    async def probe() -> None:
        raise ServiceUnavailable("nobody there")

    began = time.monotonic()
    assert run(Shutdown(1.0), checks=[Check("Kafka", probe)], connect_timeout_s=0.3) == 1
    assert time.monotonic() - began < 10.0


def test_w7_a_task_that_ignores_cancellation_is_named() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    kept: list[asyncio.Task[None]] = []

    class Leaves(Ending):
        async def start(self) -> None:
            kept.append(asyncio.create_task(stubborn(), name="the stubborn one"))

    began = time.monotonic()
    with capture_logs() as logs:
        assert run(Shutdown(1.0), stages=[Stage([Leaves([])])]) == 1
    assert time.monotonic() - began < 20.0
    assert [line["task"] for line in logs if line["event"] == "a task ignores its cancellation"] == ["the stubborn one"]
