"""The collector in a running worker: what lasts is not visited again and again, cycles are still collected."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from streams.runtime import garbage
from streams.runtime.garbage import settle_heap


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before
    gc.unfreeze()


class Node:
    """Something that can refer to itself."""

    other: object = None


def cycles(count: int) -> None:
    """So much garbage that only the collector frees."""
    for _ in range(count):
        node = Node()
        node.other = node


def visited(item: object) -> bool:
    """Whether a full collection would look at it."""
    return any(each is item for each in gc.get_objects())


def test_what_stands_at_the_start_is_not_visited_again() -> None:
    standing = [[number] for number in range(1000)]
    settle_heap()
    assert gc.get_freeze_count() > len(standing)
    assert not visited(standing)


def test_cycles_made_later_are_still_collected() -> None:
    settle_heap()
    cycles(10)
    assert gc.collect() >= 10


def test_what_outlived_a_long_collection_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts that come after the start; a short collection leaves them, a long one is the last to visit them."""
    settle_heap()
    came_later = [[number] for number in range(1000)]
    monkeypatch.setattr(garbage, "LONG_S", 60.0)
    gc.collect()
    assert visited(came_later)
    monkeypatch.setattr(garbage, "LONG_S", 0.0)
    gc.collect()
    assert not visited(came_later)


def test_cycles_among_what_was_set_aside_are_collected_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node() for _ in range(10)]
    settle_heap()
    for node in nodes:
        node.other = node
    del nodes, node
    assert gc.collect() < 10
    monkeypatch.setattr(garbage, "VISIT_ALL_S", 0.0)
    assert gc.collect() >= 10
