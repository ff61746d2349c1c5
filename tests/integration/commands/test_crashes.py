"""Processes killed with SIGKILL at each step; the outcome is read from the topics alone (row W15)."""

from __future__ import annotations

import signal

import pytest

from streams.contracts.commands import CommandFailure, CommandStarted, CommandSuccess
from tests.integration.commands.processes import Starter
from tests.integration.commands.rig import Jobs, command_of, once, outcome

HURRY = {"KAFKA_SESSION_TIMEOUT_S": "3"}


@pytest.mark.parametrize("point", ["handler", "before_commit", "after_commit"])
async def test_w15_a_kill_at_any_step_leaves_one_conclusion(jobs: Jobs, processes: Starter, point: str) -> None:
    """`handler` comes before `started` is committed; the others lie between the result and its acknowledgement."""
    first = await processes.working(KILL_AT=point, **HURRY)
    account = next(jobs.accounts)
    ids = await jobs.send(*(command_of("noop", account, number=number) for number in range(5)))
    assert await first.ended() == -signal.SIGKILL
    await processes.working(**HURRY)
    events = await jobs.concluded(5)
    assert outcome(events) == once(ids)
    results = [event.result["number"] for event in events if isinstance(event, CommandSuccess)]
    assert results == [0, 1, 2, 3, 4]
    heard_of_first = {event.command_id for event in events if event.worker == "p1"}
    assert bool(heard_of_first) is (point == "after_commit"), "a transaction is seen as a whole or not at all"
    assert await jobs.lag() == 0


async def test_w15_a_kill_in_the_handler_is_followed_by_a_second_attempt(jobs: Jobs, processes: Starter) -> None:
    first = await processes.working(**HURRY)
    (command_id,) = await jobs.send(command_of("held", next(jobs.accounts)))
    await jobs.until_event(lambda event: isinstance(event, CommandStarted))
    await first.kill()
    second = await processes.working(**HURRY)
    await processes.marked(f"begun-{command_id}-2")
    processes.mark("release")
    events = await jobs.concluded(1)
    starts = [(event.worker, event.attempt) for event in events if isinstance(event, CommandStarted)]
    assert starts == [("p1", 1), ("p2", 2)]
    (success,) = [event for event in events if isinstance(event, CommandSuccess)]
    assert (success.attempt, success.result["pid"]) == (2, second.pid)


async def test_w15_a_kill_during_the_backoff_keeps_count_of_the_attempts(jobs: Jobs, processes: Starter) -> None:
    first = await processes.working(WORKER_RETRY_BACKOFF_S="30", WORKER_RETRY_LIMIT="1", **HURRY)
    (command_id,) = await jobs.send(command_of("failing", next(jobs.accounts)))
    await first.until_said("attempt failed, trying again")
    await jobs.until_event(lambda event: isinstance(event, CommandStarted))
    await first.kill()
    await processes.working(WORKER_RETRY_LIMIT="1", **HURRY)
    events = await jobs.concluded(1)
    (failure,) = [event for event in events if isinstance(event, CommandFailure)]
    assert (failure.command_id, failure.code, failure.attempts) == (command_id, "temporary", 2)


async def test_w15_a_paused_process_writes_nothing_when_it_wakes(jobs: Jobs, processes: Starter) -> None:
    """It slept through its session: another one has taken over and concluded the command."""
    sleeper = await processes.working(**HURRY)
    (command_id,) = await jobs.send(command_of("held", next(jobs.accounts)))
    await processes.marked(f"begun-{command_id}-1")
    await jobs.until_event(lambda event: isinstance(event, CommandStarted))
    sleeper.signal(signal.SIGSTOP)
    await processes.working(**HURRY)
    await processes.marked(f"begun-{command_id}-2")
    processes.mark("release")
    await jobs.concluded(1)
    sleeper.signal(signal.SIGCONT)
    await processes.until(lambda: sleeper.said().count("partitions of jobs") == 2)
    later = await jobs.send(*(command_of("noop", next(jobs.accounts)) for _ in range(20)))
    events = await jobs.concluded(21)
    assert outcome(events) == once([command_id, *later])
