"""How long a partition of jobs gathers before it writes again."""

from __future__ import annotations

import contextlib

from streams.commands.job_writer import Pace


def test_a_partition_that_writes_alone_waits_for_the_shortest_time() -> None:
    pace = Pace()
    with pace.writing():
        assert pace.pause_s(last_s=0.001, entries=1) == Pace.MIN_S


def test_partitions_that_write_share_the_rate_and_idle_ones_do_not_count() -> None:
    pace = Pace()
    with contextlib.ExitStack() as writers:
        for _ in range(15):
            writers.enter_context(pace.writing())
        assert pace.pause_s(last_s=0.001, entries=1) == 15 / Pace.PER_S
    with pace.writing():
        assert pace.pause_s(last_s=0.001, entries=1) == Pace.MIN_S


def test_a_slow_broker_and_a_backlog_are_answered_by_larger_transactions_within_a_bound() -> None:
    pace = Pace()
    assert pace.pause_s(last_s=0.1, entries=1) == 0.1
    assert pace.pause_s(last_s=0.001, entries=150) == 150 * Pace.ENTRY_S
    assert pace.pause_s(last_s=9.0, entries=400) == Pace.MAX_S


def test_the_rate_is_given_back_by_a_writer_that_fails() -> None:
    pace = Pace()
    with contextlib.suppress(RuntimeError), pace.writing():
        raise RuntimeError
    assert pace.pause_s(last_s=0.0, entries=0) == Pace.MIN_S
