"""What every lane keeps, in memory and on Kafka: entries whole and in order, fencing, memory of owners before (W15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest

from streams.commands.ports import CommandState, Entry, OutRecord
from streams.contracts import topics
from streams.errors import ShardError
from tests.fixtures.services import Broker
from tests.integration.commands.lanes import PARTITION, JobMaker, LaneMaker, MemoryMaker, OwnerMaker
from tests.integration.commands.rig import Jobs, settings_for

ACCOUNT = "00000000-0000-0000-0000-00000000000a"
DEADLINE_S = 30.0
AT = datetime.now(UTC)


@pytest.fixture(params=["memory", "jobs", "owner"])
async def maker(request: pytest.FixtureRequest, topic_prefix: str, tmp_path: Path) -> LaneMaker:
    if request.param == "memory":
        return MemoryMaker()
    broker: Broker = request.getfixturevalue("kafka")
    jobs = Jobs(settings_for(broker.bootstrap, topic_prefix))
    await jobs.create_topics()
    if request.param == "jobs":
        return JobMaker(jobs)
    return OwnerMaker(jobs, _numbered(tmp_path))


def _numbered(directory: Path) -> Callable[[], Path]:
    count = 0

    def make() -> Path:
        nonlocal count
        count += 1
        return directory / str(count)

    return make


def event(text: str) -> OutRecord:
    return OutRecord(topics.COMMAND_EVENTS, ACCOUNT.encode(), text.encode(), [("ce_id", b"x")], "success", PARTITION)


def state(
    command_id: str, offset: int, attempts: int = 1, concluded: Literal["success", "failure"] | None = "success"
) -> CommandState:
    return CommandState(ACCOUNT, command_id, attempts, concluded, offset, AT)


async def published(maker: LaneMaker, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """What readers see as soon as they see that many records: a commit is answered before its markers are written."""
    async with asyncio.timeout(DEADLINE_S):
        while len(found := await maker.published(topic)) < count:
            await asyncio.sleep(0.05)
    return found


async def settled(*futures: asyncio.Future[None]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*futures)


async def test_w15_entries_are_published_in_order_with_state_and_position(maker: LaneMaker) -> None:
    async with maker.open() as lane:
        assert (lane.partition, lane.position) == (PARTITION, 0)
        futures = [
            lane.submit(Entry((event(f"{number}"),), state(f"c{number}", number), number + 1)) for number in range(50)
        ]
        await settled(*futures)
        assert lane.known(ACCOUNT, "c7") == state("c7", 7)
        assert lane.known(ACCOUNT, "other") is None
    values = [value for _, _, value in await published(maker, topics.COMMAND_EVENTS, 50)]
    assert values == [str(number).encode() for number in range(50)]


async def test_w15_a_new_owner_knows_what_was_committed(maker: LaneMaker) -> None:
    async with maker.open() as lane:
        await settled(
            lane.submit(Entry(state=state("begun", 0, 2, None))),
            lane.submit(Entry((event("done"),), state("done", 1))),
            lane.submit(Entry(state=state("both", 2, 1, None))),
            lane.submit(Entry(state=state("both", 2, 3, "failure"))),
        )
    async with maker.open() as successor:
        assert successor.position == 0
        assert successor.known(ACCOUNT, "begun") == state("begun", 0, 2, None)
        assert successor.known(ACCOUNT, "done") == state("done", 1)
        assert successor.known(ACCOUNT, "both") == state("both", 2, 3, "failure")


async def test_w15_the_position_goes_on_with_the_next_owner(maker: LaneMaker) -> None:
    async with maker.open() as lane:
        await settled(lane.submit(Entry(position=5)), lane.submit(Entry((event("x"),), None, 9)))
    async with maker.open() as successor:
        assert successor.position == 9


async def test_s3_of_an_owner_that_was_followed_nothing_is_published(maker: LaneMaker) -> None:
    async with maker.open() as old:
        await settled(old.submit(Entry((event("before"),), state("before", 0), 1)))
        async with maker.open() as new:
            late = old.submit(Entry((event("late"),), state("late", 1), 2))
            # The jobs lane fences back before it learns that it is no member any more: the rightful one fences again.
            await settled(new.submit(Entry((event("after"),), state("after", 1), 2)))
            with pytest.raises(ShardError):
                await asyncio.wait_for(late, DEADLINE_S)
            assert new.known(ACCOUNT, "late") is None
    values = [value for _, _, value in await published(maker, topics.COMMAND_EVENTS, 2)]
    assert values == [b"before", b"after"]


async def test_w13_records_for_other_partitions_and_large_ones_are_published(maker: LaneMaker) -> None:
    letters = topics.dead_letter_name(topics.JOBS)
    large = OutRecord(letters, b"k", b"x" * 900_000, [("dlq_reason", b"too_large")], "dead_letter", PARTITION)
    moved = OutRecord(topics.JOBS, ACCOUNT.encode(), b"{}", [], "sent_on", 3)
    async with maker.open() as lane:
        await settled(lane.submit(Entry((large, moved), None, 1)), lane.submit(Entry((event("next"),), None, 2)))
    assert await published(maker, letters, 1) == [(PARTITION, b"k", b"x" * 900_000)]
    assert await published(maker, topics.JOBS, 1) == [(3, ACCOUNT.encode(), b"{}")]


async def test_a_closed_lane_takes_nothing(maker: LaneMaker) -> None:
    if isinstance(maker, MemoryMaker):
        return  # it is never closed, only followed
    async with maker.open() as lane:
        await settled(lane.submit(Entry((event("x"),), None, 1)))
    with pytest.raises(ShardError):
        await asyncio.wait_for(lane.submit(Entry((event("y"),), None, 2)), DEADLINE_S)
