"""`faust -A streams worker` on real services: start, outages, drain, takeover (rows W3, W5 to W7, W9, S4)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from tests.fixtures.services import Broker
from tests.integration.runtime.processes import Running, running

WORKER = ("-m", "faust", "-A", "streams", "worker")
TOPICS = ("-m", "faust", "-A", "streams", "topics")
PARTITIONS = 4


def environment(bootstrap: str, dsn: str, prefix: str, **more: str) -> dict[str, str]:
    return {
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "KAFKA_TOPIC_PREFIX": prefix,
        "POSTGRES_DSN": dsn,
        "PARTITIONS": str(PARTITIONS),
        "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "WORKER_BROKER_RECONNECT_INTERVAL_S": "0.5",
        "WORKER_SHUTDOWN_GRACE_S": "10",
        **more,
    }


async def make_topics(settings: dict[str, str], data: Path) -> None:
    async with running(*TOPICS, environment=settings, data=data) as process:
        assert await process.ended(60) == 0, process.logged


@pytest.fixture
async def settings(kafka: Broker, database: str, topic_prefix: str, tmp_path: Path) -> dict[str, str]:
    found = environment(kafka.bootstrap, database, topic_prefix)
    await make_topics(found, tmp_path)
    return found


@asynccontextmanager
async def worker(settings: dict[str, str], data: Path, name: str = "w1") -> AsyncIterator[Running]:
    data.mkdir(exist_ok=True)
    async with running(*WORKER, environment=settings | {"WORKER_NAME": name}, data=data) as process:
        yield process


def shards(answer: dict[str, Any]) -> int:
    """How many shards run."""
    return int(answer["services"]["shards"]["shards"].get("running", 0))


async def runs_shards(process: Running, count: int, deadline_s: float = 60.0) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            while shards(await process.answers("/ready", 200)) != count:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{await process.get('/ready')}\n" + "\n".join(process.logged)) from None


async def test_missing_topics_are_one_line_and_exit_2(
    kafka: Broker, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    async with worker(environment(kafka.bootstrap, database, topic_prefix), tmp_path) as process:
        assert await process.ended(60) == 2
    lines = [line for line in process.logged if not line.startswith("{")]
    assert len(lines) == 1
    assert "missing topics: " in lines[0]
    assert "run `faust -A streams topics`" in lines[0]


async def test_w9_ready_when_everything_runs_and_w7_exit_0(settings: dict[str, str], tmp_path: Path) -> None:
    async with worker(settings, tmp_path) as process:
        await runs_shards(process, PARTITIONS)
        status, metrics = await process.get("/metrics")
        assert status == 200
        assert "mailstreams_rebalance_seconds_count 1.0" in metrics["text"]
        began = time.monotonic()
        process.signal(signal.SIGTERM)
        assert await process.ended(20) == 0
        assert time.monotonic() - began < 8
    for line in process.logged:
        record = json.loads(line)
        assert record["level"] in {"info", "warning"}, line
        assert (record["service"], record["worker"]) == ("mailstreams", "w1")


async def test_s4_peers_take_over_at_once_when_a_worker_drains(settings: dict[str, str], tmp_path: Path) -> None:
    patient = settings | {"KAFKA_SESSION_TIMEOUT_S": "60"}
    async with worker(patient, tmp_path / "a", "a") as first, worker(patient, tmp_path / "b", "b") as second:
        await runs_shards(first, PARTITIONS // 2)
        await runs_shards(second, PARTITIONS // 2)
        began = time.monotonic()
        first.signal(signal.SIGTERM)
        await runs_shards(second, PARTITIONS, 30)
        assert time.monotonic() - began < 15, "it waited for the session timeout"
        assert await first.ended(20) == 0


@pytest.mark.parametrize("delay_s", [0.5, 1.5, 2.5, 3.5])
async def test_w4_w5_a_signal_whenever_it_comes_ends_the_start(
    settings: dict[str, str], tmp_path: Path, delay_s: float
) -> None:
    """During imports, checks, the first rebalance, table recovery, restore: the log says which."""
    async with worker(settings, tmp_path) as process:
        await process.says('"starting"')
        await asyncio.sleep(delay_s)
        process.signal(signal.SIGTERM)
        began = time.monotonic()
        assert await process.ended(30) == 0, "\n".join(process.logged)
        assert time.monotonic() - began < 25


async def test_w5_a_signal_during_a_rebalance(settings: dict[str, str], tmp_path: Path) -> None:
    async with worker(settings, tmp_path / "a", "a") as first:
        await runs_shards(first, PARTITIONS)
        async with worker(settings, tmp_path / "b", "b") as second:
            await second.says("found PostgreSQL")
            await asyncio.sleep(1.0)
            first.signal(signal.SIGTERM)
            assert await first.ended(30) == 0, "\n".join(first.logged)
            await runs_shards(second, PARTITIONS)


async def _comes_late(
    process: Running, what: str, start: Callable[[], Awaitable[None]], absent_for_s: float = 4.0
) -> None:
    """The service comes `absent_for_s` after the worker: probes answer, one line per retry, then it connects."""
    await process.says(f"waiting for {what}")
    assert (await process.get("/health"))[0] == 200
    status, answer = await process.get("/ready")
    assert status == 503
    assert answer["waiting_for"] == what
    await asyncio.sleep(absent_for_s)
    await start()
    await runs_shards(process, PARTITIONS)
    retries = [json.loads(line) for line in process.logged if f"waiting for {what}" in line]
    assert [record["attempt"] for record in retries] == list(range(1, len(retries) + 1))
    assert len(retries) >= 3
    before = process.logged.index(next(line for line in process.logged if f'"found {what}"' in line))
    others = [
        line for line in process.logged[:before] if f"waiting for {what}" not in line and '"level": "info"' not in line
    ]
    assert others == [], "a retry is one line"
    assert not any("Traceback" in line for line in process.logged)


async def test_w3_kafka_comes_after_the_worker(
    private_kafka: Kafka, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    found = environment(private_kafka.bootstrap, database, topic_prefix)
    await make_topics(found, tmp_path)
    await private_kafka.stop()
    async with worker(found, tmp_path) as process:
        await _comes_late(process, "Kafka", private_kafka.start)
        process.signal(signal.SIGTERM)
        assert await process.ended(20) == 0


async def test_w3_postgresql_comes_after_the_worker(
    kafka: Broker, private_postgres: Postgres, topic_prefix: str, tmp_path: Path
) -> None:
    found = environment(kafka.bootstrap, private_postgres.dsn(), topic_prefix)
    await make_topics(found, tmp_path)
    await private_postgres.stop()
    async with worker(found, tmp_path) as process:
        await _comes_late(process, "PostgreSQL", private_postgres.start)
        process.signal(signal.SIGTERM)
        assert await process.ended(20) == 0


async def test_broker_loss_does_not_flood_the_log_and_does_not_hold_the_exit(
    private_kafka: Kafka, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    found = environment(private_kafka.bootstrap, database, topic_prefix, KAFKA_SESSION_TIMEOUT_S="6")
    await make_topics(found, tmp_path)
    async with worker(found, tmp_path) as process:
        await runs_shards(process, PARTITIONS)
        await private_kafka.kill()
        before, began = len(process.logged), time.monotonic()
        await asyncio.sleep(12)
        rate = (len(process.logged) - before) / (time.monotonic() - began)
        assert rate < 15, f"{rate:.1f} lines a second"
        assert process.process.returncode is None, "losing the brokers must not end a worker"
        began = time.monotonic()
        process.signal(signal.SIGTERM)
        code = await process.ended(40)
        assert time.monotonic() - began < 25
        # What it could not finish, it names.
        assert code == 0 or any(
            re.search("did not stop in time|failed while stopping", line) for line in process.logged
        )


async def test_a_worker_returns_to_work_when_the_broker_does(
    private_kafka: Kafka, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    found = environment(private_kafka.bootstrap, database, topic_prefix, KAFKA_SESSION_TIMEOUT_S="6")
    await make_topics(found, tmp_path)
    async with worker(found, tmp_path) as process:
        await runs_shards(process, PARTITIONS)
        await private_kafka.stop()
        await asyncio.sleep(4)
        await private_kafka.start()
        await runs_shards(process, PARTITIONS, 90)
        process.signal(signal.SIGTERM)
        assert await process.ended(30) == 0, "\n".join(process.logged)
