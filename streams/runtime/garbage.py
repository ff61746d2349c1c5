"""How the garbage collector is set once the worker runs.

A full collection visits every container of the process while the event loop waits: 60 to 80 ms were measured with the
heap of a large worker, which thousands of accounts feel as late IDLE lines. What stands when the start is over
(modules, classes, settings, tables) lives as long as the process, so it is set aside for good; what comes later is
freed by its reference counts, and full collections are only there for the few cycles among it.
"""

from __future__ import annotations

import gc
from typing import Final

import structlog

FULL_COLLECTION_AFTER: Final = 100
"""Collections of the middle generation before a full one (Python's default is 10). The two younger stay as they are."""

log = structlog.get_logger(__name__)


def settle_heap() -> None:
    """Collect once, set aside what is left, and make full collections rare. To be called when the start is over."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_COLLECTION_AFTER)
    log.debug("heap settled", frozen=gc.get_freeze_count())
