"""Fleets for end-to-end tests: each test has topics, a database and mail users of its own on the shared services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
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


FLEETS: pytest.StashKey[list[Fleet]] = pytest.StashKey()
TAIL_LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What failed comes with the last words of its workers: their files are gone when somebody wants to know."""
    report = yield
    if report.failed and report.when == "call":
        for fleet in item.stash.get(FLEETS, []):
            for worker in fleet.workers.values():
                report.sections.append((f"worker {worker.name}", worker.tail(TAIL_LINES)))
    return report


@pytest.fixture
async def new_fleet(
    tmp_path: Path, kafka: Broker, database: str, topic_prefix: str, request: pytest.FixtureRequest
) -> AsyncIterator[NewFleet]:
    """Makes a fleet; arguments of `Fleet` may be given, settings first."""
    async with AsyncExitStack() as stack:

        async def make(settings: Mapping[str, str] | None = None, **options: Any) -> Fleet:
            given: dict[str, Any] = {"bootstrap": kafka.bootstrap, "dsn": database, "prefix": topic_prefix} | options
            fleet = await stack.enter_async_context(running_fleet(tmp_path, settings=settings, **given))
            request.node.stash.setdefault(FLEETS, []).append(fleet)
            return fleet

        yield make


@pytest.fixture
def add_account(new_mail_user: Callable[[Dovecot], MailUser]) -> AddAccount:
    """Makes a mail user and an account for it."""

    async def add(fleet: Fleet, server: Dovecot, **options: Any) -> Mailer:
        user = new_mail_user(server)
        return await fleet.add(user.name, user.password, user.host, user.port, **options)

    return add
