"""Recording stand-ins for what the control plane talks to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from streams.agents.accounts import AccountEvents
from streams.agents.intake import Inbound, Intake
from streams.agents.ports import AccountsOf, Membership, Outgoing
from streams.agents.tables import AccountRow, Rows, UserRow
from streams.agents.users import UserEvents
from streams.contracts import topics
from streams.contracts.account import AccountHeat, AccountStateChanged, UserAccount, UserActive
from streams.contracts.codec import Decoder
from streams.contracts.keys import partition_for
from streams.domain.ownership import AccountEntry
from streams.observer import NoopObserver

PARTITIONS = 8
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GRACE = timedelta(minutes=16)


@dataclass
class RecordingHost:
    """A host that runs nothing and remembers everything."""

    calls: list[tuple[object, ...]] = field(default_factory=list)
    entries: dict[str, AccountEntry] = field(default_factory=dict)
    heat: dict[str, datetime | None] = field(default_factory=dict)
    partitions: frozenset[int] = frozenset()
    memberships: list[Membership] = field(default_factory=list)
    fail: list[Exception] = field(default_factory=list)

    async def assigned(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        self.calls.append(("assigned", partitions))
        if self.fail:
            raise self.fail.pop()
        self.memberships.append(membership)
        self.partitions = partitions

    async def narrowed(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        self.calls.append(("narrowed", partitions))
        self.memberships.append(membership)
        self.partitions &= partitions

    def unassigned(self) -> None:
        self.partitions = frozenset()
        self.calls.append(("unassigned",))

    def account_changed(self, partition: int, entry: AccountEntry) -> None:
        self.calls.append(("changed", partition, entry))
        self.entries[entry.account_id] = entry
        self.heat[entry.account_id] = entry.heat_until

    def account_forgotten(self, partition: int, account_id: str) -> None:
        self.calls.append(("forgotten", partition, account_id))
        self.entries.pop(account_id, None)
        self.heat.pop(account_id, None)

    def heat_changed(self, partition: int, account_id: str, until: datetime | None) -> None:
        self.calls.append(("heat", partition, account_id, until))
        self.heat[account_id] = until

    def snapshot(self) -> object:
        raise AssertionError("nothing under test asks for it")


class CountingObserver(NoopObserver):
    """Counts what tests look at."""

    def __init__(self) -> None:
        self.rekeyed_topics: list[str] = []
        self.poisoned: list[tuple[str, str]] = []

    def rekeyed(self, topic: str) -> None:
        self.rekeyed_topics.append(topic)

    def poison(self, topic: str, reason: str) -> None:
        self.poisoned.append((topic, reason))


@dataclass
class FakeOutbox:
    """A producer whose deliveries are done at once, unless a failure is queued for them."""

    sent: list[Outgoing] = field(default_factory=list)
    refuse: list[Exception] = field(default_factory=list)
    fail: list[Exception] = field(default_factory=list)
    hold: asyncio.Future[None] | None = None

    async def send(self, record: Outgoing) -> Awaitable[object]:
        if self.refuse:
            raise self.refuse.pop(0)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self.fail:
            future.set_exception(self.fail.pop(0))
            return future
        self.sent.append(record)
        if self.hold is not None:
            return asyncio.shield(self.hold)
        future.set_result(None)
        return future


async def no_sleep(_seconds: float) -> None:
    """Waits for nothing."""


class World:
    """The four topics, their agents and tables, without Kafka: what is sent arrives in the partition of its key."""

    def __init__(self) -> None:
        self.now = NOW
        self.host = RecordingHost()
        self.observer = CountingObserver()
        self.accounts: dict[bytes, bytes] = {}
        self.users: dict[bytes, bytes] = {}
        self.log: list[Inbound] = []
        self.dead: list[Outgoing] = []
        self.restart()

    def restart(self) -> None:
        """Everything that lives in memory is made anew; tables stay."""
        accounts = AccountEvents(Rows(self.accounts, AccountRow), self.host)
        users = UserEvents(Rows(self.users, UserRow), GRACE, lambda: self.now, self._keys_after)
        self.account_rows = accounts.rows
        self.user_rows = users.rows

        def intake(
            record_type: type, key_of: Callable[..., str], handle: Callable[..., object], **more: object
        ) -> Intake:  # type: ignore[type-arg]
            return Intake(
                Decoder(record_type),
                key_of,
                handle,  # type: ignore[arg-type]
                partitions=PARTITIONS,
                observer=self.observer,
                sleep=no_sleep,
                **more,  # type: ignore[arg-type]
            )

        from streams.agents.plane import ACCOUNT_ID

        self.intakes = {
            topics.STATE_CHANGED: intake(
                AccountStateChanged,
                lambda e: e.account_id,
                accounts.state_changed,
                forget=accounts.forgotten,
                key_pattern=ACCOUNT_ID,
            ),
            topics.HEAT: intake(AccountHeat, lambda e: e.account_id, accounts.heat),
            topics.USER_ACTIVE: intake(UserActive, lambda e: e.user_id, users.active),
            topics.USER_ACCOUNTS: intake(UserAccount, lambda e: e.user_id, users.account),
        }

    def _keys_after(self, partition: int, after: str | None, limit: int) -> list[str]:
        keys = sorted(key.decode() for key in self.users if partition_for(key, PARTITIONS) == partition)
        return [key for key in keys if after is None or key > after][:limit]

    async def take(self, record: Inbound) -> list[Outgoing]:
        """Handle one record, and everything that follows from it. Returns what it led to itself."""
        self.log.append(record)
        direct = list(await self.intakes[record.topic].handled(record) or ())
        for outgoing in direct:
            if outgoing.topic.endswith(".dlq"):
                self.dead.append(outgoing)
            else:
                await self.take(self.arrive(outgoing))
        return direct

    def arrive(self, outgoing: Outgoing) -> Inbound:
        """What Kafka makes of a record."""
        assert outgoing.key is not None
        partition = partition_for(outgoing.key, PARTITIONS)
        return Inbound(outgoing.topic, partition, len(self.log), outgoing.key, outgoing.value, tuple(outgoing.headers))

    async def send(
        self,
        topic: str,
        key: str,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> list[Outgoing]:
        """A record of somebody else's."""
        where = partition_for(key, PARTITIONS) if partition is None else partition
        return await self.take(Inbound(topic, where, len(self.log), key.encode(), value, headers))


async def collect(entries: AsyncIterator[AccountEntry]) -> list[AccountEntry]:
    """All that comes."""
    return [entry async for entry in entries]
