"""Blocking code in threads that can never hold up the end of the process (row W17).

Not an executor: `concurrent.futures` joins its threads at exit, so that one stuck call would keep the process alive.
Each call gets a daemon thread of its own with the caller's context; how many there are is bounded by who calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def start_thread(
    name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[threading.Thread, asyncio.Future[R]]:
    """Run `function` in a new daemon thread. Cancelling the future does not end the thread; nothing can."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: R | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: R | None = None
        error: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except StopIteration as caught:  # cannot be raised into a future (PEP 479)
            error = RuntimeError("the function raised StopIteration")
            error.__cause__ = caught
        except BaseException as caught:  # whatever it is, it belongs to the waiting task
            error = caught
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:
            return  # the loop is closed: the process is ending and nobody waits any more

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread, future


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` in a daemon thread with this context and wait for it.

    When the waiting is cancelled the thread goes on by itself; its result is dropped.
    """
    _, future = start_thread(getattr(function, "__name__", "call"), function, *args, **kwargs)
    return await future
