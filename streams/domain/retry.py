"""What happens after an attempt at a command has failed: again later, or never.

Pure: the decision is a value, time and randomness are arguments. Invariant: whatever is decided, the number of attempts
and the time spent on one command stay under the limits (rows W2, W14).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed. `code` is stable and public; `message` is one line without a secret.

    `unexpected` marks what no handler should raise (a bug); such a command also goes to the dead letters when it is
    concluded, since sending it again after a fix is the only cure. `retry_after_s` is a wait named by the other side.
    """

    code: str
    message: str
    retryable: bool
    unexpected: bool = False
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often and how long. Durations in seconds.

    `retries` counts attempts after the first. `give_up_s` is the longest a delivery may stay unacknowledged, counted
    from its first attempt in this process; a retry which could not finish before that is not begun.
    """

    retries: int
    backoff_s: float
    backoff_max_s: float
    attempt_s: float
    give_up_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after this many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Conclude:
    """Publish the failure; there is no further attempt."""

    failure: Failure


Decision = Retry | Conclude


def decide(
    failure: Failure,
    attempt: int,
    limits: RetryLimits,
    rng: Callable[[], float],
    *,
    elapsed_s: float = 0.0,
    remaining_s: float | None = None,
) -> Decision:
    """Retry or conclude after failed attempt number `attempt` (1 is the first).

    `rng` gives a number in [0, 1). `elapsed_s` is the time since the first attempt, `remaining_s` the time to the
    command's own deadline, if it has one.
    """
    if not failure.retryable or attempt > limits.retries:
        return Conclude(failure)
    after = backoff(attempt, limits, rng)
    if failure.retry_after_s is not None:
        # The other side knows better when it is worth asking again; a wait over our longest one is not honoured by
        # holding the delivery, but by telling the sender.
        if failure.retry_after_s > limits.backoff_max_s:
            return Conclude(failure)
        after = max(after, failure.retry_after_s)
    if elapsed_s + after + limits.attempt_s > limits.give_up_s:
        return Conclude(failure)
    if remaining_s is not None and after >= remaining_s:
        return Conclude(failure)
    return Retry(after)


def backoff(attempt: int, limits: RetryLimits, rng: Callable[[], float]) -> float:
    """Seconds to wait after attempt number `attempt`: doubled each time, capped, and of that a random upper half.

    Half of the wait is certain so that retries really spread out over time; half is random so that commands which
    failed together do not come back together.
    """
    doublings = min(attempt - 1, 64)  # beyond that any backoff is at its cap, and a float would overflow in time
    ceiling = min(limits.backoff_max_s, limits.backoff_s * 2.0**doublings)
    return ceiling * (0.5 + 0.5 * rng())
