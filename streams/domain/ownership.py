"""Who may write a shard: the state machine of one partition on one worker.

::

    IDLE ──assigned──▶ FENCING ──fenced──▶ PROVING ──proved──▶ RESTORING ──restored──▶ RUNNING
                          ▲                   │ refused            │                      │
                          │                   ▼                    │ writer lost          │ writer lost
                          ├──assigned────── BARRED                 │                      │
                          └───────────────────────────────────────┴──────────────────────┘
    any state ──unassigned──▶ IDLE          RESTORING/RUNNING ──mirror unreadable──▶ BROKEN ──assigned──▶ FENCING

Invariants: records are written in RUNNING only; RUNNING is reached only by a restore that began after a fence whose
holder then proved its membership; only the assignment ends a shard, every failure leads back to the fence. An
assignment that keeps a running shard changes nothing: its connections and its producer stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final


class ShardPhase(Enum):
    """Where a shard is on its way to running."""

    IDLE = "idle"
    FENCING = "fencing"
    PROVING = "proving"
    RESTORING = "restoring"
    RUNNING = "running"
    BARRED = "barred"
    BROKEN = "broken"


class ShardEvent(Enum):
    """What can happen to a shard."""

    ASSIGNED = "assigned"
    UNASSIGNED = "unassigned"
    FENCED = "fenced"
    FENCE_FAILED = "fence_failed"
    PROVED = "proved"
    PROOF_REFUSED = "proof_refused"
    RESTORED = "restored"
    WRITER_LOST = "writer_lost"
    MIRROR_UNREADABLE = "mirror_unreadable"


class ShardAction(Enum):
    """What the shell performs, in order."""

    CLOSE_WRITER = "close_writer"
    STOP_RUNNERS = "stop_runners"
    PAUSE_RUNNERS = "pause_runners"
    OPEN_FENCE = "open_fence"
    PROVE = "prove"
    RESTORE = "restore"
    RUN = "run"


P, E, A = ShardPhase, ShardEvent, ShardAction

_TABLE: Final[Mapping[tuple[ShardPhase, ShardEvent], tuple[ShardPhase, tuple[ShardAction, ...]]]] = {
    (P.IDLE, E.ASSIGNED): (P.FENCING, (A.OPEN_FENCE,)),
    (P.BARRED, E.ASSIGNED): (P.FENCING, (A.OPEN_FENCE,)),
    (P.BROKEN, E.ASSIGNED): (P.FENCING, (A.OPEN_FENCE,)),
    (P.FENCING, E.FENCED): (P.PROVING, (A.PROVE,)),
    (P.FENCING, E.FENCE_FAILED): (P.FENCING, (A.CLOSE_WRITER, A.OPEN_FENCE)),
    (P.PROVING, E.PROVED): (P.RESTORING, (A.RESTORE,)),
    (P.PROVING, E.PROOF_REFUSED): (P.BARRED, (A.CLOSE_WRITER,)),
    (P.PROVING, E.WRITER_LOST): (P.FENCING, (A.CLOSE_WRITER, A.OPEN_FENCE)),
    (P.RESTORING, E.RESTORED): (P.RUNNING, (A.RUN,)),
    (P.RESTORING, E.WRITER_LOST): (P.FENCING, (A.CLOSE_WRITER, A.OPEN_FENCE)),
    (P.RESTORING, E.MIRROR_UNREADABLE): (P.BROKEN, (A.CLOSE_WRITER,)),
    (P.RUNNING, E.WRITER_LOST): (P.FENCING, (A.PAUSE_RUNNERS, A.CLOSE_WRITER, A.OPEN_FENCE)),
    (P.RUNNING, E.MIRROR_UNREADABLE): (P.BROKEN, (A.STOP_RUNNERS, A.CLOSE_WRITER)),
}


def step(phase: ShardPhase, event: ShardEvent) -> tuple[ShardPhase, tuple[ShardAction, ...]]:
    """Next phase and what to do for it. Events that mean nothing in a phase change nothing (they may arrive late)."""
    if event is E.UNASSIGNED:
        return (P.IDLE, ()) if phase is P.IDLE else (P.IDLE, (A.STOP_RUNNERS, A.CLOSE_WRITER))
    return _TABLE.get((phase, event), (phase, ()))


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """An account as the control plane knows it."""

    account_id: str
    user_id: str
    state: str
    version: int | None
    heat_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """What a new assignment means for the shards of a worker."""

    keep: frozenset[int]
    stop: frozenset[int]
    start: frozenset[int]


def on_assignment(held: frozenset[int], assigned: frozenset[int]) -> AssignmentChange:
    """Shards that stay go on untouched, lost ones stop, new ones start."""
    return AssignmentChange(held & assigned, held - assigned, assigned - held)
