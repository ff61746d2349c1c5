"""Exponential backoff with full jitter: failures spread out instead of coming back together."""

from __future__ import annotations


def full_jitter(failures: int, *, minimum_s: float, maximum_s: float, random: float) -> float:
    """Seconds to wait after `failures` (≥ 1) failures in a row; `random` is uniform in [0, 1).

    The ceiling doubles from `minimum_s` to `maximum_s`; the wait is uniform between half the minimum and the ceiling.
    """
    ceiling = min(maximum_s, minimum_s * 2.0 ** min(max(failures, 1) - 1, 40))
    return minimum_s / 2 + random * max(0.0, ceiling - minimum_s / 2)


def is_ahead(until: float, *, now: float, longest_s: float) -> bool:
    """Whether a time that was recorded at most `longest_s` before it is still to come. One further ahead was recorded
    by a wall clock that was wrong, and is not waited for.
    """
    return now < until <= now + longest_s


def jittered(interval_s: float, *, random: float, spread: float = 0.1) -> float:
    """An interval varied by up to ±`spread`, so that polls of many accounts do not fall together."""
    return interval_s * (1.0 + spread * (2.0 * random - 1.0))
