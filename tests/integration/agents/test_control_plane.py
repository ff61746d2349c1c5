"""The control plane on real Kafka, with real workers: S3 to S8, S12, S16, S18, W13, cases 108 to 110."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from streams.agents.intake import REKEYED_HEADER
from streams.contracts import topics
from streams.contracts.codec import header
from streams.contracts.keys import partition_for
from streams.local.kafka import Kafka
from tests.fixtures.services import Broker
from tests.integration.agents.fleet import Fleet, Worker, account_id, fleet, wall

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def workers(kafka: Broker, topic_prefix: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet(kafka.bootstrap, topic_prefix, tmp_path) as made:
        yield made


async def test_s8_s12_one_worker_from_events_to_the_host(workers: Fleet) -> None:
    worker = await workers.start()
    await workers.settled()
    for number in range(20):
        await workers.state(number, "live", 1, user="busy" if number < 3 else None)
    await workers.until(lambda: len(worker.said("changed", state="live")) == 20)
    await workers.active("busy")
    await workers.until(lambda: len(worker.said("heat")) == 3)
    assert {line["account"] for line in worker.said("heat")} == {account_id(n) for n in range(3)}
    await workers.state(0, "disabled", 2)
    await workers.state(0, "live", 1)
    await workers.send(topics.STATE_CHANGED, account_id(1).encode(), None)
    await workers.until(lambda: worker.said("forgotten", account=account_id(1)))
    await workers.until(lambda: worker.said("changed", account=account_id(0), state="disabled"))
    assert [line["state"] for line in worker.said("changed", account=account_id(0))] == ["live", "disabled"]
    for line in worker.said("changed"):
        assert line["partition"] == partition_for(line["account"], workers.settings.PARTITIONS)
    await workers.until(lambda: worker.said("health", alive=True, problems=[]))


async def test_s16_a_worker_whose_heartbeat_got_an_answer_that_nobody_knows_joins_again(workers: Fleet) -> None:
    """aiokafka waits until somebody takes the error, heartbeats no more and is put out of the group."""
    worker = await workers.start()
    await workers.settled()
    before = len(worker.said("assigned"))
    worker.signal(signal.SIGUSR2)
    await workers.until(lambda: len(worker.said("assigned")) > before, 60)
    proved = len(worker.said("proof", refused=False))
    await workers.until(lambda: len(worker.said("proof", refused=False)) > proved + 5, 60)
    await workers.state(1, "live", 1)
    await workers.until(lambda: worker.said("changed", account=account_id(1)))
    # An assignment is told when it comes and when the tables are recovered.
    assert len(worker.said("assigned")) <= before + 2, "it joined once, and stayed"


def known(worker: Worker) -> dict[str, dict[str, object]]:
    """Accounts as the worker's host knows them: what it read when shards started, then what it was told."""
    found: dict[str, dict[str, object]] = {}
    for line in worker.lines:
        if line["what"] == "started" and line["partition"] in worker.held:
            found |= line["accounts"]
        elif line["what"] == "changed":
            found[line["account"]] = {name: line[name] for name in ("user", "state", "version", "heat")}
        elif line["what"] == "heat" and line["account"] in found:
            found[line["account"]]["heat"] = line["until"]
    partitions = worker.held
    return {name: entry for name, entry in found.items() if _partition(worker, name) in partitions}


def _partition(worker: Worker, account: str) -> int:
    return partition_for(account, PARTITIONS)


PARTITIONS = 8


async def test_s4_a_graceful_stop_hands_over_at_once(workers: Fleet) -> None:
    first = await workers.start()
    second = await workers.start()
    await workers.settled()
    assert len(first.held) == len(second.held) == PARTITIONS / 2
    for number in range(40):
        await workers.state(number, "live", 1)
    await workers.until(lambda: len(known(first)) + len(known(second)) == 40)
    began = wall()
    first.signal(signal.SIGTERM)
    await workers.until(lambda: len(second.running) == PARTITIONS)
    took = second.said("started")[-1]["at"] - began
    assert took < workers.settings.KAFKA_SESSION_TIMEOUT_S
    assert len(known(second)) == 40
    assert await first.process.wait() == 0


async def test_s5_after_kill_9_peers_have_everything_within_the_session_timeout_plus_5_s(workers: Fleet) -> None:
    first = await workers.start()
    second = await workers.start()
    await workers.settled()
    for number in range(40):
        await workers.state(number, "live", 1, user=f"u{number % 4}")
    await workers.until(lambda: len(known(first)) + len(known(second)) == 40)
    await workers.active("u1")
    await workers.until(lambda: len(workers.everywhere("heat")) == 10)
    kept = second.held
    began = wall()
    first.signal(signal.SIGKILL)
    await workers.until(lambda: len(second.running) == PARTITIONS)
    assert second.said("started")[-1]["at"] - began < workers.settings.KAFKA_SESSION_TIMEOUT_S + 5
    assert len(known(second)) == 40
    # What had not reached the changelog was not acknowledged either: it comes again.
    await workers.until(lambda: sum(entry["heat"] is not None for entry in known(second).values()) == 10)
    # What stayed was never given up in between.
    assert all(kept <= frozenset(line["partitions"]) for line in second.said("assigned") if line["at"] > began)


async def test_s6_a_worker_that_joins_moves_only_what_must_move(workers: Fleet) -> None:
    first = await workers.start()
    second = await workers.start()
    await workers.settled()
    before = {first.name: first.held, second.name: second.held}
    began = wall()
    third = await workers.start()
    await workers.settled()
    assert sorted(len(worker.held) for worker in workers.alive) == [2, 3, 3]
    for worker in (first, second):
        assert worker.held < before[worker.name]
        for line in worker.said("assigned"):
            if line["at"] > began:
                assert worker.held <= frozenset(line["partitions"])
    assert len(third.held) == sum(len(held) for held in before.values()) - len(first.held) - len(second.held)


async def test_s3_a_worker_that_slept_through_a_rebalance_cannot_prove_and_stops(workers: Fleet) -> None:
    first = await workers.start()
    second = await workers.start()
    await workers.settled()
    first.signal(signal.SIGSTOP)
    await workers.until(lambda: len(second.running) == PARTITIONS)
    began = wall()
    first.signal(signal.SIGCONT)
    await workers.until(lambda: [line for line in first.said("proof") if line["at"] > began])
    assert next(line for line in first.said("proof") if line["at"] > began)["refused"]
    await workers.settled()
    assert first.held | second.held == frozenset(range(PARTITIONS))
    await workers.until(lambda: not first.said("proof")[-1]["refused"])


async def test_s12_heat_survives_restart_with_and_without_the_local_tables(workers: Fleet) -> None:
    first = await workers.start()
    await workers.settled()
    for number in range(8):
        await workers.state(number, "live", 1, user="u")
    await workers.until(lambda: len(known(first)) == 8)
    await workers.active("u")
    await workers.until(lambda: len(first.said("heat")) == 8)
    heat = {line["account"]: line["until"] for line in first.said("heat")}
    first.signal(signal.SIGTERM)
    await first.process.wait()
    again = await workers.start(data=first.name)
    await workers.settled()
    assert {name: entry["heat"] for name, entry in known(again).items()} == heat
    again.signal(signal.SIGTERM)
    await again.process.wait()
    without_tables = await workers.start()
    await workers.settled()
    assert {name: entry["heat"] for name, entry in known(without_tables).items()} == heat
    await workers.state(100, "live", 1, user="u")
    await workers.until(lambda: without_tables.said("heat", account=account_id(100)))
    assert all(datetime.fromisoformat(str(until)) for until in heat.values())


async def test_w13_and_foreign_partitioners_on_real_topics(workers: Fleet) -> None:
    first = await workers.start()
    second = await workers.start()
    await workers.settled()
    right = partition_for(account_id(1), PARTITIONS)
    for partition in range(PARTITIONS):
        await workers.state(1, "live", partition + 1, partition=partition)
    await workers.until(lambda: workers.everywhere("changed", account=account_id(1), version=PARTITIONS))
    assert {line["partition"] for line in workers.everywhere("changed")} == {right}
    await workers.until(lambda: len(workers.everywhere("rekeyed")) == PARTITIONS - 1)
    await workers.send(topics.STATE_CHANGED, b"\x00\xff", b"\xfe no json")
    await workers.send(topics.USER_ACTIVE, b"u", b'{"user_id": "u"}')
    await workers.until(lambda: len(workers.everywhere("poison")) == 2)
    # counted when it is seen; sent, with what follows, a moment later
    (dead,) = await workers.read_until(topics.dead_letter_name(topics.STATE_CHANGED), 1)
    assert (dead.key, dead.value) == (b"\x00\xff", b"\xfe no json")
    assert header(dead.headers, "dlq_reason") == b"not_json"
    assert header(dead.headers, "dlq_topic") == b"account.state_changed"
    moved = [r for r in await workers.read(topics.STATE_CHANGED) if header(r.headers, REKEYED_HEADER)]
    assert {record.partition for record in moved} == {right}
    assert (first.process.returncode, second.process.returncode) == (None, None)


async def test_case_110_an_agent_that_breaks_comes_back(workers: Fleet) -> None:
    worker = await workers.start()
    await workers.settled()
    for round_ in range(3):
        worker.signal(signal.SIGUSR1)
        await workers.state(round_, "live", 1)
        await workers.state(round_ + 100, "live", 1)
        wanted = 2 * (round_ + 1)
        await workers.until(lambda wanted=wanted: len(worker.said("changed")) >= wanted)  # type: ignore[misc]
    assert worker.process.returncode is None
    await workers.until(lambda: worker.said("health", alive=True))


async def test_cases_108_109_no_event_is_lost_over_joins_stops_and_kills(workers: Fleet) -> None:
    first = await workers.start()
    await workers.settled()
    sent: dict[str, int] = {}

    async def send() -> None:
        version = 0
        while not done.is_set():
            version += 1
            for number in range(30):
                await workers.state(number, "live" if version % 2 else "disabled", version)
                sent[account_id(number)] = version
            await asyncio.sleep(0.05)

    done = asyncio.Event()
    sender = asyncio.create_task(send())
    second = await workers.start()
    await workers.until(lambda: second.running)
    first.signal(signal.SIGKILL)
    third = await workers.start()
    await workers.until(lambda: third.running and len(second.running) + len(third.running) == PARTITIONS)
    second.signal(signal.SIGTERM)
    await workers.until(lambda: len(third.running) == PARTITIONS)
    done.set()
    await sender
    await workers.until(lambda: {name: entry["version"] for name, entry in known(third).items()} == sent, 60)


async def test_a_broker_that_goes_and_comes_closes_the_sockets_and_takes_up_again(
    private_kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    async with fleet(private_kafka.bootstrap, topic_prefix, tmp_path, partitions=4) as workers:
        worker = await workers.start()
        await workers.settled()
        await workers.state(1, "live", 1)
        await workers.until(lambda: worker.said("changed"))
        private_kafka.pause()
        await workers.until(lambda: worker.said("unassigned"), 60)
        private_kafka.resume()
        await workers.until(lambda: worker.lines[-1]["what"] != "unassigned" and len(worker.held) == 4, 60)
        await workers.until(lambda: worker.said("assigned")[-1]["at"] > worker.said("unassigned")[-1]["at"], 90)
        await workers.state(1, "disabled", 2)
        await workers.until(lambda: worker.said("changed", state="disabled"), 60)
        assert worker.process.returncode is None


async def test_s7_the_live_set_is_compared_at_start_and_then_now_and_again(workers: Fleet, tmp_path: Path) -> None:
    directory = tmp_path / "directory.json"

    def write(rows: dict[int, tuple[str, str, int]]) -> None:
        directory.write_text(json.dumps({account_id(number): row for number, row in rows.items()}))

    write({1: ("u", "live", 4), 2: ("u", "disabled", 9)})
    await workers.state(1, "disabled", 3, user="u")
    await workers.state(2, "live", 8, user="u")
    await workers.state(3, "live", 1, user="u")
    one = await workers.start(TEST_DIRECTORY=str(directory), RECONCILE_S="1")
    other = await workers.start(TEST_DIRECTORY=str(directory), RECONCILE_S="1")
    await workers.settled()

    def states() -> dict[str, object]:
        return {name: entry["state"] for worker in (one, other) for name, entry in known(worker).items()}

    wanted = {account_id(1): "live", account_id(2): "disabled", account_id(3): "deleted"}
    await workers.until(lambda: states() == wanted)
    write({1: ("u", "disabled", 5), 2: ("u", "live", 10), 4: ("v", "live", 1)})
    wanted = {
        account_id(1): "disabled",
        account_id(2): "live",
        account_id(3): "deleted",
        account_id(4): "live",
    }
    await workers.until(lambda: states() == wanted)
