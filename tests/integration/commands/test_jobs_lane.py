"""The jobs lane on a real Kafka, outcomes checked from the topics alone (rows W5, W8, W12-W15)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from streams.commands.handlers import Handlers, Task, TaskFailed
from streams.commands.job_group import _Listener
from streams.contracts import topics
from streams.contracts.codec import header
from streams.contracts.commands import CommandFailure, CommandProgress, CommandStarted, CommandSuccess
from streams.contracts.keys import partition_for
from streams.local.kafka import Kafka
from tests.integration.commands.rig import Jobs, JobWorker, command_of, once, outcome, settings_for
from tests.unit.commands.rig import Anything, noop, registry


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


async def test_s16_a_consumer_that_ends_by_itself_is_replaced(jobs: Jobs) -> None:
    """aiokafka's coordination ends when uvloop refuses to write to a connection that is closed; it never comes back."""
    account = next(jobs.accounts)
    async with JobWorker(jobs, registry(noop=noop)) as worker:
        await jobs.send(command_of("noop", account))
        await jobs.concluded(1)
        first = worker.group._consumer
        assert first is not None

        async def refuses() -> None:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

        first._coordinator.ensure_coordinator_known = refuses
        first.subscribe([worker.group._topic], listener=_Listener(worker.group))
        await worker.until(lambda: worker.group._consumer not in (None, first))
        await jobs.send(command_of("noop", account))
        await jobs.concluded(2)


async def test_s16_a_heartbeat_that_ends_with_an_error_is_begun_anew(jobs: Jobs) -> None:
    """aiokafka does not by itself; the group puts the member out, and it does not hear of it."""
    account = next(jobs.accounts)
    async with JobWorker(jobs, registry(noop=noop)) as worker:
        await jobs.send(command_of("noop", account))
        await jobs.concluded(1)
        consumer = worker.group._consumer
        assert consumer is not None
        coordinator = consumer._coordinator
        before = coordinator.generation

        async def refuses() -> bool:
            del coordinator._do_heartbeat
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

        coordinator._do_heartbeat = refuses

        def beating() -> bool:
            heartbeat = coordinator._heartbeat_task
            return coordinator.generation > before and heartbeat is not None and not heartbeat.done()

        await worker.until(beating)
        assert worker.group._consumer is consumer
        await jobs.send(command_of("noop", account))
        await jobs.concluded(2)


async def test_w12_w14_events_come_in_order_with_progress_and_attempts(jobs: Jobs) -> None:
    async def twice(args: Anything, task: Task) -> dict[str, int]:
        task.progress(0.5, counts={"messages": 5}, message="half")
        if task.attempt == 1:
            raise TaskFailed("temporary", "again", retryable=True)
        return {}

    async with JobWorker(jobs, registry(twice=twice)):
        await jobs.send(command_of("twice", next(jobs.accounts)))
        events = await jobs.concluded(1)
    assert isinstance(events[0], CommandStarted)
    assert isinstance(events[-1], CommandSuccess)
    assert events[-1].attempt == 2
    reports = [event for event in events if isinstance(event, CommandProgress)]
    assert all(event.fraction == 0.5 for event in reports)


async def test_w13_poison_goes_to_the_dead_letters_with_reason_and_origin(jobs: Jobs) -> None:
    account = next(jobs.accounts)
    (good,) = await jobs.send(command_of("noop", account))
    await jobs.send(command_of("mystery", account), command_of("noop", account, expires_s=-1))
    await jobs.send_raw([(account.encode(), b"{"), (b"other", msgspec.json.encode(command_of("noop", account)))])
    await jobs.send_raw([(account.encode(), b" " * 300_000)])
    async with JobWorker(jobs, registry(noop=noop)) as worker:
        events = await jobs.concluded(3)
        await worker.until(lambda: worker.observer.counts["published", "dead_letter"] == 5)
    assert {event.code for event in events if isinstance(event, CommandFailure)} == {"unknown_kind", "expired"}
    assert [event.command_id for event in events if isinstance(event, CommandSuccess)] == [good]
    letters = await jobs.records(topics.dead_letter_name(topics.JOBS))
    reasons = sorted((header(letter.headers, "dlq_reason") or b"").decode() for letter in letters)
    assert reasons == ["expired", "not_json", "too_large", "unknown_kind", "wrong_key"]
    for letter in letters:
        assert header(letter.headers, "dlq_topic") == b"sync.jobs"
        assert header(letter.headers, "dlq_partition") is not None
        assert header(letter.headers, "dlq_offset") is not None
    assert await jobs.lag() == 0


async def test_w13_ten_thousand_poison_records_in_between_valid_ones(jobs: Jobs) -> None:
    records: list[tuple[bytes | None, bytes | None]] = []
    for number in range(10_000):
        records.append((b"%d" % number, b"no command %d" % number))
        if number % 100 == 0:
            command = command_of("noop", next(jobs.accounts), number=number)
            records.append((command.account_id.encode(), msgspec.json.encode(command)))
    await jobs.send_raw(records)
    async with JobWorker(jobs, registry(noop=noop)) as worker:
        events = await jobs.concluded(100)
        await worker.until(lambda: worker.observer.counts["published", "dead_letter"] == 10_000)
    assert sum(outcome(events).values()) == 100
    assert len(await jobs.records(topics.dead_letter_name(topics.JOBS))) == 10_000
    assert await jobs.lag() == 0


async def test_w13_a_command_from_another_partitioner_is_run_where_it_belongs(jobs: Jobs) -> None:
    command = command_of("noop", next(jobs.accounts))
    right = partition_for(command.account_id, 4)
    async with jobs.producer() as producer:
        await producer.send_and_wait(
            jobs.settings.topic(topics.JOBS),
            msgspec.json.encode(command),
            key=command.account_id.encode(),
            partition=(right + 1) % 4,
        )
    async with JobWorker(jobs, registry(noop=noop)):
        events = await jobs.concluded(1)
    assert outcome(events) == once([command.command_id])
    assert [record.partition for record in await jobs.records(topics.COMMAND_EVENTS)] == [right, right]


async def test_w15_consequences_are_published_with_the_conclusion(jobs: Jobs) -> None:
    async def emitting(args: Anything, task: Task) -> None:
        task.emit(topics.COMMANDS, b"next", key=task.account_id.encode())

    handlers = Handlers()
    handlers.add("emitting", emitting, args=Anything, emits=[topics.COMMANDS])
    account = next(jobs.accounts)
    async with JobWorker(jobs, handlers):
        await jobs.send(command_of("emitting", account))
        await jobs.concluded(1)
    (record,) = await jobs.records(topics.COMMANDS)
    assert (record.value, record.partition) == (b"next", partition_for(account, 4))


async def test_w5_a_stop_leaves_the_rest_to_a_peer_at_once(jobs: Jobs) -> None:
    """The second worker gets the partitions when the first one leaves, not after its session."""
    release = asyncio.Event()

    async def held(args: Anything, task: Task) -> None:
        await release.wait()

    async with JobWorker(jobs, registry(held=held), name="w2", concurrency=50) as peer:
        async with JobWorker(jobs, registry(held=held), name="w1", concurrency=50) as worker:
            ids = await jobs.send(*(command_of("held", next(jobs.accounts)) for _ in range(20)))
            await worker.until(
                lambda: len(worker.engine.snapshot().running) + len(peer.engine.snapshot().running) == 20
            )
            left = len(worker.engine.snapshot().running)
            assert 0 < left < 20
        release.set()
        events = await jobs.concluded(20, within_s=20)
    assert outcome(events) == once(ids)
    assert {event.worker for event in events if isinstance(event, CommandSuccess)} == {"w2"}
    assert worker.observer.counts["requeued",] == left
    assert all(event.attempt == 1 for event in events if isinstance(event, CommandSuccess))


async def test_w15_two_workers_and_rebalances_in_the_middle_of_200_tasks(jobs: Jobs) -> None:
    running: set[str] = set()
    overlaps: list[str] = []

    async def short(args: Anything, task: Task) -> dict[str, int]:
        if task.account_id in running:
            overlaps.append(task.account_id)
        running.add(task.account_id)
        try:
            await asyncio.sleep(0.02 * (args.number % 5))
        finally:
            running.discard(task.account_id)
        return {"number": args.number}

    accounts = [next(jobs.accounts) for _ in range(20)]
    ids = await jobs.send(*(command_of("short", accounts[number % 20], number=number) for number in range(200)))
    async with JobWorker(jobs, registry(short=short), name="w1", concurrency=4) as first:
        await first.until(lambda: first.engine.taken > 20)
        async with JobWorker(jobs, registry(short=short), name="w2", concurrency=4) as second:
            await second.until(lambda: second.engine.taken > 10)
        async with JobWorker(jobs, registry(short=short), name="w3", concurrency=4):
            events = await jobs.concluded(200)
    assert outcome(events) == once(ids)
    by_account: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, CommandSuccess):
            by_account.setdefault(event.account_id, []).append(event.result["number"])
    assert all(numbers == sorted(numbers) for numbers in by_account.values())
    assert await jobs.lag() == 0


async def test_a_long_command_stays_where_it_runs_when_others_join(jobs: Jobs, monkeypatch: Any) -> None:
    monkeypatch.setattr("streams.commands.job_group.LONG_S", 0.0)
    release = asyncio.Event()

    async def held(args: Anything, task: Task) -> None:
        await release.wait()

    async with JobWorker(jobs, registry(held=held, noop=noop), name="w1") as first:
        (command_id,) = await jobs.send(command_of("held", next(jobs.accounts)))
        await first.until(lambda: first.engine.snapshot().running)
        async with JobWorker(jobs, registry(held=held, noop=noop), name="w2") as second:
            await first.until(lambda: len(first.group.claim().held) == 2)
            assert len(second.group.claim().held) == 2
            release.set()
            events = await jobs.concluded(1)
    starts = [(event.worker, event.attempt) for event in events if isinstance(event, CommandStarted)]
    assert starts == [("w1", 1)]
    assert outcome(events) == once([command_id])


async def test_w8_a_process_at_its_quota_takes_no_more_and_holds_nobody_up(jobs: Jobs) -> None:
    release = asyncio.Event()

    async def held(args: Anything, task: Task) -> None:
        await release.wait()

    held_account = next(jobs.accounts)
    async with JobWorker(jobs, registry(held=held), name="j1", one_by_one=True, quota=1, concurrency=1) as job:
        (first,) = await jobs.send(command_of("held", held_account))
        await job.until(lambda: job.engine.snapshot().running)
        busy = partition_for(held_account, 4)
        others = await jobs.send(
            *(
                command_of("noop", account)
                for account in (next(jobs.accounts) for _ in range(20))
                if partition_for(account, 4) != busy
            )
        )
        async with JobWorker(jobs, registry(held=held, noop=noop), name="w2"):
            await jobs.concluded(len(others))  # nothing waits behind the process that is busy
            release.set()
            events = await jobs.concluded(len(others) + 1)
        assert outcome(events) == once([first, *others])
        assert [event.worker for event in events if event.command_id == first] == ["j1", "j1"]
        assert job.engine.taken == 1


async def test_the_lane_works_through_a_broker_that_goes_and_comes_back(
    private_kafka: Kafka, topic_prefix: str
) -> None:
    jobs = Jobs(settings_for(private_kafka.bootstrap, topic_prefix))
    await jobs.create_topics()
    release = asyncio.Event()
    runs: list[str] = []

    async def held(args: Anything, task: Task) -> None:
        runs.append(task.command_id)
        await release.wait()

    async with JobWorker(jobs, registry(held=held, noop=noop)) as worker:
        (first,) = await jobs.send(command_of("held", next(jobs.accounts)))
        await jobs.until_event(lambda event: isinstance(event, CommandStarted))
        await private_kafka.kill()
        release.set()
        await worker.until(lambda: not worker.engine.snapshot().running)
        await private_kafka.start()
        more = await jobs.send(*(command_of("noop", next(jobs.accounts)) for _ in range(10)))
        events = await jobs.concluded(11)
        assert outcome(events) == once([first, *more])
        assert runs == [first]
