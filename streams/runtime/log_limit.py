"""A flood of like log lines becomes a few, with a count of what was left out.

Losing the brokers makes Faust and aiokafka write 75 lines a second. Lines of libraries are limited by where they come
from (logger and text before formatting); lines of ours are not, and errors that appear for the first time always
pass.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

BURST: Final = 5
"""Lines of one kind that pass within a window."""
WINDOW_S: Final = 10.0
KINDS: Final = 2048
"""Kinds remembered at most; when there are more, all are forgotten and counting starts again."""


class FloodFilter(logging.Filter):
    """Lets `BURST` records of a kind pass in `WINDOW_S`; the next one that passes says how many were left out."""

    def __init__(
        self,
        *,
        exempt: tuple[str, ...] = ("streams",),
        burst: int = BURST,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`exempt` names loggers (and their children) that are not limited."""
        super().__init__()
        self._exempt = exempt
        self._burst = burst
        self._window_s = window_s
        self._clock = clock
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` passes."""
        if record.name.split(".", 1)[0] in self._exempt:
            return True
        kind = (record.name, record.levelno, str(record.msg)[:200])
        now = self._clock()
        with self._lock:
            since, count = self._seen.get(kind, (now, 0))
            if now - since >= self._window_s:
                left_out = max(0, count - self._burst)
                if left_out:
                    record.left_out = left_out
                since, count = now, 0
            count += 1
            if len(self._seen) >= KINDS and kind not in self._seen:
                self._seen.clear()
            self._seen[kind] = (since, count)
            return count <= self._burst
