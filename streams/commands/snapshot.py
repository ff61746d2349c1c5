"""What an engine tells about itself: to probes and status while it runs, and when it has ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A command in execution, as status and probes show it."""

    task_id: str
    kind: str
    account_id: str
    attempt: int
    seconds: float
    overrun: bool


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What an engine is doing."""

    running: tuple[RunningTask, ...]
    backing_off: int
    waiting: int
    lanes: int
    stuck: int

    @property
    def overrunning(self) -> tuple[str, ...]:
        """Ids of the tasks which are over their limit and its grace (row W9)."""
        return tuple(task.task_id for task in self.running if task.overrun)


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How a drain ended: what is left to others, and which handlers did not end."""

    requeued: int
    ignored: tuple[str, ...]
