"""Rows W4 and W5: hooks in order, in reverse order, within one budget."""

from __future__ import annotations

import asyncio
import time

import pytest

from streams.runtime.hooks import Hook, Hooks


def _hooks(order: list[str], **bodies: Hook) -> Hooks:
    hooks = Hooks()
    for name in ("a", "b", "c"):

        async def up(name: str = name) -> None:
            order.append(f"+{name}")

        async def down(name: str = name) -> None:
            order.append(f"-{name}")

        hooks.add(name, startup=bodies.get(f"up_{name}", up), shutdown=bodies.get(f"down_{name}", down))
    return hooks


async def test_w5_shutdown_hooks_run_in_reverse_order() -> None:
    order: list[str] = []
    hooks = _hooks(order)
    await hooks.run_startup()
    assert await hooks.run_shutdown(5.0)
    assert order == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert await hooks.run_shutdown(5.0)
    assert order[6:] == [], "each is shut down once"


async def test_w5_only_what_came_up_is_shut_down() -> None:
    order: list[str] = []

    async def fails() -> None:
        raise RuntimeError("no")

    hooks = _hooks(order, up_b=fails)
    with pytest.raises(RuntimeError):
        await hooks.run_startup()
    await hooks.run_shutdown(5.0)
    assert order == ["+a", "-a"]


async def test_w5_one_that_fails_does_not_hold_up_the_others() -> None:
    order: list[str] = []

    async def fails() -> None:
        raise RuntimeError("no")

    hooks = _hooks(order, down_b=fails)
    await hooks.run_startup()
    assert not await hooks.run_shutdown(5.0)
    assert order[3:] == ["-c", "-a"]


async def test_w5_the_budget_is_common() -> None:
    order: list[str] = []

    async def hangs() -> None:
        await asyncio.sleep(60)

    hooks = _hooks(order, down_b=hangs)
    await hooks.run_startup()
    began = time.monotonic()
    assert not await hooks.run_shutdown(0.2)
    assert time.monotonic() - began < 4.5
    assert order[3:] == ["-c"], "the last had nothing left of the budget"


async def test_decorators_register() -> None:
    order: list[str] = []
    hooks = Hooks()

    @hooks.on_startup
    async def up() -> None:
        order.append("up")

    @hooks.on_shutdown
    async def down() -> None:
        order.append("down")

    await hooks.run_startup()
    with pytest.raises(RuntimeError):
        hooks.add("late")
    await hooks.run_shutdown(1.0)
    assert order == ["up", "down"]
