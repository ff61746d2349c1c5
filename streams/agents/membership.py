"""Proof that we are a member of the group: an offset commit of our own consumer, which Kafka refuses to anybody else.

A fence alone is not enough (the member that slept through a rebalance may fence the rightful owner by coming last),
and Faust's own commit hides a refusal. So the commit goes to the aiokafka consumer inside Faust's consumer thread.
Invariant: a proof was begun after it was asked for, and it counts for the generation in which the consumer was before
and after.

What is committed is the offset that stands committed already, so nothing moves. Faust may commit a later one for the
same partition at the same moment; then events are handled again after a rebalance, which does no harm.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from streams.errors import MembershipLost, ServiceUnavailable

REFUSED: Final = (CommitFailedError, IllegalStateError)
"""The group knows us no more, is being rebalanced, or has given us nothing."""


class GroupProof:
    """Proves membership by commits of the Faust app's consumer. Proofs that are asked for together share one commit."""

    def __init__(self, app: Any, topic: str, *, deadline_s: float) -> None:
        """`topic` is the full name of a source topic: one of its assigned partitions is committed."""
        self._app = app
        self._topic = topic
        self._deadline_s = deadline_s
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[int] | None = None

    async def prove(self) -> int:
        """Generation in which we are a member.

        Raises `MembershipLost`, or `ServiceUnavailable` when no answer comes.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._commit_next(), name="membership proof")
            self._next.add_done_callback(_retrieve)
        return await asyncio.shield(self._next)

    async def _commit_next(self) -> int:
        async with self._turn:
            # Whoever asks from now on needs a later commit than this one.
            self._next = None
            return await self._commit()

    async def _commit(self) -> int:
        try:
            thread = self._app.consumer._thread
            kafka = thread._ensure_consumer()
            loop: asyncio.AbstractEventLoop = thread.thread_loop
            committed = self._offset_to_commit()
        except MembershipLost:
            raise
        except Exception as error:
            # Faust has several errors for "not started" and "stopped", some of them plain attribute errors.
            raise ServiceUnavailable(f"the consumer is not running: {type(error).__name__}") from error
        future = asyncio.run_coroutine_threadsafe(_commit_in_thread(kafka, *committed), loop)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.wrap_future(future)
        except REFUSED as error:
            raise MembershipLost(f"the group refuses our commit: {error}") from error
        except KafkaError as error:
            raise ServiceUnavailable(f"the commit failed: {error!r}") from error
        except TimeoutError as error:
            raise ServiceUnavailable(f"no answer to a commit within {self._deadline_s:g} s") from error

    def _offset_to_commit(self) -> tuple[TopicPartition, int | None]:
        """A partition of ours, if possible one in which nothing waits to be committed, and its committed offset."""
        consumer = self._app.consumer
        ours = sorted(tp for tp in consumer.assignment() if tp.topic == self._topic)
        if not ours:
            raise MembershipLost("no partition is assigned to us")
        chosen = min(ours, key=lambda tp: len(consumer._acked.get(tp) or ()))
        return TopicPartition(chosen.topic, chosen.partition), consumer._committed_offset.get(chosen)


async def _commit_in_thread(kafka: Any, partition: TopicPartition, offset: int | None) -> int:
    """Runs in the loop of Faust's consumer thread, the only one in which its consumer may be used."""
    generation: int = kafka._coordinator.generation
    if offset is None:
        offset = await kafka.committed(partition)
    if offset is None:
        # Nothing was ever committed: the beginning is where we would start again.
        offset = (await kafka.beginning_offsets([partition]))[partition]
    await kafka.commit({partition: OffsetAndMetadata(offset, "")})
    if kafka._coordinator.generation != generation:
        raise CommitFailedError("the group has moved on")
    return generation


def _retrieve(task: asyncio.Task[int]) -> None:
    """Takes note of the outcome: the caller may have been cancelled meanwhile."""
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, slots=True)
class AssignmentMembership:
    """Our membership as of one assignment: it ends with the generation, even when we are a member of the next one."""

    proof: GroupProof
    generation: int

    async def prove(self) -> None:
        """See `streams.agents.ports.Membership`."""
        generation = await self.proof.prove()
        if generation != self.generation:
            raise MembershipLost(f"the assignment of generation {self.generation} is over, now is {generation}")
