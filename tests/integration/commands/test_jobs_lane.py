"""The jobs lane on a real Kafka, outcomes checked from the topics alone (rows W5, W8, W12-W15)."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.commands.handlers import Handlers, Task
from streams.contracts.commands import CommandStarted, CommandSuccess
from tests.integration.commands.rig import Jobs, JobWorker, command_of, once, outcome


class Anything(msgspec.Struct, frozen=True):
    number: int = 0


async def noop(args: Anything, task: Task) -> dict[str, int]:
    return {"number": args.number}


def registry(**functions: Any) -> Handlers:
    handlers = Handlers()
    for kind, function in functions.items():
        handlers.add(kind, function, args=Anything)
    return handlers


async def test_w15_commands_are_concluded_once_and_acknowledged(jobs: Jobs) -> None:
    commands = [command_of("noop", next(jobs.accounts), number=number) for number in range(100)]
    ids = await jobs.send(*commands)
    await jobs.send(*commands[:50])
    async with JobWorker(jobs, registry(noop=noop)):
        events = await jobs.concluded(100)
    assert outcome(events) == once(ids)
    assert {event.command_id: event.result["number"] for event in events if isinstance(event, CommandSuccess)} == {
        command.command_id: command.args["number"] for command in commands
    }
    assert sum(isinstance(event, CommandStarted) for event in events) == 100
    assert await jobs.lag() == 0
