"""Real processes, real signals, real exit codes (rows W1 to W7, W9). No service is needed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.integration.runtime.processes import PROGRAM, Running, running

GRACE = {"WORKER_SHUTDOWN_GRACE_S": "30"}
WORKER = ("-m", "faust", "-A", "streams", "worker")


async def test_w5_w7_sigterm_drains_and_exits_with_0(tmp_path: Path) -> None:
    async with running(str(PROGRAM), "plain", environment=GRACE, data=tmp_path) as process:
        await process.says("started")
        process.signal(signal.SIGTERM)
        assert await process.ended(10) == 0
    (grace,) = [line for line in process.said if line.startswith("stop within ")]
    assert process.said == ["hook up", "started", grace, "stopped", "hook down"]
    assert 20 < float(grace.rsplit(" ", 1)[1]) <= 30, "what is left of the grace"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_w4_a_signal_during_a_startup_hook(tmp_path: Path, number: int) -> None:
    async with running(str(PROGRAM), "slow hook", environment=GRACE, data=tmp_path) as process:
        await process.says("hook up")
        began = time.monotonic()
        process.signal(number)
        assert await process.ended(10) == 0
        assert time.monotonic() - began < 5
    assert process.said == ["hook up"]


async def test_w4_a_signal_during_the_start_of_a_service(tmp_path: Path) -> None:
    async with running(str(PROGRAM), "slow start", environment=GRACE, data=tmp_path) as process:
        await process.says("the service starts")
        process.signal(signal.SIGTERM)
        assert await process.ended(10) == 0
    assert process.said[-1] == "hook down"


async def test_w5_the_grace_ends_when_it_is_over(tmp_path: Path) -> None:
    environment = {"WORKER_SHUTDOWN_GRACE_S": "1.5"}
    async with running(str(PROGRAM), "long task", environment=environment, data=tmp_path) as process:
        await process.says("started")
        began = time.monotonic()
        process.signal(signal.SIGTERM)
        assert await process.ended(15) == 0
        assert 1.4 < time.monotonic() - began < 6
    assert process.said[-2:] == ["stopped", "hook down"]


async def test_w6_a_second_signal_skips_the_rest_of_the_grace(tmp_path: Path) -> None:
    async with running(str(PROGRAM), "long task", environment=GRACE, data=tmp_path) as process:
        await process.says("started")
        process.signal(signal.SIGTERM)
        await process.says("stop within")
        began = time.monotonic()
        async with asyncio.timeout(10):
            # The first ones may come so soon that they pass for an echo of the first signal.
            while "stop within 0.0" not in process.said:
                process.signal(signal.SIGINT)
                await asyncio.sleep(0.05)
        assert await process.ended(10) == 0
        assert time.monotonic() - began < 4
    assert process.said[-3:] == ["stop within 0.0", "stopped", "hook down"]


@pytest.mark.parametrize("scenario", ["stuck thread", "stuck pool thread"])
async def test_w7_w17_a_stuck_thread_is_named_and_cannot_hold_the_exit(tmp_path: Path, scenario: str) -> None:
    async with running(str(PROGRAM), scenario, environment=GRACE, data=tmp_path) as process:
        await process.says("started")
        process.signal(signal.SIGTERM)
        await process.says("hook down")
        began = time.monotonic()
        assert await process.ended(10) == 1
        assert time.monotonic() - began < 2.5
    (line,) = [line for line in process.logged if "a thread does not end" in line]
    assert ("the stuck thread" if scenario == "stuck thread" else "blocking") in line
    assert ".py:" in line


async def test_w7_a_blocked_loop_cannot_hold_the_exit(tmp_path: Path) -> None:
    environment = {"WORKER_SHUTDOWN_GRACE_S": "0", "WORKER_SHUTDOWN_HOOKS_TIMEOUT_S": "0.1"}
    async with running(str(PROGRAM), "blocked loop", environment=environment, data=tmp_path) as process:
        await process.says("started")
        process.signal(signal.SIGTERM)
        assert await process.ended(20) == 1
    assert any("the event loop stands still" in line and "program.py" in line for line in process.logged)
    assert any("it is ended" in line for line in process.logged)


async def test_w7_a_loop_that_is_ended_from_within_ends_the_process(tmp_path: Path) -> None:
    async with running(str(PROGRAM), "exit within", environment=GRACE, data=tmp_path) as process:
        await process.says("started")
        assert await process.ended(10) == 1


async def test_w5_a_signal_to_the_whole_group_is_one_signal(tmp_path: Path) -> None:
    async with running(str(PROGRAM), "long task", environment=GRACE, data=tmp_path, new_group=True) as process:
        await process.says("started")
        os.killpg(process.process.pid, signal.SIGINT)
        process.signal(signal.SIGINT)
        await process.says("stop within")
        status, answer = await process.get("/ready")
        assert (status, answer["phase"]) == (503, "draining")
        assert process.process.returncode is None


# --- probes --------------------------------------------------------------------------------------------------------


async def test_w9_health_answers_while_a_startup_hook_blocks(tmp_path: Path) -> None:
    async with running(str(PROGRAM), "blocking hook", environment=GRACE, data=tmp_path) as process:
        await process.says("hook up")
        status, answer = await process.get("/health")
        assert (status, answer["phase"]) == (200, "hooks")
        status, answer = await process.get("/ready")
        assert status == 503
        assert any("hooks" in reason for reason in answer["reasons"])


async def test_w9_probes_of_a_running_process(tmp_path: Path) -> None:
    async with running(str(PROGRAM), "plain", environment=GRACE, data=tmp_path) as process:
        answer = await process.answers("/ready", 200)
        assert answer["services"]["tasks"] == {"alive": True, "ready": True, "in_flight": 1}
        assert answer["probes"] == {"good": "ok"}
        assert answer["overrunning_tasks"] == ["task-17"]
        assert (await process.get("/health"))[0] == 200
        status, metrics = await process.get("/metrics")
        assert (status, metrics["text"]) == (200, "# nothing\n")


async def test_w9_a_custom_probe_has_a_time_limit(tmp_path: Path) -> None:
    environment = GRACE | {"WORKER_PROBE_TIMEOUT_S": "0.2"}
    async with running(str(PROGRAM), "slow probe", environment=environment, data=tmp_path) as process:
        await process.says("started")
        answer = await process.answers("/ready", 503)
        assert answer["reasons"] == ["slow: no answer within 0.2 s"]
        assert (await process.get("/health"))[0] == 200, "a readiness probe does not count for liveness"


# --- configuration -------------------------------------------------------------------------------------------------


async def refused(process: Running) -> str:
    """The one line with which a process refused its configuration."""
    assert await process.ended(30) == 2
    assert process.said == []
    (line,) = process.logged
    return line


KEYS = {"ENCRYPTION_KEYS": Fernet.generate_key().decode()}


async def test_w1_all_problems_at_once_in_one_line(tmp_path: Path) -> None:
    environment = {"PARTITIONS": "0", "POLL_WARM": "soon", "KAFKA_SASL_PASSWORD": "canary-password"}
    async with running(*WORKER, environment=environment, data=tmp_path) as process:
        line = await refused(process)
    assert "PARTITIONS" in line
    assert "POLL_WARM" in line
    assert "canary" not in line


async def test_w2_the_time_budget_is_spelled_out(tmp_path: Path) -> None:
    environment = {"WORKER_TASK_TIMEOUT_S": "1700"}
    async with running(*WORKER, environment=environment, data=tmp_path) as process:
        line = await refused(process)
    assert "1700" in line
    assert "= 1820 must be under WORKER_CONSUMER_TIMEOUT_S 1800" in line


async def test_w1_a_missing_encryption_key(tmp_path: Path) -> None:
    async with running(*WORKER, environment={}, data=tmp_path) as process:
        assert "ENCRYPTION_KEYS" in await refused(process)


async def test_w1_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    environment = KEYS | {"DATA_DIR": str(tmp_path / "file" / "data")}
    async with running(*WORKER, environment=environment, data=tmp_path) as process:
        assert "DATA_DIR" in await refused(process)


async def test_w1_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = KEYS | {"PROBE_PORT": str(taken.getsockname()[1])}
        async with running(*WORKER, environment=environment, data=tmp_path) as process:
            assert "PROBE_PORT" in await refused(process)


async def test_help_needs_no_valid_settings(tmp_path: Path) -> None:
    arguments = ("-m", "faust", "-A", "streams", "--help")
    async with running(*arguments, environment={"PARTITIONS": "0"}, data=tmp_path) as process:
        assert await process.ended(30) == 0
    assert any("accounts" in line for line in process.said)
