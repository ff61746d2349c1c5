"""What a log record belongs to: account, partition, mailbox, task, attempt; bound by context, not handed around (row
W16).

Context variables follow `await` and new tasks by themselves. Threads need help: `ContextThreadPool` carries the
context of whoever submits into the thread, so that a library's log line in a synchronous handler names its task, too.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import structlog

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def log_context(**values: Any) -> Iterator[None]:
    """Bind `values` to every log record within the block, by our code and by libraries, through awaits and into
    threads.
    """
    with structlog.contextvars.bound_contextvars(**{key: value for key, value in values.items() if value is not None}):
        yield


class ContextThreadPool(ThreadPoolExecutor):
    """A thread pool whose work runs in the context of whoever submitted it. Suitable as an event loop's default
    executor.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a thread, within a copy of the caller's context."""
        return super().submit(functools.partial(contextvars.copy_context().run, fn, *args, **kwargs))
