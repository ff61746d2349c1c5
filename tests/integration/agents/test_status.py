"""`faust -A streams status` against real workers and topics: S18."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from streams.contracts import topics
from streams.contracts.account import AccountSyncStatus, AccountTierChanged, SyncError
from streams.contracts.codec import encode
from tests.fixtures.services import Broker
from tests.integration.agents.fleet import Fleet, account_id, fleet

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def workers(kafka: Broker, topic_prefix: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet(kafka.bootstrap, topic_prefix, tmp_path) as made:
        yield made


async def run_status(workers: Fleet, *arguments: str) -> tuple[int | None, str, str]:
    """The command in a process of its own: exit code, stdout, stderr."""
    settings = workers.settings
    environment = os.environ | {
        "KAFKA_BOOTSTRAP_SERVERS": settings.KAFKA_BOOTSTRAP_SERVERS,
        "KAFKA_TOPIC_PREFIX": settings.KAFKA_TOPIC_PREFIX,
        "PARTITIONS": str(settings.PARTITIONS),
        "DATA_DIR": str(workers.directory / "status"),
        "MAILSTREAMS_ENV_FILE": "/dev/null",
        "COLUMNS": "200",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "faust",
        "-A",
        "streams",
        "status",
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def publish(workers: Fleet, records: list[tuple[str, str, Any]], *, commit: bool = True) -> None:
    """As a shard does: in a transaction."""
    producer = AIOKafkaProducer(
        **workers.settings.kafka_client(), transactional_id=f"{workers.settings.KAFKA_TOPIC_PREFIX}x"
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        for topic, key, record in records:
            await producer.send(workers.settings.topic(topic), encode(record), key.encode())
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()


async def test_s18_status_of_two_workers_and_of_none(workers: Fleet) -> None:
    code, out, err = await run_status(workers, "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["unassigned"] == list(range(workers.settings.PARTITIONS))
    first = await workers.start()
    second = await workers.start()
    await workers.settled()
    now = datetime.now(UTC)
    owner = {p: worker.name for worker in (first, second) for p in worker.held}
    for number in range(6):
        await workers.state(number, "live", 2)
        await workers.state(number, "disabled", 1)
    await workers.state(6, "error", 1)
    await workers.until(lambda: len(workers.everywhere("changed")) == 7)
    partition = {line["account"]: line["partition"] for line in workers.everywhere("changed")}

    def told(number: int, **more: Any) -> tuple[str, str, AccountSyncStatus]:
        name = account_id(number)
        status = AccountSyncStatus(
            account_id=name, phase="running", since=now, at=now, tier="warm", worker=owner[partition[name]], **more
        )
        return topics.SYNC_STATUS, name, status

    error = SyncError(code="mailbox_unusable", message="it does not open", at=now, mailbox="Odd")
    await publish(
        workers,
        [
            told(0),
            told(1, next_poll_at=now - timedelta(hours=1)),
            told(2, error=error),
            (
                topics.TIER_CHANGED,
                account_id(0),
                AccountTierChanged(account_id=account_id(0), tier="hot", reason="session", at=now),
            ),
        ],
    )
    # What a zombie wrote and could not commit is not shown.
    await publish(workers, [told(3)], commit=False)
    code, out, err = await run_status(workers, "--json")
    assert (code, err) == (0, "")
    view = json.loads(out)
    assert view["state"] == "Stable"
    assert {w["worker"]: set(w["partitions"]) for w in view["workers"]} == {
        first.name: first.held,
        second.name: second.held,
    }
    assert (view["live"], view["served"], view["unserved"]) == (6, 3, 3)
    assert view["by_state"] == {"live": 6, "error": 1}
    assert view["by_tier"] == {"hot": 1, "warm": 2}
    assert view["oldest_overdue_account"] == account_id(1)
    assert view["oldest_overdue_s"] >= 3600
    assert [(e["account_id"], e["code"], e["mailbox"]) for e in view["errors"]] == [
        (account_id(2), "mailbox_unusable", "Odd")
    ]
    code, out, err = await run_status(workers)
    assert (code, err) == (0, "")
    assert [word for word in ("Stable, 2 workers", "hot 1, warm 2", "unserved  3", "Odd") if word not in out] == []


async def test_w1_status_without_a_broker_is_one_line(workers: Fleet) -> None:
    workers.settings = workers.settings.model_copy(update={"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    code, out, err = await run_status(workers)
    assert (code, out) == (1, "")
    assert err.startswith("no broker of 127.0.0.1:1 answers: ")
    assert err.count("\n") == 1
