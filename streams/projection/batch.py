"""What one transaction of the projector takes in: slices of partitions, each with where it starts and where it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from streams.contracts.account import AccountSyncStatus, AccountTierChanged
from streams.errors import MailstreamsError
from streams.projection.decoding import Decoded


class Source(NamedTuple):
    """One partition of one topic. `topic` is its name without prefix, as positions are kept by it."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where a partition's next batch begins."""

    topic_id: UUID
    next_offset: int


@dataclass(slots=True)
class Slice:
    """Consecutive records of one partition: everything from `start` to before `next_offset`."""

    source: Source
    topic_id: UUID
    start: int
    next_offset: int
    changes: list[Decoded] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Where each of `changes` stands."""
    statuses: dict[str, AccountSyncStatus | None] = field(default_factory=dict)
    tiers: dict[str, AccountTierChanged | None] = field(default_factory=dict)


class SequenceGap(MailstreamsError):
    """An account's events do not follow each other: some are missing. The partition stops; a person must look."""

    code = "sequence_gap"


class UnprojectableEvent(MailstreamsError):
    """PostgreSQL refuses what an event says, even cut down to a stub."""

    code = "unprojectable"


class WrongTopic(MailstreamsError):
    """The topic was made anew: positions kept for the old one mean nothing. The projection must be rebuilt."""

    code = "wrong_topic"


class LogStartGone(MailstreamsError):
    """The records at our position are not in the log any more."""

    code = "log_start_gone"


@dataclass(slots=True)
class Outcome:
    """What became of a batch. Slices that are in none of these were written."""

    events: int = 0
    repeats: int = 0
    odd: int = 0
    stubs: int = 0
    moved: dict[Source, Position] = field(default_factory=dict)
    """Row positions that were not where the slice starts: somebody else wrote. Nothing of the slice was."""
    failed: dict[Source, MailstreamsError] = field(default_factory=dict)
    """Slices that end in trouble. What precedes it may have been written."""

    def add(self, other: Outcome) -> None:
        """Count in what became of another part of the batch."""
        self.events += other.events
        self.repeats += other.repeats
        self.odd += other.odd
        self.stubs += other.stubs
        self.moved |= other.moved
        self.failed |= other.failed


@dataclass(slots=True)
class InSequence:
    """The events of a slice that are to be applied: all but repeats, up to the first gap."""

    fresh: list[Decoded] = field(default_factory=list)
    repeats: int = 0
    gap: SequenceGap | None = None
    """Stands before event number `len(fresh) + repeats` of the slice."""


def in_sequence(events: Iterable[Decoded], known: dict[str, int]) -> InSequence:
    """Sort out events by the last sequence number of each account; `known` is advanced."""
    found = InSequence()
    for decoded in events:
        event = decoded.event
        last = known.get(event.account_id, 0)
        if event.sequence == last + 1:
            known[event.account_id] = event.sequence
            found.fresh.append(decoded)
        elif event.sequence <= last:
            found.repeats += 1
        else:
            found.gap = SequenceGap(
                f"account {event.account_id}: event {event.sequence} follows event {last}; "
                f"{event.sequence - last - 1} are missing"
            )
            break
    return found
