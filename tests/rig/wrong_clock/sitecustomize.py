"""Loaded at the start of a worker with a clock of its own: libfaketime 0.9.10, told to leave the monotonic clock alone,
makes `clock_nanosleep` fail, and with it `time.sleep`.
"""

from __future__ import annotations

import threading
import time
from typing import SupportsIndex


def _sleep(seconds: SupportsIndex | float, /) -> None:
    wait_s = float(seconds)
    if wait_s < 0:
        raise ValueError("sleep length must be non-negative")
    threading.Event().wait(wait_s)


time.sleep = _sleep
