"""Retry decisions (rows W2, W14)."""

from __future__ import annotations

from typing import assert_never

from hypothesis import given
from hypothesis import strategies as st

from streams.domain.retry import Conclude, Failure, Retry, RetryLimits, backoff, decide

LIMITS = RetryLimits(retries=3, backoff_s=1.0, backoff_max_s=10.0, attempt_s=100.0, give_up_s=1000.0)
TEMPORARY = Failure("temporary", "later", retryable=True)


def test_w14_permanent_failure_is_concluded_at_once() -> None:
    failure = Failure("mailbox_gone", "no such mailbox", retryable=False)
    assert decide(failure, 1, LIMITS, lambda: 0.5) == Conclude(failure)


def test_w14_retries_stop_at_the_limit() -> None:
    assert isinstance(decide(TEMPORARY, 3, LIMITS, lambda: 0.0), Retry)
    assert decide(TEMPORARY, 4, LIMITS, lambda: 0.0) == Conclude(TEMPORARY)


def test_w14_backoff_doubles_and_is_capped() -> None:
    assert [backoff(n, LIMITS, lambda: 0.0) * 2 for n in (1, 2, 3, 4, 5, 6)] == [1, 2, 4, 8, 10, 10]


def test_w14_a_wait_named_by_the_other_side_is_kept() -> None:
    busy = Failure("host_busy", "slow down", retryable=True, retry_after_s=7.0)
    assert decide(busy, 1, LIMITS, lambda: 0.0) == Retry(7.0)


def test_w14_a_wait_longer_than_ours_is_left_to_the_sender() -> None:
    busy = Failure("host_busy", "come back tomorrow", retryable=True, retry_after_s=86_400.0)
    assert decide(busy, 1, LIMITS, lambda: 0.0) == Conclude(busy)


def test_w2_no_attempt_is_begun_which_could_outlast_the_delivery() -> None:
    assert isinstance(decide(TEMPORARY, 1, LIMITS, lambda: 0.0, elapsed_s=899.4), Retry)
    assert isinstance(decide(TEMPORARY, 1, LIMITS, lambda: 0.0, elapsed_s=899.6), Conclude)


def test_w14_no_retry_after_the_commands_deadline() -> None:
    assert isinstance(decide(TEMPORARY, 1, LIMITS, lambda: 0.0, remaining_s=0.6), Retry)
    assert isinstance(decide(TEMPORARY, 1, LIMITS, lambda: 0.0, remaining_s=0.5), Conclude)


@given(
    retries=st.integers(0, 100),
    backoff_s=st.floats(0.001, 100),
    backoff_max_s=st.floats(0.001, 3600),
    random=st.floats(0, 1, exclude_max=True),
    named=st.none() | st.floats(0, 1e6),
    spent=st.floats(0, 1e4),
)
def test_w14_property_attempts_and_time_are_bounded(
    retries: int, backoff_s: float, backoff_max_s: float, random: float, named: float | None, spent: float
) -> None:
    limits = RetryLimits(retries, backoff_s, backoff_max_s, attempt_s=10.0, give_up_s=5000.0)
    failure = Failure("temporary", "later", retryable=True, retry_after_s=named)
    attempt, elapsed = 1, 0.0
    while True:
        elapsed += spent / 10
        match decide(failure, attempt, limits, lambda: random, elapsed_s=elapsed):
            case Retry(after):
                assert 0 < after <= max(backoff_max_s, named or 0.0) <= max(backoff_max_s, 1e6)
                elapsed += after
                assert elapsed + limits.attempt_s <= limits.give_up_s
                attempt += 1
            case Conclude(concluded):
                assert concluded is failure
                break
            case never:
                assert_never(never)
    assert attempt <= retries + 1


@given(attempt=st.integers(1, 10_000), random=st.floats(0, 1, exclude_max=True))
def test_w14_property_backoff_stays_between_half_and_all_of_the_ceiling(attempt: int, random: float) -> None:
    ceiling = min(10.0, 2.0 ** min(attempt - 1, 64))
    assert ceiling / 2 <= backoff(attempt, LIMITS, lambda: random) <= ceiling
