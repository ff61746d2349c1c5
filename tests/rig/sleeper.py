"""The product, with a worker that stops itself just before it opens a fence, as a machine would that sleeps right then.

`faust -A tests.rig.sleeper worker`; SLEEP_BEFORE_FENCE names a file, and while it exists the process gets SIGSTOP.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from streams.sync import log as shard_log

woke: list[float] = []
"""When the process woke, by the monotonic clock."""

_trigger = os.environ.get("SLEEP_BEFORE_FENCE")
_fence = shard_log.ShardLog.fence


async def _sleep_then_fence(self: shard_log.ShardLog) -> None:
    if _trigger and Path(_trigger).exists():
        os.kill(os.getpid(), signal.SIGSTOP)
        woke.append(time.monotonic())
    await _fence(self)


shard_log.ShardLog.fence = _sleep_then_fence  # type: ignore[method-assign]


def __getattr__(name: str) -> Any:
    if name == "app":
        import streams

        return streams.app
    raise AttributeError(name)
