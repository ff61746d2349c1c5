"""Runs a process with all that belongs around it: signals, logs, probes, the watch over its loop, the guard over its
exit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from streams.observer import RuntimeObserver
from streams.runtime import probes
from streams.runtime.clients import mend_connections
from streams.runtime.exit import ExitGuard, settle_threads
from streams.runtime.garbage import settle_heap
from streams.runtime.hooks import Hooks
from streams.runtime.logs import configure_logs
from streams.runtime.loop_watch import LoopWatch
from streams.runtime.open_files import allow_open_files, wanted_files
from streams.runtime.process import EXIT_FAILURE, Process
from streams.runtime.services import Check, Stage
from streams.runtime.shutdown import Shutdown
from streams.settings import Settings

log = structlog.get_logger(__name__)


def launch(
    settings: Settings,
    *,
    stages: Sequence[Stage],
    stop_order: Sequence[Stage] | None = None,
    checks: Sequence[Check],
    hooks: Hooks,
    observer: RuntimeObserver,
    exposition: Callable[[], tuple[bytes, str]],
    custom_probes: Mapping[str, tuple[probes.Probe, bool]] | None = None,
    connect_timeout_s: float | None = None,
    log_level: str | None = None,
    log_file: str | None = None,
    before: Callable[[], None] = lambda: None,
) -> int:
    """Run to the end and return the exit code; the process then has two seconds to end (row W7).

    `before` is called when signals are caught and logs are set up, before the probes listen; it raises
    `ConfigurationError` for what can be seen without connecting. Raises `ConfigurationError` itself when the port of
    the probes cannot be had.
    """
    shutdown = Shutdown(settings.WORKER_SHUTDOWN_GRACE_S)
    shutdown.catch_signals()
    configure_logs(settings, level=log_level, file=log_file)
    allow_open_files(wanted_files(settings))
    mend_connections()
    before()
    listener = probes.bind(settings.PROBE_HOST, settings.PROBE_PORT)
    process = Process(
        shutdown=shutdown,
        hooks=hooks,
        checks=checks,
        stages=stages,
        stop_order=stop_order,
        retry_interval_s=settings.WORKER_BROKER_RECONNECT_INTERVAL_S,
        connect_timeout_s=connect_timeout_s,
        hooks_budget_s=settings.WORKER_SHUTDOWN_HOOKS_TIMEOUT_S,
    )
    watch = LoopWatch(shutdown, observer, process.closing_s)
    server = probes.ProbeServer(
        listener,
        phase=lambda: _phase(process, settings),
        health=process.health,
        standing_still_s=watch.standing_still_s,
        exposition=exposition,
        probe_timeout_s=settings.WORKER_PROBE_TIMEOUT_S,
    )
    for name, (probe, liveness) in (custom_probes or {}).items():
        server.add_probe(name, probe, liveness=liveness)
    server.start()
    log.info("starting", mode=settings.WORKER_MODE, probes=f"{settings.PROBE_HOST}:{server.port}")
    process.at_beginning(watch.start)
    process.at_beginning(server.attach)
    process.when_running(settle_heap)
    process.at_end(watch.stop)
    try:
        code = process.run()
    except BaseException:
        # Somebody's `sys.exit` in a task or a callback has ended the event loop: nothing is left that could drain, and
        # the interpreter's own way out would wait for threads that wait for the loop.
        log.exception("the event loop was ended from within")
        ExitGuard.now(EXIT_FAILURE)
        raise
    server.stop()
    if not settle_threads(ExitGuard.LIMIT_S / 2):
        code = max(code, EXIT_FAILURE)
    log.info("ended", exit_code=code)
    if code == EXIT_FAILURE:
        # Something still runs or is broken: the interpreter's own way out would wait for it.
        ExitGuard.now(code)
    ExitGuard.arm(ExitGuard.LIMIT_S / 2)
    return code


def _phase(process: Process, settings: Settings) -> dict[str, Any]:
    return {"phase": process.phase, "waiting_for": process.waiting_for, "worker": settings.WORKER_NAME}
