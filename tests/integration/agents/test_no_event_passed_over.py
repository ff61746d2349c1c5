"""Each event is handled though rebalances follow one another: what Faust by itself passes over (S8, cases 108 and 109).

Every event is of an account of its own, so that a later event cannot hide the loss of an earlier one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.services import Broker
from tests.integration.agents.fleet import Fleet, account_id, fleet

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def workers(kafka: Broker, topic_prefix: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet(kafka.bootstrap, topic_prefix, tmp_path) as made:
        yield made


def handled(workers: Fleet) -> set[str]:
    """Accounts whose event some worker has handled."""
    return {line["account"] for line in workers.everywhere("changed")}


async def test_no_event_is_passed_over_while_members_come_and_go(workers: Fleet) -> None:
    first = await workers.start()
    await workers.settled()
    sent: list[str] = []

    async def send() -> None:
        while not done.is_set():
            await workers.state(len(sent), "live", 1)
            sent.append(account_id(len(sent)))
            await asyncio.sleep(0.004)

    done = asyncio.Event()
    sender = asyncio.create_task(send())
    for _ in range(3):
        other = await workers.start()
        await workers.settled()
        other.signal(signal.SIGTERM)
        await workers.until(lambda: len(first.running) == workers.settings.PARTITIONS)
    done.set()
    await sender
    await workers.until(lambda: handled(workers) == set(sent))
    assert len(sent) > 100


async def test_events_that_wait_for_the_first_start_are_all_handled(workers: Fleet) -> None:
    for number in range(400):
        await workers.state(number, "live", 1)
    first = await workers.start()
    await workers.until(lambda: len(handled(workers)) == 400)
    # Tables have something to recover now, which is another way through Faust's recovery.
    first.signal(signal.SIGTERM)
    await first.process.wait()
    for number in range(400, 800):
        await workers.state(number, "live", 1)
    await workers.start(data=first.name)
    await workers.until(lambda: len(handled(workers)) == 800)
