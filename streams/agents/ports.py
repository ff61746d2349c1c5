"""What the control plane needs of others: the data plane implements `ShardHost`, Kafka stands behind `Outbox`.

Everything of `ShardHost` but `narrowed` and `assigned` returns at once and may be called for accounts it does not run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from streams.domain.ownership import AccountEntry

AccountsOf = Callable[[int], AsyncIterator[AccountEntry]]
"""The accounts of one partition, whatever their state, as they are when each comes out."""


class Membership(Protocol):
    """Our place in the group, as of one assignment."""

    async def prove(self) -> None:
        """Commit an offset in the generation of the assignment.

        Raises `MembershipLost` when the group refuses it or has moved on, `ServiceUnavailable` when no answer comes.
        """


class ShardHost(Protocol):
    """The shards of this worker."""

    async def narrowed(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        """Hold no shards but these: those that are held go on, the others stop. Nothing starts, and `accounts` is not
        asked yet.
        """

    async def assigned(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        """Hold these shards and no others: those that stay go on with the accounts as they are now, lost ones stop,
        new ones start in their own tasks.
        """

    def unassigned(self) -> None:
        """We are no member of the group any more: stop all runners, close their sockets."""

    def account_changed(self, partition: int, entry: AccountEntry) -> None:
        """An account has come, changed its state, its user or its version."""

    def account_forgotten(self, partition: int, account_id: str) -> None:
        """An account is gone without a trace."""

    def heat_changed(self, partition: int, account_id: str, until: datetime | None) -> None:
        """A session keeps the account hot until then."""

    def snapshot(self) -> Any:
        """How shards and accounts are doing."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to be sent. `topic` is the name in the registry, without prefix; the key decides the partition."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class Outbox(Protocol):
    """Sends records in order."""

    async def send(self, record: Outgoing) -> Awaitable[object]:
        """Hand the record to the producer.

        What is returned is done when Kafka has the record, and raises `KafkaError`.
        """
