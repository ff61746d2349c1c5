"""Engines over scripted servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.fixtures.engine import Engine
from tests.fixtures.runner import Running
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import ImapServer, Profile

Start = Callable[..., Awaitable[Engine]]
Run = Callable[..., Awaitable[Running]]


@pytest.fixture
def account() -> Account:
    """The model of the one account."""
    return Account("user", "secret")


@pytest.fixture
async def start(account: Account) -> AsyncIterator[Start]:
    """Start a server of a profile (or capabilities) for the account, and an engine on it."""
    servers: list[ImapServer] = []
    engines: list[Engine] = []

    async def begin(profile: Profile | frozenset[str], **how: Any) -> Engine:
        server = ImapServer([account], profile)
        await server.start()
        servers.append(server)
        engine = Engine(server, **how)
        engines.append(engine)
        return engine

    yield begin
    for engine in engines:
        await engine.close()
    for server in servers:
        await server.stop()


@pytest.fixture
async def run(account: Account) -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """Start a server of a profile (or capabilities) for the account, and prepare a runner on it."""
    servers: list[ImapServer] = []
    runnings: list[Running] = []

    async def begin(profile: Profile | frozenset[str], **how: Any) -> Running:
        server = ImapServer([account], profile)
        await server.start()
        servers.append(server)
        running = Running(server, **how)
        runnings.append(running)
        return running

    yield begin
    for running in runnings:
        await running.stop()
    for server in servers:
        await server.stop()
