"""What the database says for `verify`, over one pool of connections."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from streams.projection import truths
from streams.projection.truths import ProjectedTruths
from tests.fixtures.engine import engine_settings


class Pool:
    """Knows no places."""

    closed = False

    async def fetch(self, *_: Any, **__: Any) -> list[Any]:
        return []

    async def close(self) -> None:
        self.closed = True


async def test_commands_that_ask_at_once_share_a_pool_and_none_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Pool] = []

    async def opened(*_: Any, **__: Any) -> Pool:
        await asyncio.sleep(0)
        pools.append(Pool())
        return pools[-1]

    monkeypatch.setattr(truths, "open_pool", opened)
    projected = ProjectedTruths(engine_settings())
    await asyncio.gather(*(projected.database(str(uuid4())) for _ in range(3)))
    await projected.close()
    assert [pool.closed for pool in pools] == [True]
