"""Which deliveries of one partition are settled, and up to where the position may move.

Kafka acknowledges by position: everything below it is done. So the position is the lowest offset that is taken and not
finished. Invariants: the position never falls and never passes an unfinished offset; between it and the newest taken
offset there are at most `ahead` deliveries, so that what a crash repeats is bounded.
"""

from __future__ import annotations

import heapq


class Acknowledgements:
    """Tracks offsets of one partition. Offsets come in rising order, with gaps (transaction markers, compaction)."""

    __slots__ = ("_ahead", "_finished", "_newest", "_open", "_position", "_unfinished")

    def __init__(self, position: int, ahead: int) -> None:
        if ahead < 1:
            raise ValueError("ahead must be at least 1")
        self._ahead = ahead
        self._position = position
        self._newest = position - 1
        self._open: list[int] = []  # heap of taken offsets; finished ones leave lazily
        self._finished: set[int] = set()
        self._unfinished = 0

    @property
    def position(self) -> int:
        """The next offset a successor has to read: all below it is finished."""
        return self._position

    @property
    def next_offset(self) -> int:
        """The next offset to take."""
        return self._newest + 1

    @property
    def unfinished(self) -> int:
        """Deliveries taken and not finished."""
        return self._unfinished

    @property
    def room(self) -> int:
        """How many more deliveries may be taken now."""
        return max(0, self._ahead - len(self._open))

    def take(self, offset: int) -> bool:
        """Note a delivery. False when it is one we have already (consumers repeat themselves after a rebalance)."""
        if offset <= self._newest:
            return False
        if not self._open:
            self._position = offset
        self._newest = offset
        heapq.heappush(self._open, offset)
        self._unfinished += 1
        return True

    def finish(self, offset: int) -> int:
        """Note that a delivery is settled; returns the position after it. Raises `ValueError` for one not open."""
        if offset > self._newest or offset < self._position or offset in self._finished:
            raise ValueError(f"offset {offset} is not open")
        self._finished.add(offset)
        self._unfinished -= 1
        while self._open and self._open[0] in self._finished:
            self._finished.discard(heapq.heappop(self._open))
        self._position = self._open[0] if self._open else self._newest + 1
        return self._position
