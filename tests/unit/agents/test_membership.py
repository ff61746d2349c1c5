"""Proof of membership against a consumer that lives in another thread, as Faust's does: S3."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaConnectionError

from streams.agents.membership import AssignmentMembership, GroupProof
from streams.errors import MembershipLost, ServiceUnavailable


class FakeKafka:
    """An aiokafka consumer as far as a proof goes."""

    def __init__(self) -> None:
        self._coordinator = SimpleNamespace(generation=7)
        self.commits: list[dict[TopicPartition, int]] = []
        self.threads: set[str] = set()
        self.refuse: BaseException | None = None
        self.moves_on = False
        self.stored: int | None = None
        self.gate: asyncio.Event | None = None

    async def committed(self, _partition: TopicPartition) -> int | None:
        return self.stored

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 3)

    async def commit(self, offsets: dict[TopicPartition, Any]) -> None:
        self.threads.add(threading.current_thread().name)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0.01)
        if self.refuse is not None:
            raise self.refuse
        self.commits.append({tp: value.offset for tp, value in offsets.items()})
        if self.moves_on:
            self._coordinator.generation += 1


class Rig:
    """A Faust app as far as a proof goes, its consumer in a thread with a loop of its own."""

    def __init__(self) -> None:
        self.kafka = FakeKafka()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="consumer")
        self.thread.start()
        self.assigned = {TopicPartition("t", 4), TopicPartition("t", 2), TopicPartition("other", 1)}
        self.committed: dict[TopicPartition, int | None] = {TopicPartition("t", 2): 20, TopicPartition("t", 4): 40}
        self.acked: dict[TopicPartition, list[int]] = {}
        consumer = SimpleNamespace(
            _thread=SimpleNamespace(_ensure_consumer=lambda: self.kafka, thread_loop=self.loop),
            _committed_offset=self.committed,
            _acked=self.acked,
            assignment=lambda: self.assigned,
        )
        self.proof = GroupProof(SimpleNamespace(consumer=consumer), "t", deadline_s=0.5)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


async def test_s3_the_proof_is_a_commit_of_what_is_committed_in_the_consumers_thread(rig: Rig) -> None:
    assert await rig.proof.prove() == 7
    assert rig.kafka.commits == [{TopicPartition("t", 2): 20}]
    assert rig.kafka.threads == {"consumer"}


async def test_a_partition_with_nothing_to_commit_is_preferred(rig: Rig) -> None:
    rig.acked[TopicPartition("t", 2)] = [21, 22]
    await rig.proof.prove()
    assert rig.kafka.commits == [{TopicPartition("t", 4): 40}]


async def test_without_a_known_offset_the_stored_one_is_asked_for_then_the_beginning(rig: Rig) -> None:
    rig.committed.clear()
    await rig.proof.prove()
    rig.kafka.stored = 9
    await rig.proof.prove()
    assert rig.kafka.commits == [{TopicPartition("t", 2): 3}, {TopicPartition("t", 2): 9}]


@pytest.mark.parametrize("error", [CommitFailedError("already rebalanced"), IllegalStateError("no assignment")])
async def test_s3_a_refusal_is_a_lost_membership(rig: Rig, error: Exception) -> None:
    rig.kafka.refuse = error
    with pytest.raises(MembershipLost):
        await rig.proof.prove()


async def test_s3_a_generation_that_ends_during_the_commit_proves_nothing(rig: Rig) -> None:
    rig.kafka.moves_on = True
    with pytest.raises(MembershipLost):
        await rig.proof.prove()


async def test_s3_without_an_assignment_there_is_no_membership(rig: Rig) -> None:
    rig.assigned = {TopicPartition("other", 1)}
    with pytest.raises(MembershipLost):
        await rig.proof.prove()


async def test_s3_a_membership_is_of_one_generation(rig: Rig) -> None:
    await AssignmentMembership(rig.proof, 7).prove()
    with pytest.raises(MembershipLost, match="generation 6 is over, now is 7"):
        await AssignmentMembership(rig.proof, 6).prove()


async def test_silence_is_not_a_refusal(rig: Rig) -> None:
    rig.kafka.gate = asyncio.Event()
    with pytest.raises(ServiceUnavailable, match="no answer to a commit"):
        await rig.proof.prove()
    rig.kafka.gate, rig.kafka.refuse = None, KafkaConnectionError("no broker")
    with pytest.raises(ServiceUnavailable):
        await rig.proof.prove()


async def test_a_consumer_that_does_not_run_is_not_a_refusal() -> None:
    proof = GroupProof(SimpleNamespace(consumer=SimpleNamespace()), "t", deadline_s=1)
    with pytest.raises(ServiceUnavailable, match="not running"):
        await proof.prove()


async def test_s3_proofs_share_a_commit_that_began_after_each_was_asked_for(rig: Rig) -> None:
    first = asyncio.create_task(rig.proof.prove())
    async with asyncio.timeout(5):
        while not rig.kafka.threads:
            await asyncio.sleep(0.001)
    # The first commit is on its way: it proves nothing to those who come now; one more serves all of them.
    await asyncio.gather(first, *(rig.proof.prove() for _ in range(64)))
    assert len(rig.kafka.commits) == 2


async def test_who_gives_up_takes_nobody_along(rig: Rig) -> None:
    impatient, patient = asyncio.create_task(rig.proof.prove()), asyncio.create_task(rig.proof.prove())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == 7
