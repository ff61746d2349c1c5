"""The life of worker and job processes (rows W5-W9, W17), on a real Kafka."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from typing import Any

from streams.contracts.commands import CommandFailure, CommandStarted, CommandSuccess
from tests.integration.commands.processes import Process, Starter
from tests.integration.commands.rig import Jobs, command_of, once, outcome

JOB = {"WORKER_MODE": "job", "WORKER_JOB_IDLE_TIMEOUT_S": "30"}


async def probe(process: Process, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body of a probe."""

    def ask() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{process.probe_port}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(ask)


async def test_w5_the_first_signal_lets_tasks_finish_publish_and_acknowledge(jobs: Jobs, processes: Starter) -> None:
    worker = await processes.working(WORKER_SHUTDOWN_GRACE_S="20")
    (command_id,) = await jobs.send(command_of("held", next(jobs.accounts)))
    await processes.marked(f"begun-{command_id}-1")
    worker.signal(signal.SIGTERM)
    await worker.until_said('"stopping"')
    assert (await probe(worker, "/ready"))[0] == 503
    processes.mark("release")
    assert await worker.ended(within_s=20) == 0
    events = await jobs.concluded(1)
    assert [type(event) for event in events] == [CommandStarted, CommandSuccess]
    assert await jobs.lag() == 0


async def test_w5_after_the_grace_tasks_are_cancelled_and_redelivered_to_a_peer(jobs: Jobs, processes: Starter) -> None:
    worker = await processes.working(WORKER_SHUTDOWN_GRACE_S="3")
    await jobs.send(command_of("held", next(jobs.accounts)))
    # The first transaction with a new broker takes seconds; what is handed back is to be written within the grace.
    await jobs.until_event(lambda event: isinstance(event, CommandStarted))
    worker.signal(signal.SIGTERM)
    assert await worker.ended(within_s=15) == 0
    assert await jobs.lag() == 1
    processes.mark("release")
    await processes.working()
    (success,) = [event for event in await jobs.concluded(1) if isinstance(event, CommandSuccess)]
    assert (success.worker, success.attempt) == ("p2", 1)


async def test_w6_a_second_signal_skips_the_grace(jobs: Jobs, processes: Starter) -> None:
    worker = await processes.working(WORKER_SHUTDOWN_GRACE_S="300", WORKER_CONSUMER_TIMEOUT_S="3000")
    (command_id,) = await jobs.send(command_of("held", next(jobs.accounts)))
    await processes.marked(f"begun-{command_id}-1")
    worker.signal(signal.SIGTERM)
    await worker.until_said('"stopping"')
    await asyncio.sleep(0.3)  # two signals within a fifth of a second count as one
    worker.signal(signal.SIGTERM)
    assert await worker.ended(within_s=15) == 0


async def test_w7_w17_a_stuck_thread_is_named_and_the_process_exits_with_1(jobs: Jobs, processes: Starter) -> None:
    worker = await processes.working(WORKER_SHUTDOWN_GRACE_S="0.5")
    (command_id,) = await jobs.send(command_of("stuck", next(jobs.accounts)))
    await processes.marked(f"begun-{command_id}-1")
    worker.signal(signal.SIGTERM)
    assert await worker.ended(within_s=10) == 1
    assert f"stuck:{command_id}" in worker.said()


async def test_w8_a_job_process_takes_its_quota_and_never_one_more(jobs: Jobs, processes: Starter) -> None:
    ids = await jobs.send(*(command_of("noop", next(jobs.accounts)) for _ in range(6)))
    job = await processes.start(**JOB, WORKER_JOB_MAX_TASKS="2")
    assert await job.ended() == 0
    events = await jobs.concluded(2)
    assert sum(outcome(events).values()) == 2
    assert await jobs.lag() == 4
    others = [await processes.start(**JOB, WORKER_JOB_MAX_TASKS="2") for _ in range(2)]
    assert [await other.ended() for other in others] == [0, 0]
    assert outcome(await jobs.concluded(6)) == once(ids)
    assert await jobs.lag() == 0


async def test_w8_it_exits_with_0_whatever_the_outcome(jobs: Jobs, processes: Starter) -> None:
    await jobs.send(command_of("failing", next(jobs.accounts)))
    job = await processes.start(**JOB, WORKER_RETRY_LIMIT="0")
    assert await job.ended() == 0
    assert any(isinstance(event, CommandFailure) for event in await jobs.concluded(1))


async def test_w8_it_exits_with_0_when_nothing_arrives(jobs: Jobs, processes: Starter) -> None:
    job = await processes.start(**{**JOB, "WORKER_JOB_IDLE_TIMEOUT_S": "1"})
    assert await job.ended() == 0
    assert "nothing arrived" in job.said()


async def test_w8_it_exits_with_1_when_no_broker_answers(processes: Starter) -> None:
    job = await processes.start(**JOB, WORKER_JOB_CONNECT_TIMEOUT_S="1", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert await job.ended() == 1


async def test_w8_several_job_processes_share_the_lane(jobs: Jobs, processes: Starter) -> None:
    """All of them work at the same time, though the first one alone had every partition."""
    accounts = [next(jobs.accounts) for _ in range(30)]
    partitions: dict[int, str] = {}
    for account in accounts:
        partitions.setdefault(jobs.partition_of(account), account)
    ids = await jobs.send(*(command_of("held", account) for account in partitions.values()))
    started = [await processes.start(**JOB) for _ in ids]
    await processes.until(lambda: all((processes.directory / f"begun-{command_id}-1").exists() for command_id in ids))
    processes.mark("release")
    assert [await process.ended() for process in started] == [0] * len(ids)
    events = await jobs.concluded(len(ids))
    assert outcome(events) == once(ids)
    assert len({event.worker for event in events}) == len(ids)


async def test_w9_probes_answer_in_job_mode_and_ready_ends_with_the_quota(jobs: Jobs, processes: Starter) -> None:
    job = await processes.start(**JOB)
    await job.until_said("partitions of jobs")
    assert (await probe(job, "/ready"))[0] == 200
    (command_id,) = await jobs.send(command_of("held", next(jobs.accounts)))
    await processes.marked(f"begun-{command_id}-1")
    assert (await probe(job, "/health"))[0] == 200
    assert (await probe(job, "/ready"))[0] == 503
    processes.mark("release")
    assert await job.ended() == 0


async def test_w9_a_task_over_its_limit_is_reported_by_id(jobs: Jobs, processes: Starter) -> None:
    worker = await processes.working(WORKER_TASK_TIMEOUT_S="0.2", WORKER_TASK_OVERRUN_GRACE_S="0.2")
    (command_id,) = await jobs.send(command_of("stuck", next(jobs.accounts)))
    await processes.marked(f"begun-{command_id}-1")
    async with asyncio.timeout(20):
        while command_id not in json.dumps((await probe(worker, "/health"))[1].get("overrunning", "")) and (
            command_id not in json.dumps((await probe(worker, "/ready"))[1])
        ):
            await asyncio.sleep(0.1)
