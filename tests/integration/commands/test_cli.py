"""`send` and `dead-letters` as people use them, against a real Kafka."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog
from click.testing import CliRunner, Result

from streams.cli import send as sending
from streams.cli.dead_letters import group as dead_letters
from streams.cli.send import group as send
from streams.commands.dead_letters import LetterDesk, LetterUnknown, read_letters
from streams.commands.handlers import Handlers, Task, TaskFailed
from streams.contracts import topics
from streams.contracts.commands import CommandFailure, CommandSuccess
from tests.integration.commands.rig import Jobs, JobWorker, command_of, once, outcome


class Anything(msgspec.Struct, frozen=True):
    number: int = 0


async def noop(args: Anything, task: Task) -> dict[str, Any]:
    task.progress(0.5, message="half")
    return {"number": args.number}


async def refusing(args: Anything, task: Task) -> None:
    raise TaskFailed("refused", "not today")


def registry(**functions: Any) -> Handlers:
    handlers = Handlers()
    for kind, function in functions.items():
        handlers.add(kind, function, args=Anything)
    return handlers


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The output of a command is caught by taking over stdout, where log records of the workers here would go too."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def environment(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings as the command line reads them."""
    for name, value in jobs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MAILSTREAMS_ENV_FILE", "/dev/null")


async def run(command: Any, *arguments: str) -> Result:
    """A command line in a thread of its own, since it has its own event loop."""
    return await asyncio.to_thread(CliRunner().invoke, command, list(arguments), catch_exceptions=False)


async def test_a_command_is_followed_to_its_result(jobs: Jobs) -> None:
    async with JobWorker(jobs, registry(noop=noop)):
        result = await run(send, "job", "noop", next(jobs.accounts), "--args", '{"number": 7}', "--timeout", "30")
        assert (result.exit_code, result.stdout) == (0, "number: 7\n")
        result = await run(send, "job", "noop", next(jobs.accounts), "--json", "--timeout", "30")
        assert json.loads(result.stdout)["type"] == "success"


async def test_a_failure_is_told_with_its_code(jobs: Jobs) -> None:
    async with JobWorker(jobs, registry(refusing=refusing)):
        result = await run(send, "job", "refusing", next(jobs.accounts), "--timeout", "30")
        assert result.exit_code == 1
        assert "failed (refused) after 1 attempt: not today" in result.stderr


async def test_one_that_is_not_concluded_in_time_goes_on(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "UNTAKEN_S", 0.1)
    result = await run(send, "sync-now", next(jobs.accounts), "--timeout", "0.5")
    assert result.exit_code == 3
    assert result.stderr.index("no worker has taken it yet") < result.stderr.index("it goes on as")
    (record,) = await jobs.records(topics.COMMANDS)
    assert json.loads(record.value)["kind"] == "sync_now"


async def test_without_waiting_only_the_id_is_told(jobs: Jobs) -> None:
    account = next(jobs.accounts)
    result = await run(send, "export", account, "--no-wait", "--mailbox", "INBOX", "--since", "2024-01-31")
    (record,) = await jobs.records(topics.JOBS)
    sent = json.loads(record.value)
    assert (result.exit_code, result.stdout.strip()) == (0, sent["command_id"])
    assert sent["args"] == {"mailboxes": ["INBOX"], "since": "2024-01-31"}
    assert record.partition == jobs.partition_of(account)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sync-now", "nobody"),
        ("backfill", "ACCOUNT", "--since", "2024-01-01", "--count", "5"),
        ("export", "ACCOUNT", "--uids", "1:5"),
        ("job", "noop", "ACCOUNT", "--args", "[1]"),
    ],
)
async def test_w1_what_cannot_be_right_is_not_sent(jobs: Jobs, arguments: tuple[str, ...]) -> None:
    account = next(jobs.accounts)
    result = await run(send, *(account if word == "ACCOUNT" else word for word in arguments))
    assert result.exit_code == 2
    assert await jobs.records(topics.COMMANDS) == await jobs.records(topics.JOBS) == []


async def test_w13_dead_letters_are_listed_shown_redriven_and_discarded(jobs: Jobs) -> None:
    account = next(jobs.accounts)
    (command_id,) = await jobs.send(command_of("later", account, number=3))
    await jobs.send_raw([(b"junk", b"\x1b[31mjunk")])
    async with JobWorker(jobs, registry(noop=noop)) as worker:
        await worker.until(lambda: worker.observer.counts["published", "dead_letter"] == 2)

    listed = await run(dead_letters, "list", "--topic", "sync.jobs", "--json")
    assert listed.exit_code == 0, listed.stderr
    letters = {letter["reason"]: letter for letter in map(json.loads, listed.stdout.splitlines())}
    assert set(letters) == {"unknown_kind", "not_json"}
    assert letters["unknown_kind"]["from"].startswith("sync.jobs/")

    shown = await run(dead_letters, "show", "sync.jobs", letters["not_json"]["id"])
    assert "\x1b" not in shown.stdout
    raw = await run(dead_letters, "show", "sync.jobs", letters["not_json"]["id"], "--raw")
    assert raw.stdout_bytes == b"\x1b[31mjunk"

    # A handler was written since. The command comes again under another id: under the old one it has failed.
    redriven = await run(dead_letters, "redrive", "sync.jobs", "--reason", "unknown_kind")
    assert redriven.stdout == "redriven 1\n"
    assert (await run(dead_letters, "redrive", "sync.jobs", "--reason", "unknown_kind")).stdout == "redriven 0\n"
    async with JobWorker(jobs, registry(later=noop)):
        events = await jobs.concluded(2)
    (success,) = [event for event in events if isinstance(event, CommandSuccess)]
    (failure,) = [event for event in events if isinstance(event, CommandFailure)]
    assert failure.command_id == command_id
    assert success.command_id.startswith(f"{command_id}~again~")
    assert outcome(events) == once([command_id, success.command_id])

    discarded = await run(dead_letters, "discard", "sync.jobs", letters["not_json"]["id"])
    assert discarded.stdout == "discarded 1\n"
    assert "no dead letters" in (await run(dead_letters, "list")).stdout
    everything = await run(dead_letters, "list", "--all", "--json")
    assert {json.loads(line)["resolution"] for line in everything.stdout.splitlines()} == {"redriven", "discarded"}


async def test_a_letter_that_does_not_exist_changes_nothing(jobs: Jobs) -> None:
    await jobs.send_raw([(b"junk", b"junk")])
    async with JobWorker(jobs, registry(noop=noop)) as worker:
        await worker.until(lambda: worker.observer.counts["published", "dead_letter"] == 1)
    (letter,) = await read_letters(jobs.settings, topics.JOBS)
    async with LetterDesk.opened(jobs.settings) as desk:
        with pytest.raises(LetterUnknown):
            await desk.resolve(topics.JOBS, [letter.letter_id, "0:999"], "discarded")
        assert await desk.resolve(topics.JOBS, [letter.letter_id, letter.letter_id], "discarded") == [letter]
        assert await desk.resolve(topics.JOBS, [letter.letter_id], "redriven") == []
