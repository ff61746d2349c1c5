"""What assignments and lost membership mean for the shards: S3, S4, S6."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from streams.agents import assignment
from streams.agents.assignment import Assignment, AssignmentKeeper
from streams.agents.membership import AssignmentMembership
from streams.domain.ownership import AccountEntry
from streams.errors import MembershipLost, ServiceUnavailable
from tests.unit.agents.fakes import RecordingHost


@dataclass
class FakeProof:
    """A group in which we are a member unless told otherwise."""

    generation: int = 1
    refuse: Exception | None = None
    asked: int = 0

    async def prove(self) -> int:
        self.asked += 1
        if self.refuse is not None:
            raise self.refuse
        return self.generation


@dataclass
class Rig:
    host: RecordingHost = field(default_factory=RecordingHost)
    proof: FakeProof = field(default_factory=FakeProof)
    time: float = 0.0

    def __post_init__(self) -> None:
        self.keeper = AssignmentKeeper(
            self.host,
            self.proof,  # type: ignore[arg-type]
            no_accounts,
            session_timeout_s=10.0,
            clock=lambda: self.time,
        )

    async def settled(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def no_accounts(_partition: int) -> AsyncIterator[AccountEntry]:
    return
    yield


@asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    rig = Rig()
    task = asyncio.create_task(rig.keeper.run())
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.wait({task})


def parts(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


async def test_s6_before_recovery_what_stays_goes_on_and_what_went_stops_then_new_ones_start() -> None:
    async with running() as rig:
        rig.keeper.recovered(1, parts(1, 2, 3))
        await rig.settled()
        rig.keeper.assigned(2, parts(2, 3, 4))
        await rig.settled()
        assert rig.host.partitions == parts(2, 3)
        rig.keeper.recovered(2, parts(2, 3, 4))
        await rig.settled()
        assert rig.host.partitions == parts(2, 3, 4)


async def test_after_a_sleep_nothing_starts_before_the_tables_are_recovered() -> None:
    """Closed for want of a proof, then assigned the same partitions: another owner has written their tables."""
    async with running() as rig:
        rig.keeper.recovered(1, parts(1, 2))
        await rig.settled()
        rig.proof.refuse = MembershipLost("refused")
        rig.time = 11.0
        await rig.keeper.check()
        rig.keeper.assigned(3, parts(1, 2))
        await rig.settled()
        assert rig.host.partitions == parts()
        rig.keeper.recovered(3, parts(1, 2))
        await rig.settled()
        assert rig.host.partitions == parts(1, 2)


async def test_only_the_newest_assignment_is_carried_out() -> None:
    async with running() as rig:
        for generation in range(5):
            rig.keeper.recovered(generation, parts(generation))
        await rig.settled()
        assert rig.host.calls == [("assigned", parts(4))]


async def test_a_recovery_that_was_overtaken_by_a_rebalance_starts_nothing() -> None:
    async with running() as rig:
        rig.keeper.assigned(8, frozenset({2, 5}))
        rig.keeper.recovered(7, frozenset({0, 2}))
        assert rig.keeper.assignment == Assignment(8, frozenset(), recovered=False)
        rig.keeper.recovered(8, frozenset({2, 5}))
        await rig.settled()
        assert rig.keeper.assignment == Assignment(8, frozenset({2, 5}))


async def test_s16_an_assignment_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "RETRY_MIN_S", 0.001)
    async with running() as rig:
        rig.host.fail.append(OSError("no"))
        rig.keeper.recovered(1, parts(1))
        async with asyncio.timeout(5):
            while rig.host.partitions != parts(1):
                await asyncio.sleep(0.001)


async def test_s3_a_membership_ends_with_its_generation() -> None:
    async with running() as rig:
        rig.keeper.recovered(1, parts(1))
        await rig.settled()
        (membership,) = rig.host.memberships
        await membership.prove()
        rig.proof.generation = 2
        with pytest.raises(MembershipLost, match="generation 1 is over"):
            await membership.prove()
        assert isinstance(membership, AssignmentMembership)


@pytest.mark.parametrize("error", [MembershipLost("refused"), ServiceUnavailable("silent")])
async def test_s3_no_proof_for_a_session_timeout_closes_the_sockets_once(error: Exception) -> None:
    async with running() as rig:
        rig.keeper.recovered(1, parts(1))
        await rig.settled()
        rig.proof.refuse = error
        for rig.time in (3.0, 6.0, 9.0):
            await rig.keeper.check()
        assert ("unassigned",) not in rig.host.calls
        for rig.time in (12.0, 15.0):
            await rig.keeper.check()
        assert rig.host.calls.count(("unassigned",)) == 1
        assert not rig.keeper.member


async def test_a_proof_after_silence_carries_the_assignment_out_again() -> None:
    async with running() as rig:
        rig.keeper.recovered(1, parts(1))
        await rig.settled()
        rig.proof.refuse, rig.time = ServiceUnavailable("silent"), 11.0
        await rig.keeper.check()
        rig.proof.refuse = None
        await rig.keeper.check()
        await rig.settled()
        assert rig.host.calls == [("assigned", parts(1)), ("unassigned",), ("assigned", parts(1))]
        assert rig.keeper.member


async def test_an_assignment_after_silence_is_a_membership_and_may_be_lost_again() -> None:
    async with running() as rig:
        rig.keeper.recovered(1, parts(1))
        rig.proof.refuse, rig.time = MembershipLost("refused"), 11.0
        await rig.keeper.check()
        rig.keeper.recovered(2, parts(1))
        assert rig.keeper.member
        rig.time = 22.0
        await rig.keeper.check()
        assert rig.host.calls.count(("unassigned",)) == 2


async def test_s18_a_worker_without_partitions_has_nothing_to_prove() -> None:
    async with running() as rig:
        rig.keeper.recovered(1, parts())
        rig.proof.refuse, rig.time = MembershipLost("nothing"), 100.0
        await rig.keeper.check()
        assert rig.proof.asked == 0
        assert rig.keeper.member
