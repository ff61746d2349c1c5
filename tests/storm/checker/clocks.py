"""When something really happened that a worker with a wrong clock has told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_EDGE_MS: Final = 2500
"""A clock that is set follows within a second."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A worker's wall clock was ahead (behind: negative) for a while. The while is in right time."""

    worker: str
    ahead_ms: int
    began_ms: int
    ended_ms: int


def right_ms(worker: str, told_ms: int, jumps: Sequence[Jump]) -> int:
    """The right time of what a worker told. Jumps are longer than the whole run, so that nothing fits twice."""
    for jump in jumps:
        right = told_ms - jump.ahead_ms
        if jump.worker == worker and jump.began_ms - _EDGE_MS <= right <= jump.ended_ms + _EDGE_MS:
            return right
    return told_ms
