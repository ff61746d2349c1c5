"""What bounds an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streams.domain.retry import RetryLimits

LOST_ATTEMPTS: Final = 5
"""Attempts that may vanish with their process, beyond the retries. A command over it is concluded: it kills workers."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of one engine; durations in seconds. `quota` is how many commands it may start in its life."""

    retry: RetryLimits
    concurrency: int = 16
    ahead: int = 1024
    overrun_grace_s: float = 30.0
    progress_interval_s: float = 0.25
    quota: int | None = None
