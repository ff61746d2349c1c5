"""A full worker may open as many files as the machine allows."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
import structlog

from streams.runtime.open_files import allow_open_files, wanted_files
from streams.settings import Settings


@pytest.fixture
def limit() -> Iterator[int]:
    """The soft limit is low; the hard one is returned."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_becomes_the_hard_one(limit: int) -> None:
    with structlog.testing.capture_logs() as lines:
        assert allow_open_files(256) == limit
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, limit)
    assert lines == []


def test_one_line_says_when_it_is_too_little(limit: int) -> None:
    with structlog.testing.capture_logs() as lines:
        allow_open_files(limit + 1)
    assert [(line["log_level"], line["limit"], line["may_need"]) for line in lines] == [("warning", limit, limit + 1)]


def test_more_accounts_and_partitions_want_more() -> None:
    small = wanted_files(Settings(MAX_ACCOUNTS_PER_WORKER=100, PARTITIONS=4))
    assert small < wanted_files(Settings(MAX_ACCOUNTS_PER_WORKER=5000, PARTITIONS=4))
    assert small < wanted_files(Settings(MAX_ACCOUNTS_PER_WORKER=100, PARTITIONS=64))
    assert 5000 < wanted_files(Settings()) < 20_000
