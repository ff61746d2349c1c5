"""What is left out of Faust's consumer changes nothing of what is delivered and committed: `streams.agents.frugal`."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError
from aiokafka.structs import TopicPartition
from faust.types import TP

from streams.agents import frugal
from streams.agents.frugal import FrugalConsumer, FrugalThread, pace_fetches
from streams.agents.store import OFFSET_EVERY_S, Store
from streams.errors import ServiceUnavailable

EVERY_S = 0.05


class _Fetcher:
    def __init__(self) -> None:
        self.at: list[tuple[int, float]] = []

    async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
        self.at.append((node_id, time.monotonic()))
        return True


async def test_fetches_from_a_broker_are_apart_and_the_first_after_a_quiet_time_waits_for_nothing() -> None:
    fetcher = _Fetcher()
    pace_fetches(fetcher, every_s=EVERY_S)
    began = time.monotonic()
    for _ in range(3):
        assert await fetcher._proc_fetch_request(None, 1, None)
    assert fetcher.at[0][1] - began < EVERY_S / 2
    gaps = [later[1] - earlier[1] for earlier, later in zip(fetcher.at, fetcher.at[1:], strict=False)]
    assert min(gaps) >= EVERY_S * 0.9
    before = time.monotonic()
    await fetcher._proc_fetch_request(None, 2, None)
    assert time.monotonic() - before < EVERY_S / 2


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_fetch_that_is_cancelled_while_it_waits_ends_as_the_client_expects(pauses: bool) -> None:
    fetcher = _Fetcher()
    fetcher.at.append((1, 0.0))
    if pauses:  # after a failure, as aiokafka does

        async def fetch(assignment: Any, node_id: int, request: Any) -> bool:
            await asyncio.sleep(60)
            return True

        fetcher._proc_fetch_request = fetch  # type: ignore[method-assign]
    pace_fetches(fetcher, every_s=0.0 if pauses else 10.0)
    if not pauses:
        fetcher.at.clear()
        await fetcher._proc_fetch_request(None, 1, None)
    waiting = asyncio.create_task(fetcher._proc_fetch_request(None, 1, None))  # type: ignore[arg-type,var-annotated]
    await asyncio.sleep(0)
    waiting.cancel()
    assert await waiting is False
    assert len(fetcher.at) == 1


def test_the_assignment_is_remembered_until_there_is_another() -> None:
    client = SimpleNamespace(assigned=frozenset({TopicPartition("t", 0), TopicPartition("t", 1)}))
    client.assignment = lambda: client.assigned
    thread = FrugalThread.__new__(FrugalThread)
    thread._ensure_consumer = lambda: client  # type: ignore[method-assign,assignment,return-value]
    found = thread.assignment()
    assert found == {TP("t", 0), TP("t", 1)}
    found.clear()
    assert thread.assignment() == {TP("t", 0), TP("t", 1)}
    client.assigned = frozenset({TopicPartition("t", 1)})
    assert thread.assignment() == {TP("t", 1)}


async def test_s16_errors_of_the_coordination_are_taken_and_its_end_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frugal, "ATTEND_EVERY_S", 0.01)
    loop = asyncio.get_running_loop()
    crashed: asyncio.Future[BaseException] = loop.create_future()
    taken: list[str] = []

    class Coordinator:
        _heartbeat_task = _commit_refresh_task = None
        _coordination_task, _closing = loop.create_future(), loop.create_future()

        def check_errors(self) -> None:
            if self._coordination_task.done():
                self._coordination_task.result()
            if len(taken) < 2:
                taken.append("error")
                raise GroupAuthorizationFailedError("g")

    async def crash(reason: BaseException) -> None:
        crashed.set_result(reason)

    thread: Any = SimpleNamespace(should_stop=False, parent_loop=loop, app=SimpleNamespace(crash=crash))
    attending = asyncio.create_task(FrugalThread._attend(thread, Coordinator()))
    async with asyncio.timeout(5):
        while len(taken) < 2:
            await asyncio.sleep(0.01)
        assert not attending.done()
        Coordinator._coordination_task.set_exception(KafkaError("Unexpected error during coordination"))
        reason = await crashed
        await attending
    assert isinstance(reason, ServiceUnavailable)
    assert "coordination" in str(reason)


async def test_only_what_is_still_ours_is_committed_and_after_everything_sent_is_in_kafka() -> None:
    steps: list[object] = []

    async def flush() -> None:
        steps.append("flush")

    async def commit(offsets: Any) -> bool:
        steps.append(dict(offsets))
        return True

    consumer = FrugalConsumer.__new__(FrugalConsumer)
    consumer.app = SimpleNamespace(  # type: ignore[assignment]
        producer=SimpleNamespace(flush=flush),
        tables=SimpleNamespace(on_commit=lambda offsets: steps.append("tables")),
        monitor=SimpleNamespace(on_tp_commit=lambda offsets: None),
    )
    consumer._committed_offset = {}  # type: ignore[assignment]
    consumer._commit = commit  # type: ignore[method-assign]
    consumer.assignment = lambda: {TP("t", 0)}  # type: ignore[method-assign]
    assert await consumer._commit_offsets({TP("t", 0): 5, TP("t", 1): 9})
    assert steps == ["flush", {TP("t", 0): 5}, "tables"]
    assert not await consumer._commit_offsets({TP("t", 1): 9})
    assert len(steps) == 3


class _Database:
    def __init__(self) -> None:
        self.written: dict[bytes, bytes] = {}
        self.closed = False

    def put(self, key: bytes, value: bytes) -> None:
        assert not self.closed
        self.written[key] = value

    def get(self, key: bytes) -> bytes | None:
        return self.written.get(key)

    def close(self) -> None:
        self.closed = True


async def test_an_offset_is_written_now_and_then_and_always_before_the_database_closes() -> None:
    store = Store.__new__(Store)
    database = _Database()
    store._dbs = {3: database}  # type: ignore[dict-item]
    store._offsets, store._offset_written_at = {}, {}
    here, gone = TP("changelog", 3), TP("changelog", 4)
    for offset in range(10):
        store.set_persisted_offset(here, offset)
        assert store.persisted_offset(here) == offset
    assert database.written == {store.offset_key: b"0"}
    store._offset_written_at[3] -= OFFSET_EVERY_S
    store.set_persisted_offset(here, 10)
    assert database.written == {store.offset_key: b"10"}
    store.set_persisted_offset(here, 11)
    store.set_persisted_offset(gone, 7)
    assert set(store._dbs) == {3}, "a database that went is not opened again"
    await store.stop()
    assert database.written == {store.offset_key: b"11"}
    assert database.closed


async def test_w4_a_rebalance_that_a_stop_comes_into_opens_no_database_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    store = Store.__new__(Store)
    store._dbs, store._offsets, store._offset_written_at = {3: _Database()}, {}, {}  # type: ignore[dict-item]
    store.table_name, store.db_lock = "t", asyncio.Lock()
    store.table = SimpleNamespace(changelog_topic=SimpleNamespace(topics=["changelog"]))  # type: ignore[assignment]

    def open_one(partition: int) -> _Database:
        opened.append(partition)
        return _Database()

    monkeypatch.setattr(store, "_open_for_partition", open_one)
    await store.stop()
    assert store.persisted_offset(TP("changelog", 3)) is None
    await store.on_rebalance({TP("changelog", 3), TP("changelog", 4)}, set(), set())
    assert (opened, store._dbs) == ([], {})
