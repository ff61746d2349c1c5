"""Repeated steps (S16) and the announcements of the comparison with the database (S7)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from aiokafka.errors import KafkaTimeoutError

from streams.agents import announcements
from streams.agents.announcements import Announcements
from streams.agents.periodic import every
from streams.contracts.account import AccountStateChanged
from streams.contracts.codec import header
from streams.contracts.topics import STATE_CHANGED
from streams.errors import ServiceUnavailable
from tests.unit.agents.fakes import FakeOutbox

A = "00000000-0000-4000-8000-00000000000a"
EVENT = AccountStateChanged(account_id=A, user_id="u", state="live", at=datetime(2026, 11, 30, tzinfo=UTC), version=4)


@pytest.mark.parametrize("error", [ServiceUnavailable("PostgreSQL is away"), ZeroDivisionError()])
async def test_s16_a_step_that_fails_comes_again(error: Exception) -> None:
    rounds: list[int] = []

    async def step() -> None:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise error
        done.set()

    done = asyncio.Event()
    task = asyncio.create_task(every(0.001, "step", step))
    async with asyncio.timeout(5):
        await done.wait()
    task.cancel()
    await asyncio.wait({task})
    assert len(rounds) >= 3


async def test_s7_an_announcement_is_public_and_keyed_by_account() -> None:
    outbox = FakeOutbox()
    announcing = Announcements(outbox)
    await announcing.publish(EVENT)
    await announcing.delivered()
    (sent,) = outbox.sent
    assert (sent.topic, sent.key) == (STATE_CHANGED, A.encode())
    assert header(sent.headers, "ce_type") == b"account.state_changed"
    assert header(sent.headers, "ce_id") == f"{A}/4".encode()


async def test_s7_announcements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "UNDER_WAY", 2)
    outbox = FakeOutbox(hold=asyncio.get_running_loop().create_future())
    announcing = Announcements(outbox)
    await announcing.publish(EVENT)
    await announcing.publish(EVENT)
    third = asyncio.create_task(announcing.publish(EVENT))
    await asyncio.sleep(0.01)
    assert not third.done()
    assert outbox.hold is not None
    outbox.hold.set_result(None)
    await third
    await announcing.delivered()
    assert len(outbox.sent) == 3


@pytest.mark.parametrize("where", ["refuse", "fail"])
async def test_s7_an_announcement_that_kafka_does_not_take_fails_the_comparison(where: str) -> None:
    outbox = FakeOutbox()
    getattr(outbox, where).append(KafkaTimeoutError())

    async def announce() -> None:
        announcing = Announcements(outbox)
        await announcing.publish(EVENT)
        await announcing.delivered()

    with pytest.raises(ServiceUnavailable):
        await announce()
