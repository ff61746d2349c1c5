"""Engines over scripted servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.fixtures.engine import Engine
from tests.fixtures.runner import Running
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import ImapServer, Profile

Serve = Callable[[Profile | frozenset[str]], Awaitable[ImapServer]]
Start = Callable[..., Awaitable[Engine]]
Run = Callable[..., Awaitable[Running]]


@pytest.fixture
def account() -> Account:
    """The model of the one account."""
    return Account("user", "secret")


@pytest.fixture
async def serve(account: Account) -> AsyncIterator[Serve]:
    """Start a server of a profile (or capabilities) for the account."""
    async with contextlib.AsyncExitStack() as servers:

        async def begin(profile: Profile | frozenset[str]) -> ImapServer:
            return await servers.enter_async_context(ImapServer([account], profile))

        yield begin


@pytest.fixture
async def start(serve: Serve) -> AsyncIterator[Start]:
    """Start a server of a profile (or capabilities) for the account, and an engine on it."""
    async with contextlib.AsyncExitStack() as engines:

        async def begin(profile: Profile | frozenset[str], **how: Any) -> Engine:
            engine = Engine(await serve(profile), **how)
            engines.push_async_callback(engine.close)
            return engine

        yield begin


@pytest.fixture
async def run(serve: Serve) -> AsyncIterator[Run]:
    """Start a server of a profile (or capabilities) for the account, and prepare a runner on it."""
    async with contextlib.AsyncExitStack() as runnings:

        async def begin(profile: Profile | frozenset[str], **how: Any) -> Running:
            running = Running(await serve(profile), **how)
            runnings.push_async_callback(running.stop)
            return running

        yield begin
