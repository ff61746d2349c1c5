"""The data plane alone: a host of shards against real services, with a membership that tests decide on."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streams.contracts.keys import partition_for
from streams.directory.accounts import AccountStore, NewAccount
from streams.directory.credentials import CredentialBox, StoredPassword, generate_key
from streams.directory.sources import CredentialSources
from streams.domain.ownership import AccountEntry
from streams.errors import MembershipLost
from streams.imap.credentials import Secret
from streams.imap.hosts import HostGate, HostPolicy
from streams.imap.tls import client_tls_context
from streams.imap.values import TlsMode
from streams.observer import NoopObserver
from streams.projection.migrations import migrate
from streams.runtime.topics import TopicAdmin, wanted_topics
from streams.settings import Settings, load_settings
from streams.sync.connections import Connector
from streams.sync.hosting import Host
from tests.fixtures.services import MailUser
from tests.integration.sync.folding import LogReader

PARTITIONS = 2


@dataclass
class TestMembership:
    """Proof of membership as a test wants it."""

    __test__ = False
    member: bool = True
    proofs: int = 0

    async def prove(self) -> None:
        self.proofs += 1
        if not self.member:
            raise MembershipLost("the group has moved on")


@dataclass
class Plane:
    """Settings, directory and hosts of one test."""

    settings: Settings
    store: AccountStore
    box: CredentialBox
    data: Path
    entries: dict[str, AccountEntry] = field(default_factory=dict)
    hosts: list[Host] = field(default_factory=list)

    async def add(self, user: MailUser, *, tls: TlsMode = "plain", password: str | None = None) -> str:
        """Store an account; hosts that start afterwards find it."""
        new = NewAccount(user_id="u1", host=user.host, port=user.port, tls=tls, username=user.name, auth="password")
        sealed = self.box.seal(new.account_id, StoredPassword(Secret(password or user.password)))
        account = dataclasses.replace(new, sealed=sealed)
        row = await self.store.add(account)
        self.entries[row.account_id] = AccountEntry(row.account_id, "u1", "live", row.version)
        return row.account_id

    async def accounts(self, partition: int) -> AsyncIterator[AccountEntry]:
        for entry in list(self.entries.values()):
            if partition_for(entry.account_id, self.settings.PARTITIONS) == partition:
                yield entry

    async def host(self, name: str = "w1", *, assign: bool = True, **overrides: Any) -> Host:
        settings = self.settings.model_copy(update={"DATA_DIR": self.data / name, **overrides})
        sources = CredentialSources(self.store, self.box)
        gate = HostGate(HostPolicy(logins_per_s=1000))
        connector = Connector(settings, self.store, sources, gate, client_tls_context(), NoopObserver())
        host = Host(settings, connector, NoopObserver(), worker=name)
        await host.start()
        self.hosts.append(host)
        if assign:
            await self.assign(host)
        return host

    async def assign(
        self, host: Host, partitions: set[int] | None = None, membership: TestMembership | None = None
    ) -> None:
        wanted = frozenset(range(self.settings.PARTITIONS)) if partitions is None else frozenset(partitions)
        await host.assigned(wanted, membership or TestMembership(), self.accounts)

    def partition(self, account_id: str) -> int:
        return partition_for(account_id, self.settings.PARTITIONS)


async def eventually(check: Callable[[], Any], *, seconds: float = 30.0, what: str = "") -> Any:
    """Wait until `check` (plain or async) gives something true; polls, since Kafka and Dovecot tell nobody."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or check}")
        await asyncio.sleep(0.05)


@pytest.fixture
async def plane(
    kafka: Any, database: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Plane]:
    monkeypatch.setenv("MAILSTREAMS_ENV_FILE", "/dev/null")
    settings = load_settings(
        KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap,
        KAFKA_TOPIC_PREFIX=topic_prefix,
        PARTITIONS=PARTITIONS,
        POSTGRES_DSN=database,
        ENCRYPTION_KEYS=generate_key(),
        IMAP_ALLOW_PRIVATE=True,
        IMAP_ALLOW_PLAINTEXT=True,
        POLL_WARM=1.0,
        POLL_COLD=2.0,
        BACKOFF_MIN_S=0.2,
        BACKOFF_MAX_S=1.0,
        KAFKA_TRANSACTION_TIMEOUT_S=10,
        TIER_EVALUATION_S=3600,
    )
    await migrate(database)
    async with TopicAdmin.connected(settings) as admin:
        await admin.create(wanted_topics(settings))
    store = await AccountStore.open(settings)
    plane = Plane(settings, store, CredentialBox.from_settings(settings), tmp_path)
    try:
        yield plane
    finally:
        await asyncio.gather(*(host.stop(3.0) for host in plane.hosts))
        await store.close()


@pytest.fixture
async def reader(plane: Plane) -> AsyncIterator[LogReader]:
    async with LogReader.open(plane.settings) as reader:
        yield reader
