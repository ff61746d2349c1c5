"""The probe server answers from a thread of its own (row W9)."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from streams.errors import ConfigurationError
from streams.runtime.probes import STANDING_STILL_S, ProbeServer, bind
from streams.runtime.services import Health


class State:
    """What the server is told."""

    def __init__(self) -> None:
        self.phase: dict[str, Any] = {"phase": "running", "waiting_for": None}
        self.health: Mapping[str, Health] = {}
        self.still_s = 0.0


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Iterator[ProbeServer]:
    made = ProbeServer(
        bind("127.0.0.1", 0),
        phase=lambda: state.phase,
        health=lambda: state.health,
        standing_still_s=lambda: state.still_s,
        exposition=lambda: (b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"),
        probe_timeout_s=0.2,
    )
    made.start()
    yield made
    made.stop()


def ask(server: ProbeServer, path: str) -> tuple[int, dict[str, Any]]:
    """Blocks; for use outside of the loop."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


async def asked(server: ProbeServer, path: str) -> tuple[int, dict[str, Any]]:
    return await asyncio.to_thread(ask, server, path)


def test_before_there_is_a_loop_it_is_alive_and_not_ready(server: ProbeServer, state: State) -> None:
    state.phase = {"phase": "hooks", "waiting_for": None}
    assert ask(server, "/health")[0] == 200
    status, answer = ask(server, "/ready")
    assert status == 503
    assert answer["reasons"] == ["hooks"]


def test_what_is_waited_for_is_named(server: ProbeServer, state: State) -> None:
    state.phase = {"phase": "connecting", "waiting_for": "Kafka"}
    assert ask(server, "/ready")[1]["reasons"] == ["connecting, waiting for Kafka"]


async def test_services_decide_liveness_and_readiness(server: ProbeServer, state: State) -> None:
    server.attach()
    state.health = {"a": Health(detail={"shards": 3}), "b": Health(ready=False, reason="restoring")}
    status, answer = await asked(server, "/health")
    assert status == 200
    assert answer["services"]["a"] == {"alive": True, "ready": True, "shards": 3}
    status, answer = await asked(server, "/ready")
    assert (status, answer["reasons"]) == (503, ["b: restoring"])
    state.health = {"a": Health(alive=False, reason="agents have ended: x")}
    status, answer = await asked(server, "/health")
    assert (status, answer["reasons"]) == (503, ["a: agents have ended: x"])


async def test_overrunning_tasks_are_named_and_do_not_kill(server: ProbeServer, state: State) -> None:
    server.attach()
    state.health = {"tasks": Health(overrunning=("t-1", "t-2"))}
    status, answer = await asked(server, "/health")
    assert (status, answer["overrunning_tasks"]) == (200, ["t-1", "t-2"])


def test_a_loop_that_stands_still_is_not_alive(server: ProbeServer, state: State) -> None:
    state.still_s = STANDING_STILL_S + 1
    status, answer = ask(server, "/health")
    assert status == 503
    assert "stands still" in answer["reasons"][0]


async def test_a_short_stall_of_the_loop_is_not_death(server: ProbeServer) -> None:
    server.attach()
    before = time.monotonic()
    asking = asyncio.create_task(asked(server, "/health"))
    await asyncio.sleep(0.05)
    time.sleep(2.0)  # the loop does not turn
    status, _ = await asking
    assert status == 200
    assert time.monotonic() - before < 6


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (True, None),
        (None, None),
        (False, "failed"),
        ("no licence", "no licence"),
        (RuntimeError("secret detail"), "failed: RuntimeError"),
    ],
)
async def test_custom_probes(server: ProbeServer, outcome: Any, reason: str | None) -> None:
    server.attach()

    async def probe() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    server.add_probe("custom", probe)
    with capture_logs():
        status, answer = await asked(server, "/ready")
        assert status == (200 if reason is None else 503)
        assert answer["probes"]["custom"] == (reason or "ok")
        assert (await asked(server, "/health"))[0] == 200
        server.add_probe("custom", probe, liveness=True)
        assert (await asked(server, "/health"))[0] == (200 if reason is None else 503)


def test_metrics(server: ProbeServer) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        assert answer.read() == b"up 1\n"
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_w1_a_port_in_use_is_a_configuration_error(server: ProbeServer) -> None:
    with pytest.raises(ConfigurationError, match="PROBE_PORT"):
        bind("127.0.0.1", server.port)


def test_an_address_that_is_not_ours_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="PROBE_HOST"):
        bind("192.0.2.1", 0)


def test_w1_what_is_no_host_name_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="PROBE_HOST"):
        bind("ü..b", 0)


@pytest.mark.parametrize(
    "sent", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n"]
)
def test_what_is_no_http_is_no_error_of_ours(
    server: ProbeServer, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as client:
        client.sendall(sent)
        assert client.recv(100).startswith(b"HTTP/1.")
    assert caplog.records == []
    assert ask(server, "/health")[0] == 200


def test_a_client_that_keeps_its_connection_does_not_hold_the_stop(state: State) -> None:
    import socket

    made: Callable[[], ProbeServer] = lambda: ProbeServer(  # noqa: E731
        bind("127.0.0.1", 0),
        phase=lambda: state.phase,
        health=dict,
        standing_still_s=lambda: 0.0,
        exposition=lambda: (b"", "text/plain"),
        probe_timeout_s=0.2,
    )
    server = made()
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        client.recv(1000)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 5
