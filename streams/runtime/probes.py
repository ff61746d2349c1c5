"""The probe server: `/health`, `/ready`, `/metrics`, in a thread with an event loop of its own (row W9).

So it answers from the first moment, during startup hooks that block, and with 503 and a reason when the main loop
stands still, instead of not answering. What it shows is gathered on the main loop, with a time limit. Bound to
loopback unless a setting says otherwise; it shows no secrets, but it does show names of mail hosts and ids.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from streams.errors import ConfigurationError
from streams.runtime.services import Health

log = structlog.get_logger(__name__)

STANDING_STILL_S: Final = 15.0
"""The main loop not turning for this long is a dead process; shorter stalls are for the metrics."""
START_LIMIT_S: Final = 5.0
"""Time in which the server's thread must be up."""
STOP_LIMIT_S: Final = 0.5

Probe = Callable[[], Awaitable[bool | str | None]]
"""A custom probe: True or None is good, False or a text (the reason) is bad. It may raise."""
Answer = tuple[bool, dict[str, Any]]


def bind(host: str, port: int) -> socket.socket:
    """Bind the port of the probes. Raises `ConfigurationError`, in one line, when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
        listener.setblocking(False)
    except (OSError, TypeError) as error:  # the latter for a name that IDNA cannot encode
        listener.close()
        reason = error.strerror or error if isinstance(error, OSError) else "this is no host name"
        raise ConfigurationError(f"PROBE_HOST, PROBE_PORT: cannot listen on {host}:{port}: {reason}") from None
    return listener


class ProbeServer:
    """Serves the probes of one process."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        phase: Callable[[], Mapping[str, Any]],
        health: Callable[[], Mapping[str, Health]],
        standing_still_s: Callable[[], float],
        exposition: Callable[[], tuple[bytes, str]],
        probe_timeout_s: float,
    ) -> None:
        """`phase` is called in the server's thread: `phase` and what is waited for. `health` is called on the main
        loop. `exposition` gives the body and content type of `/metrics`, in the server's thread.
        """
        self._listener = listener
        self._phase = phase
        self._health = health
        self._standing_still_s = standing_still_s
        self._exposition = exposition
        self._probe_timeout_s = probe_timeout_s
        self._main: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._custom: dict[str, tuple[Probe, bool]] = {}

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listener.getsockname()[1])

    def add_probe(self, name: str, probe: Probe, *, liveness: bool = False) -> None:
        """Add a custom probe. It counts for readiness, with `liveness` for liveness instead. Runs on the main loop,
        each with the time limit `WORKER_PROBE_TIMEOUT_S`; all run side by side.
        """
        self._custom[name] = (probe, liveness)

    def attach(self) -> None:
        """Called on the main loop: services and custom probes are asked there from now on."""
        self._main = asyncio.get_running_loop()

    # --- thread ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start answering."""
        up = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(up,), name="probes", daemon=True)
        self._thread.start()
        up.wait(START_LIMIT_S)

    def stop(self) -> None:
        """Stop answering."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_LIMIT_S)

    def _serve(self, up: threading.Event) -> None:
        logging.getLogger("aiohttp.server").addFilter(_ours)
        loop = self._loop = asyncio.new_event_loop()
        # Whoever keeps a connection open must not hold up the exit.
        runner = web.AppRunner(
            self._application(), access_log=None, handle_signals=False, shutdown_timeout=STOP_LIMIT_S / 2
        )
        try:
            loop.run_until_complete(runner.setup())
            loop.run_until_complete(web.SockSite(runner, self._listener).start())
            up.set()
            loop.run_forever()
        finally:
            loop.run_until_complete(runner.cleanup())
            loop.close()

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/health", self._on_health)
        application.router.add_get("/ready", self._on_ready)
        application.router.add_get("/metrics", self._on_metrics)
        return application

    # --- answers ---------------------------------------------------------------------------------------------------
    async def _on_health(self, _request: web.Request) -> web.Response:
        return _answer(*await self._examine(liveness=True))

    async def _on_ready(self, _request: web.Request) -> web.Response:
        return _answer(*await self._examine(liveness=False))

    async def _on_metrics(self, _request: web.Request) -> web.Response:
        body, content_type = self._exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _examine(self, *, liveness: bool) -> Answer:
        phase = dict(self._phase())
        answer: dict[str, Any] = {"status": "ok", **phase}
        reasons: list[str] = []
        if not liveness and phase.get("phase") != "running":
            waiting = f", waiting for {phase['waiting_for']}" if phase.get("waiting_for") else ""
            reasons.append(f"{phase.get('phase')}{waiting}")
        still_s = self._standing_still_s()
        if still_s > STANDING_STILL_S:
            reasons.append(f"the event loop stands still for {still_s:.0f} s")
        elif self._main is not None and not self._main.is_closed():
            asked = asyncio.run_coroutine_threadsafe(self._gather(liveness), self._main)
            try:
                services, custom = await asyncio.wait_for(asyncio.wrap_future(asked), self._probe_timeout_s + 1.0)
            except TimeoutError:
                # Shorter stalls of the loop are not death, but whoever waits for work must know.
                if not liveness:
                    reasons.append("the event loop is busy")
            else:
                reasons += _judge(services, answer, liveness=liveness)
                reasons += [f"{name}: {reason}" for name, reason in custom.items() if reason is not None]
                if custom:
                    answer["probes"] = {name: reason or "ok" for name, reason in custom.items()}
        if reasons:
            answer["status"] = "unhealthy" if liveness else "not ready"
            answer["reasons"] = reasons
        return not reasons, answer

    async def _gather(self, liveness: bool) -> tuple[Mapping[str, Health], dict[str, str | None]]:
        """On the main loop: the health of services, and what the custom probes say (None is good)."""
        wanted = {name: probe for name, (probe, alive) in self._custom.items() if alive == liveness}
        results = await asyncio.gather(*(self._run(probe) for probe in wanted.values()))
        return self._health(), dict(zip(wanted, results, strict=True))

    async def _run(self, probe: Probe) -> str | None:
        try:
            result = await asyncio.wait_for(probe(), self._probe_timeout_s)
        except TimeoutError:
            return f"no answer within {self._probe_timeout_s:g} s"
        except Exception as error:
            log.warning("a probe failed", exc_info=error)
            return f"failed: {type(error).__name__}"
        if result is None or result is True:
            return None
        return result or "failed"


def _ours(record: logging.LogRecord) -> bool:
    """Whoever sends what is no HTTP is answered 400, and that is all: no error of ours, and no traceback per knock."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _judge(services: Mapping[str, Health], answer: dict[str, Any], *, liveness: bool) -> list[str]:
    reasons: list[str] = []
    shown: dict[str, Any] = {}
    overrunning: list[str] = []
    for name, health in services.items():
        good = health.alive if liveness else health.alive and health.ready
        if not good:
            reasons.append(f"{name}: {health.reason or ('not alive' if not health.alive else 'not ready')}")
        overrunning += health.overrunning
        shown[name] = {"alive": health.alive, "ready": health.ready, **health.detail}
    if shown:
        answer["services"] = shown
    if overrunning:
        answer["overrunning_tasks"] = overrunning
    return reasons


def _answer(good: bool, answer: dict[str, Any]) -> web.Response:
    return web.Response(
        status=200 if good else 503, text=json.dumps(answer, default=str) + "\n", content_type="application/json"
    )
