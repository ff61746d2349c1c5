"""Commands of the owner lane: the shard's own transactions, from owner to owner (W13, W15; cases 15, 36)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streams.commands.operations import (
    Backfill,
    Reporter,
    Resync,
    SyncNow,
    Verify,
    mailbox_unknown,
    not_live,
    uidvalidity_mismatch,
)
from streams.commands.owner_service import OwnerService
from streams.contracts import topics
from streams.contracts.commands import CommandFailure, CommandProgress, CommandStarted, CommandSuccess
from streams.errors import CredentialsRefused
from streams.observer import NoopObserver
from streams.sync.log import Batch, ShardLog
from streams.sync.store import MirrorStore
from tests.integration.commands.rig import Jobs, command_of, once, outcome


class Operations:
    """Operations as tests want them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.release = asyncio.Event()
        self.release.set()
        self.failure: Exception | None = None

    async def _do(self, kind: str, account_id: str, args: Any, progress: Reporter) -> Mapping[str, Any]:
        self.asked.append((kind, account_id, args))
        progress(0.5, counts={"messages": 1})
        await self.release.wait()
        if self.failure is not None:
            raise self.failure
        return {"kind": kind}

    async def sync_now(self, account_id: str, args: SyncNow, progress: Reporter) -> Mapping[str, Any]:
        return await self._do("sync_now", account_id, args, progress)

    async def resync(self, account_id: str, args: Resync, progress: Reporter) -> Mapping[str, Any]:
        return await self._do("resync", account_id, args, progress)

    async def backfill(self, account_id: str, args: Backfill, progress: Reporter) -> Mapping[str, Any]:
        return await self._do("backfill", account_id, args, progress)

    async def verify(self, account_id: str, args: Verify, progress: Reporter) -> Mapping[str, Any]:
        return await self._do("verify", account_id, args, progress)


class Owner:
    """A worker that owns all partitions: shard logs and the service, without the runners."""

    def __init__(self, jobs: Jobs, directory: Path, name: str, operations: Operations) -> None:
        self.settings = jobs.settings.model_copy(update={"WORKER_NAME": name, "WORKER_RETRY_LIMIT": 0})
        self.service = OwnerService(self.settings, operations, NoopObserver())
        self.store = MirrorStore(directory / name)
        self.logs: dict[int, ShardLog] = {}

    async def open(self, partition: int) -> ShardLog:
        worker = self.settings.WORKER_NAME
        log = ShardLog(partition, settings=self.settings, store=self.store, observer=NoopObserver(), worker=worker)
        await log.fence()
        await log.restore()
        self.logs[partition] = log
        self.service.opened(log)
        return log


@contextlib.asynccontextmanager
async def owning(jobs: Jobs, directory: Path, name: str, operations: Operations) -> AsyncIterator[Owner]:
    owner = Owner(jobs, directory, name, operations)
    await owner.open(0)  # a shard may run before the service does
    await owner.service.start()
    for partition in range(1, jobs.settings.PARTITIONS):
        await owner.open(partition)
    try:
        yield owner
    finally:
        await owner.service.stop(0.0)
        for partition, log in owner.logs.items():
            owner.service.closed(partition)
            await log.close()
        owner.store.close()


async def test_commands_are_run_by_the_owner_and_concluded_in_its_transaction(jobs: Jobs, tmp_path: Path) -> None:
    operations = Operations()
    commands = [
        command_of("sync_now", next(jobs.accounts), mailbox="INBOX"),
        command_of("resync", next(jobs.accounts)),
        command_of("backfill", next(jobs.accounts), since="2024-01-31"),
        command_of("verify", next(jobs.accounts), deep=True),
    ]
    async with owning(jobs, tmp_path, "w1", operations):
        ids = await jobs.send(*commands, *commands, topic=topics.COMMANDS)
        events = await jobs.concluded(4)
    assert outcome(events) == once(ids[:4])
    assert sorted(kind for kind, _, _ in operations.asked) == ["backfill", "resync", "sync_now", "verify"]
    for command in commands:
        mine = [event for event in events if event.command_id == command.command_id]
        assert isinstance(mine[0], CommandStarted)
        assert isinstance(mine[-1], CommandSuccess)
        assert mine[-1].result == {"kind": command.kind}
        assert all(isinstance(event, CommandProgress) for event in mine[1:-1])


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (not_live("disabled"), "not_live"),
        (uidvalidity_mismatch(7, 8), "uidvalidity_mismatch"),
        (mailbox_unknown("Nowhere"), "mailbox_unknown"),
        (CredentialsRefused("no"), "credentials_refused"),
    ],
)
async def test_case_15_refusals_have_their_code_and_the_next_command_runs(
    jobs: Jobs, tmp_path: Path, failure: Exception, code: str
) -> None:
    operations = Operations()
    operations.failure = failure
    account = next(jobs.accounts)
    async with owning(jobs, tmp_path, "w1", operations):
        await jobs.send(command_of("sync_now", account, uidvalidity=7), topic=topics.COMMANDS)
        await jobs.concluded(1)
        operations.failure = None
        await jobs.send(command_of("sync_now", account), topic=topics.COMMANDS)
        events = await jobs.concluded(2)
    (refused,) = [event for event in events if isinstance(event, CommandFailure)]
    assert (refused.code, refused.retryable, refused.attempts) == (code, False, 1)
    assert sum(isinstance(event, CommandSuccess) for event in events) == 1


@pytest.mark.parametrize("args", [{"since": "2024-01-01", "count": 5}, {"folder": "INBOX"}, {"count": 0}])
async def test_w13_arguments_that_mean_nothing_are_dead_lettered(
    jobs: Jobs, tmp_path: Path, args: dict[str, Any]
) -> None:
    operations = Operations()
    async with owning(jobs, tmp_path, "w1", operations):
        await jobs.send(command_of("backfill", next(jobs.accounts), **args), topic=topics.COMMANDS)
        (failure,) = [event for event in await jobs.concluded(1) if isinstance(event, CommandFailure)]
    assert failure.code == "schema"
    assert len(await jobs.records(topics.dead_letter_name(topics.COMMANDS))) == 1
    assert operations.asked == []


async def test_w15_a_command_dies_with_its_shard_and_is_taken_up_by_the_next(jobs: Jobs, tmp_path: Path) -> None:
    first, second = Operations(), Operations()
    first.release.clear()
    account = next(jobs.accounts)
    async with owning(jobs, tmp_path, "w1", first):
        done = command_of("sync_now", next(jobs.accounts))
        held = command_of("resync", account)
        first.release.set()
        await jobs.send(done, topic=topics.COMMANDS)
        await jobs.concluded(1)
        first.release.clear()
        await jobs.send(held, done, topic=topics.COMMANDS)
        await jobs.until_event(lambda event: event.command_id == held.command_id)
        async with owning(jobs, tmp_path, "w2", second):
            events = await jobs.concluded(2)
            first.release.set()  # the old owner ends, and nobody hears of it
            later = command_of("sync_now", account)
            await jobs.send(later, topic=topics.COMMANDS)
            events = await jobs.concluded(3)
    assert outcome(events) == once([done.command_id, held.command_id, later.command_id])
    (taken_up,) = [
        event for event in events if isinstance(event, CommandSuccess) and event.command_id == held.command_id
    ]
    assert (taken_up.worker, taken_up.attempt) == ("w2", 2)
    assert [kind for kind, _, _ in second.asked] == ["resync", "sync_now"]


async def test_a_shard_that_starts_over_takes_its_commands_along(jobs: Jobs, tmp_path: Path) -> None:
    """The producer is lost in the middle; the same worker fences again and goes on."""
    operations = Operations()
    operations.release.clear()
    account = next(jobs.accounts)
    partition = jobs.partition_of(account)
    async with owning(jobs, tmp_path, "w1", operations) as owner:
        (command_id,) = await jobs.send(command_of("backfill", account), topic=topics.COMMANDS)
        await jobs.until_event(lambda event: isinstance(event, CommandStarted))
        store = MirrorStore(tmp_path / "rival")
        rival = ShardLog(partition, settings=owner.settings, store=store, observer=NoopObserver(), worker="r")
        await rival.fence()
        await rival.close()
        with contextlib.suppress(Exception):
            await owner.logs[partition].submit(Batch(mirror={f"{account}/command/x": (None, "nothing")}))
        owner.service.closed(partition)
        await owner.logs[partition].close()
        await owner.open(partition)
        operations.release.set()
        events = await jobs.concluded(1)
    assert outcome(events) == once([command_id])
    assert max(event.attempt for event in events) == 2
