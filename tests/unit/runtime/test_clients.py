"""A cancellation that comes out of a library is not taken for a stop (S16, W7)."""

from __future__ import annotations

import asyncio

from streams.runtime.clients import cancelled_from_elsewhere


async def awaiting(future: asyncio.Future[None], seen: list[bool]) -> None:
    try:
        await future
    except asyncio.CancelledError as error:
        seen.append(cancelled_from_elsewhere(error))
        if not seen[-1]:
            raise


async def test_what_was_awaited_was_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen: list[bool] = []
    task = asyncio.create_task(awaiting(future, seen))
    await asyncio.sleep(0)
    future.cancel()
    await task
    assert seen == [True]


async def test_the_task_itself_was_cancelled() -> None:
    seen: list[bool] = []
    task = asyncio.create_task(awaiting(asyncio.get_running_loop().create_future(), seen))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert seen == [False]
    assert task.cancelled()


async def test_other_errors_are_none() -> None:
    assert not cancelled_from_elsewhere(TimeoutError())
