"""Which process of the group reads which partitions of `sync.jobs`.

Invariants: a partition with a command in execution stays where it is as long as its process is in the group, so that no
rebalance interrupts it; a process that takes nothing more (a job process that has reached its quota) holds only such
partitions, so that nothing waits behind it; the others are shared out evenly and move as little as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec
import structlog
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

log = structlog.get_logger(__name__)

PROTOCOL_VERSION: Final = 0


class Claim(msgspec.Struct, frozen=True):
    """What a process says of itself when it joins: partitions it works on, those it has, and whether it takes more."""

    busy: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    accepting: bool = True


def share_out(claims: Mapping[str, Claim], partitions: Iterable[int]) -> dict[str, frozenset[int]]:
    """Partitions of each member. One that nobody takes stays without a reader until somebody does."""
    wanted = set(partitions)
    given: dict[str, set[int]] = {member: set() for member in claims}
    for member in sorted(claims):
        mine = claims[member].busy & wanted
        given[member] |= mine
        wanted -= mine  # two that claim the same: one of them was thought dead; the other finds out by the fence
    accepting = [member for member in sorted(claims) if claims[member].accepting]
    if not accepting:
        return {member: frozenset(mine) for member, mine in given.items()}
    total = len(wanted) + sum(len(given[member]) for member in accepting)
    share, more = divmod(total, len(accepting))
    # Those who have most keep one more than the others: it moves the fewest partitions.
    by_held = sorted(accepting, key=lambda member: (-len(claims[member].held), member))
    limit = {member: share + (number < more) for number, member in enumerate(by_held)}
    for member in by_held:
        kept = sorted(claims[member].held & wanted)[: max(0, limit[member] - len(given[member]))]
        given[member].update(kept)
        wanted.difference_update(kept)
    for partition in sorted(wanted):
        member = min(accepting, key=lambda member: (len(given[member]), member))
        given[member].add(partition)
    return {member: frozenset(mine) for member, mine in given.items()}


class Claimant(Protocol):
    """Who says what this process claims at the moment."""

    def claim(self) -> Claim: ...


def assignor_for(claimant: Claimant) -> type[AbstractPartitionAssignor]:
    """An assignor class that speaks for one consumer (aiokafka asks classes, not objects)."""

    class JobAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
        name = "mailstreams-jobs"

        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            claims = {member: _decode(metadata.user_data) for member, metadata in members.items()}
            topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
            shares = {topic: share_out(claims, cluster.partitions_for_topic(topic) or frozenset()) for topic in topics}
            return {
                member: ConsumerProtocolMemberAssignment(
                    PROTOCOL_VERSION, [(topic, sorted(shares[topic][member])) for topic in topics], b""
                )
                for member in members
            }

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(
                PROTOCOL_VERSION, sorted(topics), msgspec.json.encode(claimant.claim())
            )

        @classmethod
        def on_assignment(cls, assignment: Any) -> None:
            """Nothing to keep: the claim is made anew each time."""

    return JobAssignor


def _decode(user_data: bytes | None) -> Claim:
    """A claim that cannot be read is that of a newer version: it claims nothing and takes its share."""
    try:
        return msgspec.json.decode(user_data or b"{}", type=Claim)
    except msgspec.MsgspecError:
        log.warning("a member's claim cannot be read")
        return Claim()
