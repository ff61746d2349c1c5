"""The very end: tasks and threads that do not end by themselves are named, and the process ends all the same (row
W7).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_POOL: Final = "concurrent/futures/thread.py"

EXIT_BLOCKED: Final = 1
"""What a process exits with that had to be ended (row W7)."""


async def cancel_leftovers(limit_s: float) -> bool:
    """Cancel every task but the current one and wait for them. Returns False, having named them, when some do not
    end.
    """
    left = asyncio.all_tasks() - {task for task in (asyncio.current_task(),) if task is not None}
    if not left:
        return True
    for task in left:
        task.cancel()
    _, stuck = await asyncio.wait(left, timeout=limit_s)
    for task in stuck:
        frames = task.get_stack(limit=1)
        place = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "unknown"
        log.error("a task ignores its cancellation", task=task.get_name(), at=place)
    return not stuck


def busy_threads() -> list[tuple[threading.Thread, str]]:
    """Threads that keep the interpreter from ending, each with the line it is at.

    Idle threads of pools are not among them: they end with the interpreter.
    """
    frames = sys._current_frames()
    found = []
    for thread in threading.enumerate():
        if thread is threading.main_thread() or thread.daemon or thread.ident is None:
            continue
        frame = frames.get(thread.ident)
        if frame is None:
            found.append((thread, "unknown"))
        elif not (frame.f_code.co_filename.endswith(_POOL) and frame.f_code.co_name == "_worker"):
            # The innermost frame that is not in C: where it hangs.
            found.append((thread, f"{frame.f_code.co_filename}:{frame.f_lineno}"))
    return found


def settle_threads(limit_s: float) -> bool:
    """Wait until no thread holds up the end. Returns False, having named them, when some do."""
    ends_at = time.monotonic() + limit_s
    while busy := busy_threads():
        if time.monotonic() >= ends_at:
            for thread, place in busy:
                log.error("a thread does not end", thread=thread.name, at=place)
            return False
        time.sleep(0.02)
    return True


class ExitGuard:
    """Ends the process with 1 when it has not ended by itself in time."""

    LIMIT_S: Final = 2.0
    """From the end of the shutdown hooks to the exit (row W7)."""

    @classmethod
    def arm(cls, limit_s: float) -> None:
        """From now on the process has `limit_s` seconds to end. Threads that hold it up are named in the log."""
        threading.Thread(target=cls._guard, args=(limit_s,), name="exit-guard", daemon=True).start()

    @staticmethod
    def _guard(limit_s: float) -> None:
        time.sleep(limit_s)
        for thread, place in busy_threads():
            log.error("a thread does not end", thread=thread.name, at=place)
        ExitGuard.now(EXIT_BLOCKED)

    @staticmethod
    def now(code: int) -> None:
        """End the process at once, after writing out what was logged."""
        for handler in logging.root.handlers:
            handler.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
