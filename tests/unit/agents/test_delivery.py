"""Order of acknowledgements, and what happens to records that Kafka does not take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError
from faust.exceptions import ProducerSendError

from streams.agents import delivery
from streams.agents.delivery import Deliveries
from streams.agents.plane import FaustOutbox
from streams.agents.ports import Outbox, Outgoing
from streams.contracts.topics import USER_ACTIVE, dead_letter_name
from streams.settings import Settings
from tests.unit.agents.fakes import FakeOutbox


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RESEND_MIN_S", 0.001)


@asynccontextmanager
async def running(outbox: Outbox, window: int = 4) -> AsyncIterator[tuple[Deliveries, list[int]]]:
    deliveries = Deliveries("t", outbox, window=window)
    task = asyncio.create_task(deliveries.run())
    acknowledged: list[int] = []
    try:
        yield deliveries, acknowledged
    finally:
        task.cancel()
        await asyncio.wait({task})


def note(acknowledged: list[int], number: int) -> Callable[[], None]:
    return lambda: acknowledged.append(number)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def record(name: str) -> Outgoing:
    return Outgoing(name, b"k", b"v")


async def test_events_are_acknowledged_in_order_after_their_records() -> None:
    outbox = FakeOutbox(hold=asyncio.get_running_loop().create_future())
    async with running(outbox) as (deliveries, acknowledged):
        for n in range(3):
            await deliveries.put([record(str(n))] if n == 0 else [], note(acknowledged, n), lambda: True)
        await asyncio.sleep(0.01)
        assert acknowledged == []
        assert deliveries.oldest_s() > 0
        assert outbox.hold is not None
        outbox.hold.set_result(None)
        await until(lambda: acknowledged == [0, 1, 2])
        assert deliveries.oldest_s() == 0


async def test_the_window_bounds_what_is_under_way() -> None:
    outbox = FakeOutbox(hold=asyncio.get_running_loop().create_future())
    async with running(outbox, window=2) as (deliveries, acknowledged):
        for n in range(2):
            await deliveries.put([record("a")], note(acknowledged, n), lambda: True)
        third = asyncio.create_task(deliveries.put([], lambda: acknowledged.append(2), lambda: True))
        await asyncio.sleep(0.01)
        assert not third.done()
        assert outbox.hold is not None
        outbox.hold.set_result(None)
        await until(lambda: acknowledged == [0, 1, 2])
        await third


@pytest.mark.parametrize("error", [KafkaTimeoutError, RuntimeError])
async def test_a_record_that_kafka_does_not_take_is_sent_until_it_does(error: type[Exception]) -> None:
    outbox = FakeOutbox(refuse=[error()], fail=[error(), error()])
    async with running(outbox) as (deliveries, acknowledged):
        await deliveries.put([record("a"), record("b")], lambda: acknowledged.append(1), lambda: True)
        await until(lambda: acknowledged)
        assert sorted(r.topic for r in outbox.sent) == ["a", "b"]


async def test_a_delivery_that_a_stopping_producer_cancels_is_sent_again() -> None:
    outbox = FakeOutbox(hold=asyncio.get_running_loop().create_future())
    async with running(outbox) as (deliveries, acknowledged):
        await deliveries.put([record("a")], lambda: acknowledged.append(1), lambda: True)
        hold, outbox.hold = outbox.hold, None
        assert hold is not None
        hold.cancel()
        await until(lambda: acknowledged)
    assert [r.topic for r in outbox.sent] == ["a", "a"]


async def test_an_event_of_somebody_else_by_now_is_not_acknowledged_and_holds_up_nothing() -> None:
    outbox = FakeOutbox(fail=[KafkaTimeoutError()])
    async with running(outbox) as (deliveries, acknowledged):
        await deliveries.put([record("a")], lambda: acknowledged.append(1), lambda: False)
        await deliveries.put([record("b")], lambda: acknowledged.append(2), lambda: True)
        await until(lambda: acknowledged)
        assert acknowledged == [2]


@pytest.mark.parametrize("where", ["refuse", "fail"])
async def test_w13_a_dead_letter_that_became_too_large_is_cut(where: str) -> None:
    outbox = FakeOutbox()
    getattr(outbox, where).append(MessageSizeTooLargeError())
    async with running(outbox) as (deliveries, acknowledged):
        await deliveries.put([Outgoing("t.dlq", b"k", b"v" * 1_000_000)], lambda: acknowledged.append(1), lambda: True)
        await until(lambda: acknowledged)
    (sent,) = outbox.sent
    assert sent.value == b"v" * 500_000
    assert ("dlq_truncated", b"true") in sent.headers


async def test_w13_a_dead_letter_that_is_too_large_for_fausts_producer_is_cut() -> None:
    """Faust's limit is below the topics', and it has an error of its own for that; the topic must not stand still."""
    sent: list[tuple[Any, ...]] = []

    class Producer:
        async def send(self, *arguments: Any) -> asyncio.Future[None]:
            if len(arguments[2]) > 1_000_000:
                try:
                    raise MessageSizeTooLargeError
                except KafkaError as error:
                    raise ProducerSendError(f"Error while sending: {error!r}") from error
            sent.append(arguments)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

    class App:
        async def maybe_start_producer(self) -> Producer:
            return Producer()

    letter = dead_letter_name(USER_ACTIVE)
    async with running(FaustOutbox(App(), Settings())) as (deliveries, acknowledged):
        await deliveries.put([Outgoing(letter, b"k", b"v" * 1_100_000)], lambda: acknowledged.append(1), lambda: True)
        await until(lambda: acknowledged)
    ((topic, key, value, *_, headers),) = sent
    assert (topic, key, value) == (letter, b"k", b"v" * 524_288)
    assert ("dlq_truncated", b"true") in headers
