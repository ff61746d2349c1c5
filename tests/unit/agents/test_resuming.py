"""After a rebalance every partition is rewound, and events are let in last: `streams.agents.resuming`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.tables.recovery import RebalanceAgain, Recovery, ServiceStopped

from streams.agents.resuming import OrderlyRecovery, RewindingThread
from streams.contracts.topics import STATE_CHANGED


class _Client:
    """What `RewindingThread` uses of an aiokafka consumer."""

    def __init__(self, assigned: set[object], committed: dict[object, int]) -> None:
        self._assigned, self._committed = assigned, committed
        self._coordinator = self
        self.sought: dict[object, int] = {}

    def assignment(self) -> set[object]:
        return self._assigned

    async def fetch_committed_offsets(self, partitions: list[object]) -> dict[object, object]:
        return {tp: OffsetAndMetadata(self._committed[tp], "") for tp in partitions if tp in self._committed}

    def seek(self, tp: object, offset: int) -> None:
        self.sought[tp] = offset


async def test_partitions_without_a_committed_offset_are_set_to_their_beginning() -> None:
    source, changelog = STATE_CHANGED, "accounts-changelog"
    parts = [TopicPartition(source, number) for number in range(4)]
    client = _Client({*parts, TopicPartition(changelog, 0)}, {parts[0]: 7, parts[1]: 0, parts[2]: -1})
    thread = RewindingThread.__new__(RewindingThread)
    thread._ensure_consumer = lambda: client  # type: ignore[method-assign,assignment,return-value]
    found = await thread._rewind(frozenset({changelog}))
    assert found == client.sought == {parts[0]: 7, parts[1]: 0, parts[2]: 0, parts[3]: 0}


class _Recorder:
    """Takes any call and writes down its name."""

    def __init__(self, calls: list[str], **values: Any) -> None:
        self._calls = calls
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self._calls.append(name)

        return call


async def test_queues_are_emptied_and_offsets_sought_before_events_are_let_in() -> None:
    """The recovery itself tells its end: Faust tells sensors nothing of it when the next rebalance began meanwhile."""
    calls: list[str] = []

    async def perform_seek() -> None:
        calls.append("perform_seek")

    async def nothing() -> None:
        pass

    source = TopicPartition(STATE_CHANGED, 0)
    consumer = _Recorder(calls, assignment=lambda: {source}, perform_seek=perform_seek)
    app = SimpleNamespace(
        consumer=consumer,
        consumer_generation_id=3,
        conf=SimpleNamespace(broker_request_timeout=5.0),
        on_rebalance_complete=SimpleNamespace(send=nothing),
        flow_control=SimpleNamespace(resume=lambda: calls.append("empty_queues")),
        _fetcher=SimpleNamespace(maybe_start=nothing),
        assignor=SimpleNamespace(assigned_standbys=set),
        on_rebalance_end=lambda: calls.append("on_rebalance_end"),
    )
    recovery = OrderlyRecovery.__new__(OrderlyRecovery)
    tables = _Recorder([], changelog_topics=set(), values=list, resumed=lambda g: calls.append(f"resumed {g}"))
    recovery.__dict__.update(
        app=app,
        tables=tables,
        completed=asyncio.Event(),
        log=_Recorder([]),
        actives_for_table={},
        standbys_for_table={},
    )
    recovery._set_recovery_ended = lambda: None  # type: ignore[method-assign]
    recovery._wait = lambda coro, timeout=None: coro  # type: ignore[method-assign,assignment]
    await recovery.on_recovery_completed(3)
    assert calls == [
        "pause_partitions",
        "perform_seek",
        "empty_queues",
        "resume_partitions",
        "resume_flow",
        "on_rebalance_end",
        "resumed 3",
    ]


async def test_a_step_that_takes_too_long_begins_the_recovery_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def timed_out(self: Any, coro: Any, timeout: Any = None) -> None:
        coro.close()
        raise ServiceStopped

    async def step() -> None:
        pass

    monkeypatch.setattr(Recovery, "_wait", timed_out)
    recovery = OrderlyRecovery.__new__(OrderlyRecovery)
    again, stopped = asyncio.Event(), asyncio.Event()
    recovery.__dict__.update(log=_Recorder([]), _stopped=stopped, _crashed=asyncio.Event())
    recovery._signal_recovery_start = again  # type: ignore[assignment]
    with pytest.raises(RebalanceAgain):
        await recovery._wait(step(), 1.0)
    assert again.is_set()
    stopped.set()
    with pytest.raises(ServiceStopped):
        await recovery._wait(step(), 1.0)


@pytest.mark.parametrize("told", [[-1], [-2], [None], []])
async def test_changelogs_without_a_known_offset_are_read_from_their_beginning(told: list[int | None]) -> None:
    sought: dict[Any, int] = {}

    async def seek_wait(offsets: dict[Any, int]) -> None:
        sought.update(offsets)

    first, second = TopicPartition("accounts-changelog", 0), TopicPartition("accounts-changelog", 1)
    offsets = {second: 7, **dict(zip([first], told, strict=False))}
    recovery = OrderlyRecovery.__new__(OrderlyRecovery)
    await recovery._seek_offsets(SimpleNamespace(seek_wait=seek_wait), {first, second}, offsets, "standby")
    assert sought == {first: 0, second: 7}
