"""The collector's setting in a running worker: nothing of the start is visited again, full collections are rare."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from streams.runtime.garbage import FULL_COLLECTION_AFTER, settle_heap


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_what_stands_at_the_start_is_not_visited_again() -> None:
    standing = [[number] for number in range(1000)]
    young, middle, _ = gc.get_threshold()
    settle_heap()
    assert gc.get_freeze_count() > len(standing)
    assert gc.get_threshold() == (young, middle, FULL_COLLECTION_AFTER)
    assert not any(item is standing for item in gc.get_objects())


def test_cycles_made_later_are_still_collected() -> None:
    settle_heap()

    class Node:
        other: object = None

    nodes = [Node() for _ in range(10)]
    for node in nodes:
        node.other = node
    del nodes, node
    assert gc.collect() >= 10
