"""How the garbage collector is set once the worker runs.

A full collection visits every container of the process while the event loop waits: 0.66 s were measured with the
5,000 accounts of a large worker, which all of them feel as late IDLE lines. So whatever has outlived a full collection
that took long is set aside and not visited again. Most of it lives as long as the process, or is freed by its
reference count; for cycles that form among it, everything is visited once in some hours.
"""

from __future__ import annotations

import gc
import time
from typing import Any, Final

import structlog

LONG_S: Final = 0.05
"""A full collection that took longer sets aside what it has left."""
VISIT_ALL_S: Final = 6 * 3600.0
"""After this time what was set aside is visited again."""

log = structlog.get_logger(__name__)


class HeapKeeper:
    """Follows the collections of this process (`gc.callbacks`)."""

    def __init__(self) -> None:
        self._began = 0.0
        self._visited_all_at = time.monotonic()

    def settle(self) -> None:
        """Collect once, and set aside what is left."""
        gc.collect()
        gc.freeze()
        self._visited_all_at = time.monotonic()

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """What the collector calls before and after each collection."""
        if info["generation"] != 2:
            return
        now = time.monotonic()
        if phase == "start":
            self._began = now
            if now - self._visited_all_at >= VISIT_ALL_S:
                self._visited_all_at = now
                gc.unfreeze()
        elif now - self._began > LONG_S:
            gc.freeze()
            log.debug("heap settled", took_s=round(now - self._began, 3))


_KEEPER: Final = HeapKeeper()


def settle_heap() -> None:
    """Set aside what stands now, and later on what lasts. To be called when the start is over."""
    if _KEEPER not in gc.callbacks:
        gc.callbacks.append(_KEEPER)
    _KEEPER.settle()
