"""What a task says while it runs and when it fails, on a real Kafka (rows W12, W14, W16, W17)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from streams.commands.handlers import Task, TaskFailed, TaskStopped
from streams.commands.progress import COALESCED, CONCLUDED, INVALID_FRACTION, INVALID_PAYLOAD, NOT_INCREASING
from streams.contracts import topics
from streams.contracts.codec import header
from streams.contracts.commands import CommandFailure, CommandProgress, CommandStarted, CommandSuccess
from tests.integration.commands.processes import Starter
from tests.integration.commands.rig import RETRY, Jobs, JobWorker, command_of
from tests.unit.commands.rig import Anything, registry


async def test_w12_readers_see_rising_progress_and_every_drop_is_counted(jobs: Jobs) -> None:
    late: list[Callable[[], None]] = []

    async def talkative(args: Anything, task: Task) -> None:
        task.progress(1.5)
        task.progress(0.1, counts={"n": "many"})  # type: ignore[dict-item]
        task.progress(0.2)
        task.progress(0.1)
        for step in range(30, 90):
            task.progress(step / 100, counts={"messages": step}, message=f"{step} of 100")
        await asyncio.sleep(0.1)
        task.progress(0.95)
        late.append(lambda: task.progress(1.0))

    async with JobWorker(jobs, registry(talkative=talkative)) as worker:
        await jobs.send(command_of("talkative", next(jobs.accounts)))
        events = await jobs.concluded(1)
        late[0]()
        await worker.until(lambda: worker.observer.counts["progress_dropped", CONCLUDED])
        counts = worker.observer.counts
    assert isinstance(events[0], CommandStarted)
    assert isinstance(events[-1], CommandSuccess)
    fractions = [event.fraction for event in events if isinstance(event, CommandProgress)]
    assert 0.2 in fractions
    assert fractions == sorted(set(fractions))
    assert all(event.counts.get("messages", 0) < 90 for event in events if isinstance(event, CommandProgress))
    dropped = {
        reason: counts["progress_dropped", reason] for reason in (INVALID_FRACTION, INVALID_PAYLOAD, NOT_INCREASING)
    }
    assert dropped == {INVALID_FRACTION: 1, INVALID_PAYLOAD: 1, NOT_INCREASING: 1}
    assert counts["progress_dropped", COALESCED] > 0
    offered = len(fractions) + counts["progress_dropped", COALESCED] + counts["progress_dropped", CONCLUDED]
    assert offered == 1 + 60 + 1 + 1


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(("retryable", "attempts"), [(False, 1), (True, RETRY.retries + 1)])
async def test_w14_w17_failures_are_tried_up_to_the_limit_or_concluded_at_once(
    jobs: Jobs, threaded: bool, retryable: bool, attempts: int
) -> None:
    tried: list[int] = []

    def failing(args: Anything, task: Task) -> None:
        tried.append(task.attempt)
        raise TaskFailed("quota_exceeded", "the mailbox is full", retryable=retryable)

    async def failing_async(args: Anything, task: Task) -> None:
        failing(args, task)

    async with JobWorker(jobs, registry(failing=failing if threaded else failing_async)) as worker:
        await jobs.send(command_of("failing", next(jobs.accounts)))
        events = await jobs.concluded(1)
    (failure,) = [event for event in events if isinstance(event, CommandFailure)]
    assert (failure.code, failure.message, failure.attempts) == ("quota_exceeded", "the mailbox is full", attempts)
    assert failure.retryable is retryable
    assert tried == list(range(1, attempts + 1))
    assert worker.observer.counts["retried", "failing", "quota_exceeded"] == attempts - 1
    assert await jobs.records(topics.dead_letter_name(topics.JOBS)) == []


async def test_w14_a_fault_of_a_handler_is_dead_lettered_and_its_text_is_not_published(jobs: Jobs) -> None:
    async def faulty(args: Anything, task: Task) -> None:
        raise RuntimeError("password=secret")

    async with JobWorker(jobs, registry(faulty=faulty)):
        await jobs.send(command_of("faulty", next(jobs.accounts)))
        (failure,) = [event for event in await jobs.concluded(1) if isinstance(event, CommandFailure)]
    assert (failure.code, failure.attempts) == ("handler_failed", RETRY.retries + 1)
    (letter,) = await jobs.records(topics.dead_letter_name(topics.JOBS))
    assert header(letter.headers, "dlq_reason") == b"handler_failed"
    records = [letter, *await jobs.records(topics.COMMAND_EVENTS)]
    assert not any(b"secret" in (record.value or b"") + repr(record.headers).encode() for record in records)


async def test_w17_a_thread_reports_and_ends_when_its_time_is_over(jobs: Jobs) -> None:
    names: list[str] = []

    def patient(args: Anything, task: Task) -> None:
        names.append(threading.current_thread().name)
        task.progress(0.5)
        try:
            while True:
                task.check()
        except TaskStopped:
            names.append("stopped")
            raise

    async with JobWorker(
        jobs, registry(patient=patient), retry=type(RETRY)(0, 0.05, 0.1, attempt_s=0.3, give_up_s=30.0)
    ):
        (command_id,) = await jobs.send(command_of("patient", next(jobs.accounts)))
        events = await jobs.concluded(1)
    assert [type(event) for event in events] == [CommandStarted, CommandProgress, CommandFailure]
    assert [event.code for event in events if isinstance(event, CommandFailure)] == ["timed_out"]
    assert names == [f"patient:{command_id}", "stopped"]


async def test_w16_what_libraries_log_during_a_task_carries_it(jobs: Jobs, processes: Starter) -> None:
    """Through awaits, tasks and threads, of `async def` and of `def` handlers that run side by side."""
    worker = await processes.working()
    accounts = [next(jobs.accounts) for _ in range(4)]
    ids = await jobs.send(
        *(command_of(kind, account) for account, kind in zip(accounts, ["logging", "logging_thread"] * 2, strict=True))
    )
    await jobs.concluded(4)
    said = [json.loads(line) for line in worker.said().splitlines() if line.startswith("{")]
    for command_id, account in zip(ids, accounts, strict=True):
        mine = [line for line in said if line["event"].endswith(command_id) and line["logger"] == "library"]
        assert {line["event"].split()[0] for line in mine} >= {"direct", "inner"}
        for line in mine:
            assert (line["task_id"], line["account_id"], line["attempt"]) == (command_id, account, 1)
            assert line["service"] == "g"
    outside = [line for line in said if line["event"].startswith(("partitions of jobs", "stopping"))]
    assert outside
    assert not any("task_id" in line for line in outside)
