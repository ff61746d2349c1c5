"""The life of a process, from the first signal handler to the exit code; the same for workers and jobs.

::

    phase       what happens                                          a stop request does
    checking    settings are known to be good, the port is bound      (nothing has started)
    hooks       startup hooks                                         cancels the running hook at once (W4)
    connecting  checks: Kafka, topics, PostgreSQL; retried             cancels the attempt at once (W4)
    starting    stages start in order                                 cancels the start, drains what runs
    running     until a signal, a failure, or the work is done        drains
    draining    stages stop, in their order, within the grace        a second one skips the rest of the grace (W6)
    closing     shutdown hooks, left-over tasks and threads           (bounded: W5, W7)

Invariant: whatever hangs, the process ends, with 0 (clean), 1 (failure) or 2 (configuration), and what hung is named.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Literal

import structlog

from streams.errors import ConfigurationError, RetryLater, ServiceUnavailable
from streams.runtime.context import ContextThreadPool
from streams.runtime.exit import ExitGuard, cancel_leftovers
from streams.runtime.hooks import Hooks
from streams.runtime.loop_errors import report
from streams.runtime.services import CLOSE_LIMIT_S, Check, Health, Service, Stage, Watched
from streams.runtime.shutdown import Shutdown

Phase = Literal["checking", "hooks", "connecting", "starting", "running", "draining", "closing"]

EXIT_CLEAN: Final = 0
EXIT_FAILURE: Final = 1
EXIT_CONFIGURATION: Final = 2

OVERTIME_S: Final = 1.0
"""How long past its deadline a stop may take before it is abandoned."""

BLOCKING_THREADS: Final = 32
"""Threads for what blocks: DNS, files, synchronous handlers."""

log = structlog.get_logger(__name__)


def configuration_line(error: ConfigurationError) -> str:
    """The one line an operator sees for a configuration error (rows W1, W2)."""
    return "configuration error: " + " ".join(str(error).split())


class Process:
    """One process: its checks, its stages of services, its hooks, and how it ends."""

    def __init__(
        self,
        *,
        shutdown: Shutdown,
        hooks: Hooks,
        checks: Sequence[Check] = (),
        stages: Sequence[Stage] = (),
        stop_order: Sequence[Stage] | None = None,
        retry_interval_s: float = 3.0,
        connect_timeout_s: float | None = None,
        hooks_budget_s: float = 5.0,
    ) -> None:
        """Stages start in order and stop in `stop_order`, or in reverse.

        `connect_timeout_s` bounds how long checks are retried (None: for ever); over it the process ends with 1.
        """
        self._shutdown = shutdown
        self._hooks = hooks
        self._checks = checks
        self._stages = stages
        self._stop_order = tuple(stop_order) if stop_order is not None else tuple(reversed(stages))
        self._retry_interval_s = retry_interval_s
        self._connect_timeout_s = connect_timeout_s
        self._hooks_budget_s = hooks_budget_s
        self._beginnings: list[Callable[[], None]] = []
        self._when_running: list[Callable[[], None]] = []
        self._endings: list[Callable[[], None]] = []
        self._begun: list[Stage] = []
        self._failed = False
        self.phase: Phase = "checking"
        self.waiting_for: str | None = None

    # --- what the probes ask ---------------------------------------------------------------------------------------
    def health(self) -> dict[str, Health]:
        """Health of every service that was started, by name. To be called on the event loop."""
        return {service.name: _health_of(service) for stage in self._begun for service in stage.services}

    def closing_s(self) -> float:
        """Seconds that the process may take at most after the grace: closing, hooks, left-overs."""
        return (CLOSE_LIMIT_S + 2 * OVERTIME_S) * max(1, len(self._stages)) + self._hooks_budget_s + ExitGuard.LIMIT_S

    # --- running ---------------------------------------------------------------------------------------------------
    def run(self) -> int:
        """Run to the end and return the exit code. Call it in the main thread, with `shutdown` catching signals."""
        loop = new_event_loop()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(report)
        pool = ContextThreadPool(BLOCKING_THREADS, thread_name_prefix="blocking")
        loop.set_default_executor(pool)
        self._shutdown.bind(loop)
        code = loop.run_until_complete(self._main())
        if not loop.run_until_complete(cancel_leftovers(ExitGuard.LIMIT_S / 2)):
            code = max(code, EXIT_FAILURE)
        pool.shutdown(wait=False, cancel_futures=True)
        asyncio.set_event_loop(None)
        if code != EXIT_FAILURE:
            # Otherwise something may still be running that calls back into the loop, out of a thread.
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        return code

    def at_beginning(self, call: Callable[[], None]) -> None:
        """Have `call` made on the event loop before anything else."""
        self._beginnings.append(call)

    def when_running(self, call: Callable[[], None]) -> None:
        """Have `call` made on the event loop once everything has started."""
        self._when_running.append(call)

    def at_end(self, call: Callable[[], None]) -> None:
        """Have `call` made on the event loop after everything else."""
        self._endings.append(call)

    async def _main(self) -> int:
        for call in self._beginnings:
            call()
        try:
            return await self._live()
        finally:
            for call in self._endings:
                call()

    async def _live(self) -> int:
        try:
            await self._until_stopped(self._start())
            if not self._shutdown.requested:
                self.phase = "running"
                for call in self._when_running:
                    call()
                log.info("running")
                await self._until_stopped(self._wait_for_end())
        except ConfigurationError as error:
            print(configuration_line(error), file=sys.stderr, flush=True)  # noqa: T201 - the operator's one line
            await self._close()
            return EXIT_CONFIGURATION
        except RetryLater as error:
            log.error("giving up", error=str(error), code=error.code)
            self._failed = True
        except Exception:
            log.exception("the process has failed", phase=self.phase)
            self._failed = True
        await self._close()
        return EXIT_FAILURE if self._failed else EXIT_CLEAN

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or the end is requested; then it is cancelled at once."""
        too_late = self._shutdown.requested
        if too_late:
            work.close()
            return
        doing = asyncio.create_task(work, name=f"process-{self.phase}")
        stopping = asyncio.create_task(self._shutdown.wait_requested(), name="process-shutdown")
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                log.info("stopping", reason=self._shutdown.reason, phase=self.phase)
                doing.cancel()
                _, pending = await asyncio.wait({doing}, timeout=OVERTIME_S)
                if pending:
                    log.error("did not react to its cancellation", task=doing.get_name())
                    self._failed = True
                    return
            if not doing.cancelled() and (error := doing.exception()) is not None:
                if self._shutdown.requested and not isinstance(error, ConfigurationError):
                    log.warning("failed while being cancelled", error=repr(error))
                else:
                    raise error
        finally:
            stopping.cancel()

    async def _start(self) -> None:
        self.phase = "hooks"
        await self._hooks.run_startup()
        self.phase = "connecting"
        await self._pass_checks()
        self.phase = "starting"
        for stage in self._stages:
            self._begun.append(stage)
            await _side_by_side([self._begin(service) for service in stage.services])

    async def _begin(self, service: Service) -> None:
        """Start a service. What was there when it was checked, and is away now, is waited for as it was then."""
        began = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                await service.start()
            except ServiceUnavailable as error:
                if self._connect_timeout_s is not None and time.monotonic() - began > self._connect_timeout_s:
                    raise
                log.warning(
                    f"{service.name} cannot start yet",
                    error=str(error),
                    attempt=attempt,
                    retry_in_s=self._retry_interval_s,
                )
                await asyncio.sleep(self._retry_interval_s)
            else:
                return

    async def _pass_checks(self) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                for check in self._checks:
                    await self._pass_check(check)
        except TimeoutError:
            raise ServiceUnavailable(
                f"{self.waiting_for} could not be reached for {self._connect_timeout_s:g} s"
            ) from None
        finally:
            self.waiting_for = None

    async def _pass_check(self, check: Check) -> None:
        self.waiting_for = check.name
        attempt = 0
        while True:
            attempt += 1
            try:
                await check.probe()
            except RetryLater as error:
                log.warning(
                    f"waiting for {check.name}",
                    error=str(error),
                    attempt=attempt,
                    retry_in_s=self._retry_interval_s,
                )
            else:
                log.info(f"found {check.name}", attempt=attempt)
                return
            await asyncio.sleep(self._retry_interval_s)

    async def _wait_for_end(self) -> None:
        """Return when a service says that its work is done, raise when one has failed. Without such a service: wait
        for ever.
        """
        watched = [service for stage in self._stages for service in stage.services if isinstance(service, Watched)]
        if not watched:
            await asyncio.Event().wait()
        tasks = [asyncio.create_task(service.wait(), name=f"watch-{service.name}") for service in watched]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    # --- ending ----------------------------------------------------------------------------------------------------
    async def _close(self) -> None:
        self._shutdown.request("the process ends")
        self.phase = "draining"
        for stage in (stage for stage in self._stop_order if stage in self._begun):
            await asyncio.gather(*(self._stop(service, stage.uses_grace) for service in stage.services))
        self.phase = "closing"
        if not await self._hooks.run_shutdown(self._hooks_budget_s):
            self._failed = True

    async def _stop(self, service: Service, uses_grace: bool) -> None:
        limit_s = self._shutdown.remaining_s() if uses_grace else CLOSE_LIMIT_S
        log.debug("stopping a service", service=service.name, limit_s=round(limit_s, 3))
        stopping = asyncio.create_task(_named(service.stop(limit_s)), name=f"stop-{service.name}")
        waits: set[asyncio.Task[None]] = {stopping}
        hurried: asyncio.Task[None] | None = None
        if uses_grace:
            hurried = asyncio.create_task(self._shutdown.wait_hurried(), name=f"hurry-{service.name}")
            waits.add(hurried)
        try:
            await asyncio.wait(waits, timeout=limit_s + OVERTIME_S, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done() and hurried is not None and hurried.done():
                log.warning("second signal: the rest of the grace is skipped", service=service.name)
                stopping.cancel()
                await asyncio.wait({stopping}, timeout=OVERTIME_S)
                again = asyncio.create_task(_named(service.stop(0.0)), name=f"stop-{service.name}-now")
                await asyncio.wait({again}, timeout=OVERTIME_S)
                stopping = again
        finally:
            if hurried is not None:
                hurried.cancel()
        if not stopping.done():
            log.error("a service did not stop in time", service=service.name, limit_s=round(limit_s, 3))
            stopping.cancel()
            self._failed = True
        elif not stopping.cancelled() and (error := stopping.exception()) is not None:
            if isinstance(error, (TimeoutError, RetryLater)):
                log.error("a service failed while stopping", service=service.name, error=str(error))
            else:
                log.error("a service failed while stopping", service=service.name, exc_info=error)
            self._failed = True


def _health_of(service: Service) -> Health:
    try:
        return service.health()
    except Exception as error:
        log.exception("a service cannot say how it is", service=service.name)
        return Health(ready=False, reason=f"its health cannot be told: {type(error).__name__}")


async def _named(work: Awaitable[None]) -> None:
    await work


async def _side_by_side(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of `work`; the first failure cancels the rest and is raised as it is."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
