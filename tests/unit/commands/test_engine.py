"""The engine on lanes in memory: validation, retries, progress, order, concurrency, conclusion."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from streams.commands.handlers import Handlers, Task, TaskFailed
from streams.commands.memory_lane import MemoryTopic
from streams.contracts.commands import CommandFailure, CommandProgress, CommandStarted, CommandSuccess
from streams.domain.retry import RetryLimits
from streams.errors import AccessDenied, HostBusy, ProducerLost
from tests.unit.commands.rig import ACCOUNT, Anything, Rig, accounts, command_of, conclusions, noop, registry, running


class Gates:
    """Lets a test hold handlers and see that they have begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = asyncio.Event()
        self.most = 0
        self.now = 0

    async def handler(self, args: Anything, task: Task) -> dict[str, Any]:
        self.begun.append(task.command_id)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.open.wait()
        finally:
            self.now -= 1
        return {"number": args.number}


# --- W12, W15: what is published -----------------------------------------------------------------------------------
async def test_w12_a_command_is_started_and_concluded() -> None:
    async with running(Rig(registry(noop=noop))) as rig:
        command_id = rig.send("noop", number=7)
        await rig.finish()
        started, success = rig.events(command_id)
        assert isinstance(started, CommandStarted)
        assert isinstance(success, CommandSuccess)
        assert (started.attempt, started.worker, success.result) == (1, "w1", {"number": 7})
        assert rig.topic.position == 1
        assert rig.observer.counts["finished", "noop", "success", ""] == 1


async def test_w12_progress_rises_and_drops_are_counted() -> None:
    async def reporting(args: Anything, task: Task) -> None:
        for fraction in (0.1, 0.1, 0.5, 2.0):
            task.progress(fraction, counts={"messages": 1})
            await asyncio.sleep(0)
        task.progress(0.6, message=3)  # type: ignore[arg-type]
        task.progress(0.9)

    async with running(Rig(registry(reporting=reporting))) as rig:
        command_id = rig.send("reporting")
        await rig.finish()
        fractions = [event.fraction for event in rig.events(command_id) if isinstance(event, CommandProgress)]
        assert fractions == sorted(set(fractions))
        assert set(fractions) <= {0.1, 0.5, 0.9}
        counts = rig.observer.counts
        assert counts["progress_dropped", "not_increasing"] == 1
        assert counts["progress_dropped", "invalid_fraction"] == 1
        assert counts["progress_dropped", "invalid_payload"] == 1
        dropped = sum(count for key, count in counts.items() if key[0] == "progress_dropped")
        assert len(fractions) + dropped == 6


async def test_w12_progress_is_coalesced_while_the_log_is_slow() -> None:
    gates = Gates()

    async def reporting(args: Anything, task: Task) -> None:
        for step in range(1, 101):
            task.progress(step / 100)
        await gates.open.wait()

    async with running(Rig(registry(reporting=reporting))) as rig:
        rig.lane.hold()
        command_id = rig.send("reporting")
        await rig.until(lambda: rig.observer.counts["progress_dropped", "coalesced"] == 98)
        rig.lane.release()
        await rig.until(lambda: len(rig.events(command_id)) == 3)
        gates.open.set()
        await rig.finish()
        fractions = [event.fraction for event in rig.events(command_id) if isinstance(event, CommandProgress)]
        assert fractions == [0.01, 1.0]


async def test_w12_reports_after_the_conclusion_are_dropped() -> None:
    kept: list[Task] = []

    async def keeping(args: Anything, task: Task) -> None:
        kept.append(task)

    async with running(Rig(registry(keeping=keeping))) as rig:
        rig.send("keeping")
        await rig.finish()
        kept[0].progress(0.5)
        await rig.until(lambda: rig.observer.counts["progress_dropped", "concluded"] == 1)
        assert not [event for event in rig.events() if isinstance(event, CommandProgress)]


async def test_w15_a_command_sent_twice_is_run_and_concluded_once() -> None:
    runs: list[str] = []

    async def counting(args: Anything, task: Task) -> None:
        runs.append(task.command_id)
        await asyncio.sleep(0)

    async with running(Rig(registry(counting=counting))) as rig:
        for _ in range(3):
            rig.send("counting", command_id="same")
        await rig.finish()
        rig.send("counting", command_id="same")
        await rig.finish()
        assert runs == ["same"]
        assert len(conclusions(rig.events("same"))) == 1
        assert rig.topic.position == 4


async def test_w15_a_duplicate_does_not_expire_beside_the_running_one() -> None:
    gates = Gates()
    async with running(Rig(registry(held=gates.handler))) as rig:
        rig.send("held", command_id="same", expires_s=0.05)
        rig.send("held", command_id="same", expires_s=0.05)
        await asyncio.wait({asyncio.ensure_future(rig.session.lost)}, timeout=0.1)
        gates.open.set()
        await rig.finish()
        assert [type(event) for event in conclusions(rig.events("same"))] == [CommandSuccess]


async def test_w15_what_a_handler_emits_is_seen_with_the_conclusion_only() -> None:
    async def emitting(args: Anything, task: Task) -> None:
        task.emit("elsewhere", b"%d" % task.attempt, key=b"k")
        if task.attempt == 1:
            raise TaskFailed("temporary", "again", retryable=True)

    handlers = Handlers()
    handlers.add("emitting", emitting, args=Anything, emits=["elsewhere"])
    async with running(Rig(handlers)) as rig:
        rig.send("emitting")
        await rig.finish()
        assert [record.value for record in rig.topic.committed if record.topic == "elsewhere"] == [b"2"]


# --- W13: poison ---------------------------------------------------------------------------------------------------
def poison() -> list[tuple[str, bytes, bytes | None]]:
    good = msgspec.json.encode(command_of("noop"))
    return [
        ("not_json", ACCOUNT.encode(), b"{"),
        ("not_json", ACCOUNT.encode(), None),
        ("schema", ACCOUNT.encode(), b'{"command_id":"x"}'),
        ("schema", ACCOUNT.encode(), b"[" * 3),
        ("too_large", ACCOUNT.encode(), b" " * 300_000),
        ("wrong_key", b"someone else", good),
        ("unknown_kind", ACCOUNT.encode(), msgspec.json.encode(command_of("mystery"))),
        ("expired", ACCOUNT.encode(), msgspec.json.encode(command_of("noop", expires_s=-1))),
        ("schema", ACCOUNT.encode(), msgspec.json.encode(command_of("noop", number="many"))),
    ]


async def test_w13_each_kind_of_poison_goes_to_the_dead_letters_and_the_stream_goes_on() -> None:
    cases = poison()
    async with running(Rig(registry(noop=noop))) as rig:
        for _, key, value in cases:
            rig.topic.produce(key, value)
            rig.send("noop")
        await rig.finish()
        assert sorted(reason for reason, _ in rig.letters()) == sorted(reason for reason, _, _ in cases)
        assert rig.observer.counts["finished", "noop", "success", ""] == len(cases)
        assert rig.topic.position == 2 * len(cases)
        originals = {value or b"" for _, _, value in cases}
        assert {value or b"" for _, value in rig.letters()} == originals


async def test_w13_a_sender_that_can_be_told_is_told() -> None:
    async with running(Rig(registry(noop=noop))) as rig:
        for kind, rest in (("mystery", {}), ("noop", {"expires_s": -1}), ("noop", {"number": "many"})):
            rig.send(kind, **rest)
        await rig.finish()
        codes = [event.code for event in rig.events() if isinstance(event, CommandFailure)]
        assert codes == ["unknown_kind", "expired", "schema"]


async def test_w13_a_command_on_the_wrong_partition_is_sent_on() -> None:
    elsewhere = next(accounts(partitions=4, partition=3))
    async with running(Rig(registry(noop=noop), partitions=4)) as rig:
        rig.send("noop", elsewhere)
        await rig.finish()
        (record,) = rig.topic.committed
        assert (record.topic, record.partition, record.key) == ("sync.jobs", 3, elsewhere.encode())
        assert rig.observer.counts["rekeyed", "sync.jobs"] == 1


async def test_w13_ten_thousand_poison_records_between_valid_ones() -> None:
    async with running(Rig(registry(noop=noop))) as rig:
        for number in range(10_000):
            rig.topic.produce(b"junk", b"\xff" * (number % 7))
            if number % 1000 == 0:
                rig.send("noop", number=number)
        rig.feed()
        await rig.finish()
        assert len(rig.letters()) == 10_000
        assert len(conclusions(rig.events())) == 10
        assert rig.topic.position == 10_010


# --- W14: retries --------------------------------------------------------------------------------------------------
async def test_w14_a_retryable_failure_is_tried_again_up_to_the_limit() -> None:
    attempts: list[int] = []

    async def failing(args: Anything, task: Task) -> None:
        attempts.append(task.attempt)
        raise HostBusy("slow down")

    async with running(Rig(registry(failing=failing))) as rig:
        command_id = rig.send("failing")
        await rig.finish()
        assert attempts == [1, 2, 3, 4]
        (failure,) = conclusions(rig.events(command_id))
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.retryable, failure.attempts) == ("host_busy", True, 4)
        assert rig.observer.counts["retried", "failing", "host_busy"] == 3
        assert sum(isinstance(event, CommandStarted) for event in rig.events(command_id)) == 1


async def test_w14_a_permanent_failure_is_concluded_at_once_with_its_code() -> None:
    async def refusing(args: Anything, task: Task) -> None:
        raise AccessDenied("IMAP is switched off")

    async with running(Rig(registry(refusing=refusing))) as rig:
        rig.send("refusing")
        await rig.finish()
        (failure,) = conclusions(rig.events())
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.retryable, failure.attempts) == ("access_denied", False, 1)
        assert rig.letters() == []


async def test_w14_a_bug_in_a_handler_is_retried_then_dead_lettered_and_its_text_not_published() -> None:
    async def broken(args: Anything, task: Task) -> None:
        raise RuntimeError("password=hunter2")

    async with running(Rig(registry(broken=broken))) as rig:
        rig.send("broken")
        await rig.finish()
        (failure,) = conclusions(rig.events())
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.attempts) == ("handler_failed", 4)
        assert [reason for reason, _ in rig.letters()] == ["handler_failed"]
        assert all(b"hunter2" not in (record.value or b"") for record in rig.topic.committed)


async def test_w14_a_handler_over_its_time_is_cancelled_and_tried_again() -> None:
    cancelled = 0

    async def slow(args: Anything, task: Task) -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    handlers = Handlers()
    handlers.add("slow", slow, args=Anything, timeout_s=0.02)
    async with running(Rig(handlers)) as rig:
        rig.send("slow")
        await rig.finish()
        (failure,) = conclusions(rig.events())
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.attempts, cancelled) == ("timed_out", 4, 4)


@pytest.mark.parametrize("result", [3, "text", [1], {"x": object()}, {"x": "\udc80"}, {"x": "y" * 2_000_000}])
async def test_w14_a_result_that_cannot_be_published_is_a_failure(result: Any) -> None:
    async def odd(args: Anything, task: Task) -> Any:
        return result

    async with running(Rig(registry(odd=odd))) as rig:
        rig.send("odd")
        await rig.finish()
        (failure,) = conclusions(rig.events())
        assert isinstance(failure, CommandFailure)
        assert failure.code == "result_invalid"


# --- order and concurrency -----------------------------------------------------------------------------------------
async def test_commands_of_one_account_run_in_order_and_one_at_a_time() -> None:
    order: list[int] = []
    at_once = 0

    async def ordered(args: Anything, task: Task) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(0)
        if args.number == 2 and task.attempt == 1:
            at_once -= 1
            raise TaskFailed("temporary", "again", retryable=True)
        order.append(args.number)
        at_once -= 1

    async with running(Rig(registry(ordered=ordered))) as rig:
        for number in range(1, 6):
            rig.send("ordered", number=number)
        await rig.finish()
        assert order == [1, 2, 3, 4, 5]


async def test_accounts_run_side_by_side_up_to_the_concurrency() -> None:
    gates, ids = Gates(), accounts()
    async with running(Rig(registry(held=gates.handler), concurrency=4)) as rig:
        for _ in range(10):
            rig.send("held", next(ids))
        await rig.until(lambda: len(gates.begun) == 4)
        gates.open.set()
        await rig.finish()
        assert gates.most == 4
        assert len(conclusions(rig.events())) == 10


async def test_a_slow_account_holds_up_no_other_and_is_passed_by_at_most_ahead() -> None:
    gates, ids = Gates(), accounts()
    slow = next(ids)
    async with running(Rig(registry(held=gates.handler, noop=noop), ahead=50)) as rig:
        rig.send("held", slow)
        for _ in range(100):
            rig.send("noop", next(ids))
        await rig.until(lambda: len(conclusions(rig.events())) == 49)
        assert rig.session.room == 0
        assert rig.topic.position == 0
        gates.open.set()
        await rig.finish()
        assert rig.topic.position == 101


async def test_reading_goes_on_when_entries_and_not_deliveries_have_used_up_the_room() -> None:
    """A command that has begun, reported and ended has three entries on their way: 2 commands fill 6 places of 6."""
    gates, ids = Gates(), accounts()

    async def reporting(args: Anything, task: Task) -> None:
        task.progress(0.5)
        await gates.open.wait()

    async with running(Rig(registry(reporting=reporting, noop=noop), ahead=6)) as rig:
        rig.lane.hold()
        for _ in range(2):
            rig.send("reporting", next(ids))
        await rig.until(lambda: rig.session.room == 2)
        gates.open.set()
        await rig.until(lambda: not rig.engine.snapshot().running)
        for _ in range(5):
            rig.send("noop", next(ids))
        assert rig.session.next_offset == 2, "there is no room"
        rig.lane.release()
        await rig.finish()
        assert len(conclusions(rig.events())) == 7


async def test_an_attempt_that_waits_for_its_retry_gives_its_place_to_others() -> None:
    ids = accounts()

    async def failing(args: Anything, task: Task) -> None:
        raise TaskFailed("temporary", "later", retryable=True, retry_after_s=0.04)

    async with running(Rig(registry(failing=failing, noop=noop), concurrency=1)) as rig:
        rig.send("failing", next(ids))
        rig.send("noop", next(ids))
        await rig.finish()
        kinds = [event.kind for event in conclusions(rig.events())]
        assert kinds == ["noop", "failing"]


# --- W5, W6: the end -----------------------------------------------------------------------------------------------
async def test_w5_what_runs_may_finish_within_the_grace() -> None:
    gates = Gates()
    async with running(Rig(registry(held=gates.handler))) as rig:
        command_id = rig.send("held")
        rig.send("held")
        await rig.until(lambda: gates.begun)
        draining = asyncio.create_task(rig.engine.drain(5.0))
        await asyncio.sleep(0)
        gates.open.set()
        report = await draining
        assert report.requeued == 0
        assert [event.command_id for event in conclusions(rig.events())] == [command_id]
        assert rig.topic.position == 1


async def test_w5_after_the_grace_the_rest_is_cancelled_and_left_to_a_peer() -> None:
    gates, topic = Gates(), MemoryTopic()
    async with running(Rig(registry(held=gates.handler), topic=topic)) as rig:
        command_id = rig.send("held")
        await rig.until(lambda: gates.begun)
        report = await rig.engine.drain(0.0)
        assert report.requeued == 1
        assert rig.observer.counts["requeued",] == 1
        assert topic.position == 0
    gates.open.set()
    async with running(Rig(registry(held=gates.handler), topic=topic, worker="w2")) as peer:
        peer.feed()
        await peer.finish()
        (success,) = conclusions(peer.events(command_id))
        assert (success.worker, success.attempt) == ("w2", 1)


async def test_w5_a_stop_interrupts_the_backoff_and_the_attempts_made_still_count() -> None:
    async def failing(args: Anything, task: Task) -> None:
        raise TaskFailed("temporary", "later", retryable=True)

    patient = RetryLimits(retries=3, backoff_s=60.0, backoff_max_s=60.0, attempt_s=5.0, give_up_s=600.0)
    topic = MemoryTopic()
    async with running(Rig(registry(failing=failing), topic=topic, retry=patient)) as rig:
        command_id = rig.send("failing")
        await rig.until(lambda: rig.engine.snapshot().backing_off == 1)
        report = await rig.engine.drain(30.0)
        assert report.requeued == 1
    async with running(Rig(registry(failing=failing), topic=topic, worker="w2")) as peer:
        peer.feed()
        await peer.finish()
        (failure,) = conclusions(peer.events(command_id))
        assert isinstance(failure, CommandFailure)
        assert failure.attempts == 4


async def test_w6_a_second_signal_skips_the_grace() -> None:
    gates = Gates()
    hurried = asyncio.Event()
    async with running(Rig(registry(held=gates.handler))) as rig:
        rig.send("held")
        await rig.until(lambda: gates.begun)
        draining = asyncio.create_task(rig.engine.drain(600.0, hurried))
        await asyncio.sleep(0)
        hurried.set()
        async with asyncio.timeout(2):
            assert (await draining).requeued == 1


async def test_w7_w17_a_thread_that_ignores_the_end_is_named_and_does_not_hold_it_up() -> None:
    release = threading.Event()

    def stuck(args: Anything, task: Task) -> None:
        release.wait(30)

    try:
        async with running(Rig(registry(stuck=stuck))) as rig:
            command_id = rig.send("stuck")
            await rig.until(lambda: rig.engine.snapshot().running)
            async with asyncio.timeout(2):
                report = await rig.engine.drain(0.0)
            assert report.ignored == (f"stuck:{command_id}",)
            assert report.requeued == 1
    finally:
        release.set()


# --- W9, W17 -------------------------------------------------------------------------------------------------------
async def test_w9_tasks_over_their_limit_and_its_grace_are_reported_then_given_up() -> None:
    release = threading.Event()

    def stuck(args: Anything, task: Task) -> None:
        release.wait(30)

    limits = RetryLimits(retries=3, backoff_s=0.01, backoff_max_s=0.04, attempt_s=0.05, give_up_s=0.4)
    try:
        async with running(Rig(registry(stuck=stuck), retry=limits, overrun_grace_s=0.05)) as rig:
            command_id = rig.send("stuck")
            await rig.until(lambda: rig.engine.snapshot().overrunning == (command_id,))
            await rig.finish()
            (failure,) = conclusions(rig.events(command_id))
            assert isinstance(failure, CommandFailure)
            assert failure.code == "stuck"
            assert rig.engine.snapshot().stuck == 1
            assert rig.topic.position == 1
    finally:
        release.set()


async def test_w17_a_def_handler_runs_in_a_thread_and_may_report_and_return() -> None:
    def blocking(args: Anything, task: Task) -> dict[str, Any]:
        task.progress(0.5, message="half")
        return {"thread": threading.current_thread() is not threading.main_thread()}

    async with running(Rig(registry(blocking=blocking))) as rig:
        command_id = rig.send("blocking")
        await rig.finish()
        (success,) = conclusions(rig.events(command_id))
        assert isinstance(success, CommandSuccess)
        assert success.result == {"thread": True}


async def test_w17_a_def_handler_sees_that_it_is_to_stop() -> None:
    def looking(args: Anything, task: Task) -> None:
        while True:
            task.check()
            threading.Event().wait(0.001)

    handlers = Handlers()
    handlers.add("looking", looking, args=Anything, timeout_s=0.02)
    async with running(Rig(handlers)) as rig:
        rig.send("looking")
        await rig.finish()
        (failure,) = conclusions(rig.events())
        assert isinstance(failure, CommandFailure)
        assert failure.code == "timed_out"


# --- S3, W15: loss of the lane -------------------------------------------------------------------------------------
async def test_w15_nothing_of_a_lost_lane_is_published_and_the_next_owner_concludes() -> None:
    gates, topic = Gates(), MemoryTopic()
    async with running(Rig(registry(held=gates.handler), topic=topic)) as old:
        command_id = old.send("held")
        await old.until(lambda: gates.begun and old.events(command_id))
        async with running(Rig(registry(held=gates.handler), topic=topic, worker="w2")) as new:
            gates.open.set()
            async with asyncio.timeout(5):
                assert isinstance(await old.session.lost, ProducerLost)
            new.feed()
            await new.finish()
            (success,) = conclusions(new.events(command_id))
            assert (success.worker, success.attempt) == ("w2", 2)
        assert old.observer.counts["acknowledge_failed", "sync.jobs"] == 1
        assert old.observer.counts["publish_failed", "success"] == 1
        assert old.observer.counts["finished", "held", "success", ""] == 0


async def test_a_command_that_takes_its_worker_down_every_time_is_concluded_in_the_end() -> None:
    topic = MemoryTopic()
    for number in range(20):
        gates = Gates()
        rig = Rig(registry(held=gates.handler), topic=topic, worker=f"w{number}")
        if number == 0:
            rig.send("held", command_id="killer")
        rig.feed()
        await rig.until(lambda rig=rig: rig.engine.snapshot().running or rig.topic.position == 1)  # type: ignore[misc]
        await rig.until(lambda rig=rig, number=number: len(rig.events()) > number)  # type: ignore[misc]
        rig.engine.detach(rig.session)  # as if the process were gone: nothing is handed back
        await rig.until(lambda rig=rig: not rig.engine.snapshot().running)  # type: ignore[misc]
        if topic.position == 1:
            break
    (failure,) = conclusions(rig.events("killer"))
    assert isinstance(failure, CommandFailure)
    assert failure.code == "lost"
    assert failure.attempts == 9
    assert [reason for reason, _ in rig.letters()] == ["handler_failed"]


# --- W8: the quota -------------------------------------------------------------------------------------------------
async def test_w8_never_more_is_started_than_the_quota() -> None:
    async with running(Rig(registry(noop=noop), quota=2, concurrency=1)) as rig:
        rig.topic.produce(b"junk", b"junk")
        ids = [rig.send("noop") for _ in range(5)]
        await rig.until(lambda: rig.engine.taken == 2 and len(conclusions(rig.events())) == 2)
        assert rig.engine.quota_reached
        assert not rig.engine.hungry
        await rig.engine.drain(1.0)
        assert [event.command_id for event in conclusions(rig.events())] == ids[:2]
        assert rig.topic.position == 3


# --- handlers of others --------------------------------------------------------------------------------------------
@pytest.fixture
def once() -> Iterator[RetryLimits]:
    """Limits without retries; the faults that are logged are not written out, which takes longer than all else."""
    with capture_logs():
        yield RetryLimits(retries=0, backoff_s=0.01, backoff_max_s=0.04, attempt_s=5.0, give_up_s=60.0)


class _Untold(TaskFailed):
    def __init__(self) -> None: ...


class _Mute(TaskFailed):
    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TaskFailed("x" * 2_000_000, "m"), id="a code larger than a record"),
        pytest.param(TaskFailed("\ud800", "m"), id="a code that is no text"),
        pytest.param(TaskFailed(None, "m"), id="no code"),  # type: ignore[arg-type]
        pytest.param(TaskFailed("x", "m", retryable=True, retry_after_s="5"), id="a wait that is no number"),  # type: ignore[arg-type]
        pytest.param(
            TaskFailed("x", "m", retryable=True, retry_after_s=float("nan")), id="a wait that is not a number"
        ),
        pytest.param(HostBusy("m", code=b"x"), id="bytes as a code"),  # type: ignore[arg-type]
        pytest.param(_Untold(), id="an error without its parts"),
        pytest.param(_Mute("x", "m"), id="an error without a text"),
    ],
)
async def test_w15_an_error_that_cannot_be_published_is_a_fault_of_the_handler(
    error: Exception, once: RetryLimits
) -> None:
    async def failing(args: Anything, task: Task) -> None:
        raise error

    async with running(Rig(registry(failing=failing, noop=noop), retry=once)) as rig:
        command_id, next_id = rig.send("failing"), rig.send("noop")
        await rig.finish()
        (failure,) = conclusions(rig.events(command_id))
        assert isinstance(failure, CommandFailure)
        assert failure.code == "handler_failed"
        assert [reason for reason, _ in rig.letters()] == ["handler_failed"]
        assert isinstance(conclusions(rig.events(next_id))[0], CommandSuccess)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("threaded", [False, True])
async def test_w7_w15_a_handler_that_exits_does_not_end_the_event_loop(
    error: BaseException, threaded: bool, once: RetryLimits
) -> None:
    async def exiting(args: Anything, task: Task) -> None:
        raise error

    def exiting_thread(args: Anything, task: Task) -> None:
        raise error

    async with running(Rig(registry(exiting=exiting_thread if threaded else exiting), retry=once)) as rig:
        command_id = rig.send("exiting")
        await rig.finish()
        (failure,) = conclusions(rig.events(command_id))
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.message) == ("handler_failed", f"the handler raised {type(error).__name__}")


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"value": "text"}, id="value"),
        pytest.param({"key": "text"}, id="key"),
        pytest.param({"kind": 3}, id="kind"),
        pytest.param({"headers": [("name", "text")]}, id="value of a header"),
        pytest.param({"headers": [("name", None)]}, id="no value of a header"),
        pytest.param({"headers": [(b"name", b"")]}, id="name of a header"),
        pytest.param({"headers": [("\ud800", b"")]}, id="name that is no text"),
        pytest.param({"headers": [b"name"]}, id="no pair"),
    ],
)
async def test_w15_what_kafka_cannot_take_is_refused_when_it_is_emitted(
    wrong: dict[str, Any], once: RetryLimits
) -> None:
    async def emitting(args: Anything, task: Task) -> None:
        task.emit("elsewhere", **{"value": b"", **wrong})

    handlers = Handlers()
    handlers.add("emitting", emitting, args=Anything, emits=["elsewhere"])
    async with running(Rig(handlers, retry=once)) as rig:
        command_id = rig.send("emitting")
        await rig.finish()
        (failure,) = conclusions(rig.events(command_id))
        assert isinstance(failure, CommandFailure)
        assert failure.code == "handler_failed"
        assert not [record for record in rig.topic.committed if record.topic == "elsewhere"]


async def test_w10_tasks_in_flight_are_those_that_run_whatever_becomes_of_them() -> None:
    gates = Gates()

    async def failing(args: Anything, task: Task) -> None:
        raise HostBusy("slow down")

    def in_flight(kind: str) -> int:
        return rig.observer.counts["started", kind] - rig.observer.counts["stopped", kind]

    async with running(Rig(registry(waiting=gates.handler, failing=failing))) as rig:
        rig.send("failing")
        for kind, rest in (("mystery", {}), ("waiting", {"expires_s": -1}), ("waiting", {"number": "many"})):
            rig.send(kind, **rest)
        await rig.finish()
        assert {in_flight(kind) for kind in ("failing", "mystery", "waiting")} == {0}
        rig.send("waiting")
        rig.feed()
        await rig.until(lambda: bool(gates.begun))
        assert in_flight("waiting") == 1
        rig.engine.detach(rig.session)  # its lane is lost: nothing is concluded here
        await rig.until(lambda: in_flight("waiting") == 0)
