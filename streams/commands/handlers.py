"""What runs a command: handlers, what they are given, and how they say that they failed.

A handler is a function `(args, task) -> result`, `async def` or plain `def` (then it runs in a thread). `args` is an
instance of the `msgspec.Struct` it was registered with, so a handler never sees arguments that do not fit. Executions
may repeat (a crash, a rebalance): a handler must bear that. Its result is published once.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from streams.commands.ports import OutRecord
from streams.errors import ConfigurationError

A = TypeVar("A", bound=msgspec.Struct)
Result = Mapping[str, Any] | msgspec.Struct | None
Report = Callable[[Any, Any, Any], None]
"""Takes fraction, counts and message of a progress report, from any thread."""

Handler = Callable[[A, "Task"], Awaitable[Result]] | Callable[[A, "Task"], Result]


class NoArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For commands without arguments."""


class TaskFailed(Exception):
    """Raised by a handler to end the attempt with a code of its own.

    `code` is stable and public, `message` one line without a secret. With `retryable` the attempt is repeated after a
    backoff, or after `retry_after_s` seconds, up to the limit; otherwise the command is concluded at once.
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class TaskStopped(Exception):
    """Raised by `Task.check` in a thread whose task is to end (time-out, shutdown, loss of the partition)."""


@dataclass(slots=True)
class Task:
    """What a handler knows of the command it runs, and how it reports. All of it may be used from any thread."""

    command_id: str
    account_id: str
    kind: str
    attempt: int
    deadline: datetime | None
    resources: Mapping[str, Any]
    emits: frozenset[str]
    _report: Report
    _stopping: bool = False  # set by the event loop, read by threads
    _emitted: list[OutRecord] = field(default_factory=list)

    def progress(self, fraction: float, *, counts: Mapping[str, int] | None = None, message: str | None = None) -> None:
        """Report how far it is, from 0 to 1. Never waits and never fails; reports come out as fast as they can be read.

        A report is dropped when it is invalid, does not increase, is overtaken by a newer one, or comes too late.
        """
        self._report(fraction, counts, message)

    def emit(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        kind: str = "consequence",
    ) -> None:
        """Publish a record together with the conclusion: both are seen, or neither. `topic` is without the prefix.

        What failed attempts emitted is dropped. Raises `ValueError` for a topic that the handler was not registered
        for: whether those exist is checked when the process starts. Raises `TypeError` for what Kafka cannot take: it
        would fail the transaction, and with it all commands of the partition.
        """
        if topic not in self.emits:
            raise ValueError(f"the handler of {self.kind!r} is not registered as one that emits to {topic!r}")
        kept = list(headers)
        _check_record(value, key, kept, kind)
        self._emitted.append(OutRecord(topic, key, value, kept, kind))

    @property
    def stopping(self) -> bool:
        """Whether the attempt is to end. A `def` handler looks at it from time to time; an `async def` is cancelled."""
        return self._stopping

    def check(self) -> None:
        """Raise `TaskStopped` when the attempt is to end."""
        if self._stopping:
            raise TaskStopped("the task is to stop")


def _check_record(value: Any, key: Any, headers: Sequence[Any], kind: Any) -> None:
    """Raises `TypeError`, or a `ValueError` for text that cannot be encoded."""
    if not isinstance(value, bytes | None) or not isinstance(key, bytes | None):
        raise TypeError("key and value of a record are bytes")
    if not isinstance(kind, str):
        raise TypeError("the kind of a record is text")
    for header in headers:
        match header:
            case (str(name), bytes()):
                name.encode()
            case _:
                raise TypeError("headers of a record are pairs of text and bytes")


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler as it was registered. `timeout_s` None means the limit of the process."""

    kind: str
    args: type[msgspec.Struct]
    function: Callable[..., Any]
    threaded: bool
    timeout_s: float | None
    emits: frozenset[str] = frozenset()


class Handlers:
    """Handlers by kind."""

    def __init__(self) -> None:
        self._specs: dict[str, HandlerSpec] = {}

    def register(
        self, kind: str, *, args: type[A], timeout_s: float | None = None, emits: Iterable[str] = ()
    ) -> Callable[[Callable[[A, Task], Any]], Callable[[A, Task], Any]]:
        """Decorator. `timeout_s` may shorten the time limit of an attempt, not lengthen it; `emits` names the topics
        (without prefix) that `Task.emit` may be used for. Commands without arguments take `NoArgs`.

        Raises `ConfigurationError` when the kind has a handler already.
        """

        def decorate(function: Callable[[A, Task], Any]) -> Callable[[A, Task], Any]:
            self.add(kind, function, args=args, timeout_s=timeout_s, emits=emits)
            return function

        return decorate

    def add(
        self,
        kind: str,
        function: Callable[..., Any],
        *,
        args: type[msgspec.Struct],
        timeout_s: float | None = None,
        emits: Iterable[str] = (),
    ) -> None:
        """What `register` does, without decorating."""
        if not kind or len(kind) > 200:
            raise ConfigurationError(f"{kind!r} cannot be the kind of a command")
        if kind in self._specs:
            raise ConfigurationError(f"two handlers for commands of the kind {kind!r}")
        called = function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004
        # A `functools.partial` of a coroutine function is one as well, which its type does not tell.
        threaded = not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called))
        self._specs[kind] = HandlerSpec(kind, args, function, threaded, timeout_s, frozenset(emits))

    def include(self, other: Handlers) -> None:
        """Take over all handlers of another registry."""
        for spec in other:
            self.add(spec.kind, spec.function, args=spec.args, timeout_s=spec.timeout_s, emits=spec.emits)

    def get(self, kind: str) -> HandlerSpec | None:
        """The handler of a kind."""
        return self._specs.get(kind)

    def __iter__(self) -> Iterator[HandlerSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)


def load_handlers(names: Sequence[str]) -> Handlers:
    """Handlers of third parties: each name is `package.module:attribute`, the attribute a `Handlers`.

    Raises `ConfigurationError` naming what cannot be loaded.
    """
    import importlib

    loaded = Handlers()
    for name in names:
        module_name, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), attribute or "handlers")
        except Exception as error:  # whatever a foreign module does at import
            raise ConfigurationError(f"WORKER_HANDLERS: {name!r} cannot be loaded: {error}") from error
        if not isinstance(found, Handlers):
            raise ConfigurationError(f"WORKER_HANDLERS: {name!r} is no streams.commands.handlers.Handlers")
        loaded.include(found)
    return loaded
