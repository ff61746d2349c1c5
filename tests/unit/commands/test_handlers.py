"""Registering handlers, and what is refused."""

from __future__ import annotations

import functools

import msgspec
import pytest

from streams.commands.handlers import Handlers, NoArgs, Task, load_handlers
from streams.errors import ConfigurationError

own = Handlers()


class Words(msgspec.Struct, frozen=True):
    text: str


@own.register("count_words", args=Words, timeout_s=5.0)
async def count_words(args: Words, task: Task) -> dict[str, int]:
    return {"words": len(args.text.split())}


def test_handlers_are_found_by_module_and_attribute() -> None:
    loaded = load_handlers([f"{__name__}:own"])
    spec = loaded.get("count_words")
    assert spec is not None
    assert (spec.args, spec.threaded, spec.timeout_s) == (Words, False, 5.0)


def test_whether_a_handler_needs_a_thread_is_seen_from_its_kind() -> None:
    class Callable:
        async def __call__(self, args: NoArgs, task: Task) -> None: ...

    handlers = Handlers()
    handlers.add("object", Callable(), args=NoArgs)
    handlers.add("plain", lambda args, task: None, args=NoArgs)
    handlers.add("bound", functools.partial(count_words), args=Words)
    assert [spec.threaded for spec in handlers] == [False, True, False]


def test_w1_two_handlers_of_one_kind_are_a_configuration_error() -> None:
    handlers = Handlers()
    handlers.include(own)
    with pytest.raises(ConfigurationError, match="count_words"):
        handlers.include(own)


@pytest.mark.parametrize("name", ["no.such.module:x", "os:path", "os:nothing", ""])
def test_w1_what_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match="WORKER_HANDLERS"):
        load_handlers([name])
