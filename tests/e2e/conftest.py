"""Fleets for end-to-end tests: each test has topics, a database and mail users of its own on the shared services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from streams.local.dovecot import Dovecot, DovecotOptions
from tests.fixtures.services import Broker, MailUser
from tests.rig.fleet import Fleet, running_fleet
from tests.rig.mailer import Mailer

NewFleet = Callable[..., Awaitable[Fleet]]
AddAccount = Callable[..., Awaitable[Mailer]]
PrivateDovecot = Callable[[DovecotOptions], Awaitable[Dovecot]]


@pytest.fixture
async def new_fleet(tmp_path: Path, kafka: Broker, database: str, topic_prefix: str) -> AsyncIterator[NewFleet]:
    """Makes a fleet; arguments of `Fleet` may be given, settings first."""
    async with AsyncExitStack() as stack:

        async def make(settings: Mapping[str, str] | None = None, **options: Any) -> Fleet:
            given: dict[str, Any] = {"bootstrap": kafka.bootstrap, "dsn": database, "prefix": topic_prefix} | options
            return await stack.enter_async_context(running_fleet(tmp_path, settings=settings, **given))

        yield make


@pytest.fixture
def add_account(new_mail_user: Callable[[Dovecot], MailUser]) -> AddAccount:
    """Makes a mail user and an account for it."""

    async def add(fleet: Fleet, server: Dovecot, **options: Any) -> Mailer:
        user = new_mail_user(server)
        return await fleet.add(user.name, user.password, user.host, user.port, **options)

    return add
