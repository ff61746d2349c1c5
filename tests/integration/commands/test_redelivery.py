"""Commands that come more than once and in another order, as a real Kafka delivers them (row W15)."""

from __future__ import annotations

import itertools

from streams.commands.handlers import Task
from streams.contracts.commands import Command, CommandStarted, CommandSuccess
from tests.integration.commands.processes import Starter
from tests.integration.commands.rig import Jobs, JobWorker, command_of, once, outcome
from tests.unit.commands.rig import Anything, noop, registry


def neighbours(jobs: Jobs) -> tuple[str, str]:
    """Two accounts whose commands lie in one partition."""
    first = next(jobs.accounts)
    partition = jobs.partition_of(first)
    return first, next(account for account in jobs.accounts if jobs.partition_of(account) == partition)


async def test_w15_redelivery_finds_later_commands_concluded_before_earlier_ones(
    jobs: Jobs, processes: Starter
) -> None:
    """The position stays at the slow command, so a kill brings all of them again: only the slow one is run again."""
    slow, quick = neighbours(jobs)
    first = await processes.working(KAFKA_SESSION_TIMEOUT_S="3")
    held, *noops = await jobs.send(
        command_of("held", slow), *(command_of("noop", quick, number=number) for number in range(30))
    )
    await processes.marked(f"begun-{held}-1")
    await jobs.concluded(30)
    await first.kill()
    assert await jobs.committed("sync.jobs", jobs.partition_of(slow)) == 0
    await processes.working(KAFKA_SESSION_TIMEOUT_S="3")
    await processes.marked(f"begun-{held}-2")
    processes.mark("release")
    events = await jobs.concluded(31)
    assert outcome(events) == once([held, *noops])
    started = [(event.command_id, event.worker) for event in events if isinstance(event, CommandStarted)]
    assert sorted(started) == sorted([(held, "p1"), (held, "p2"), *((command_id, "p1") for command_id in noops)])
    assert await jobs.lag() == 0


async def test_w15_what_a_producer_repeats_in_another_order_is_concluded_once(jobs: Jobs) -> None:
    """Repeats lie before, between and behind the first ones, some come while those run and some long afterwards."""
    ran: list[int] = []

    async def noting(args: Anything, task: Task) -> dict[str, int]:
        ran.append(args.number)
        return {"number": args.number}

    one, other = neighbours(jobs)
    commands = [command_of("noting", account, number=number) for number, account in enumerate([one, other] * 20)]
    rounds: list[list[Command]] = [commands, commands[::-1], commands[::3], commands[5:15]]
    await jobs.send(*itertools.chain(*rounds[:2]))
    async with JobWorker(jobs, registry(noting=noting, noop=noop)) as worker:
        await jobs.send(*itertools.chain(*rounds[2:]))
        await jobs.concluded(40)
        *_, last = await jobs.send(*commands[:1], command_of("noop", one))
        events = await jobs.concluded(41)
        await worker.until(lambda: worker.engine.idle)
    assert outcome(events) == once([*(command.command_id for command in commands), last])
    assert sorted(ran) == list(range(40))
    by_account = [[n for n in ran if n % 2 == parity] for parity in (0, 1)]
    assert all(numbers == sorted(numbers) for numbers in by_account)
    results = {event.command_id: event.result.get("number") for event in events if isinstance(event, CommandSuccess)}
    assert all(results[command.command_id] == command.args["number"] for command in commands)
    assert await jobs.lag() == 0
