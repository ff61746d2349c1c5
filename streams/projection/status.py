"""Reads of the projection for people: how accounts are doing, what their folders hold, how far the projection is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from streams.directory.postgres import open_pool, translated
from streams.settings import Settings


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """What shards last said of an account, as far as it is projected."""

    account_id: str
    phase: str | None
    since: datetime | None
    tier: str | None
    tier_reason: str | None
    worker: str | None
    error_code: str | None
    error_message: str | None
    error_mailbox: str | None
    error_at: datetime | None
    retry_at: datetime | None
    last_sync_at: datetime | None
    next_poll_at: datetime | None
    newest_mail_at: datetime | None
    mailboxes: int | None
    messages: int | None
    backfill_remaining: int | None
    partition: int | None = None
    heat_until: datetime | None = None
    set_aside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MailboxStatus:
    """One folder of an account as projected."""

    mailbox_id: str
    name: str
    special_use: str | None
    selectable: bool
    uidvalidity: int | None
    messages: int
    unread: int
    backfilled_at: datetime | None
    backfilled_to: datetime | None


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """How far one partition is projected."""

    topic: str
    partition: int
    topic_id: str
    next_offset: int
    updated_at: datetime


_STATUS: Final = """
SELECT w.account_id::text AS account_id, s.phase, s.since, coalesce(s.tier, t.tier) AS tier,
    coalesce(s.tier_reason, t.reason) AS tier_reason, s.worker, s.error_code, s.error_message,
    s.error_mailbox, s.error_at, s.retry_at, s.last_sync_at, s.next_poll_at, s.newest_mail_at, s.mailboxes,
    s.messages, s.backfill_remaining, s.partition, s.heat_until, coalesce(s.set_aside, '{}')::text AS set_aside
FROM unnest($1::uuid[]) AS w(account_id)
LEFT JOIN mail.sync_status s USING (account_id) LEFT JOIN mail.tiers t USING (account_id)
WHERE s.account_id IS NOT NULL OR t.account_id IS NOT NULL
"""
_MAILBOXES: Final = r"""
SELECT m.mailbox_id, m.name, m.special_use, m.selectable, m.uidvalidity, count(p.uid),
    count(p.uid) FILTER (WHERE NOT '\Seen' = ANY(p.flags)), m.backfilled_at, m.backfilled_to
FROM mail.mailboxes m LEFT JOIN mail.places p USING (account_id, mailbox_id)
WHERE m.account_id = $1::uuid GROUP BY m.account_id, m.mailbox_id ORDER BY m.name
"""
_POSITIONS: Final = """
SELECT topic, partition, topic_id::text, next_offset, updated_at FROM mail.positions ORDER BY topic, partition
"""


class StatusReader:
    """Use `StatusReader.connected`. Methods raise `ServiceUnavailable` while PostgreSQL is down."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @classmethod
    @asynccontextmanager
    async def connected(cls, settings: Settings) -> AsyncIterator[StatusReader]:
        """A reader with a connection of its own."""
        pool = await open_pool(settings.POSTGRES_DSN.get_secret_value(), 1)
        try:
            yield cls(pool)
        finally:
            pool.terminate()

    async def of(self, account_ids: Sequence[str]) -> dict[str, AccountStatus]:
        """Statuses by account; one of which nothing is known is missing."""
        if not account_ids:
            return {}
        with translated("reading the state of accounts"):
            rows = await self._pool.fetch(_STATUS, list(account_ids))
        return {row["account_id"]: AccountStatus(**{**row, "set_aside": json.loads(row["set_aside"])}) for row in rows}

    async def mailboxes(self, account_id: str) -> list[MailboxStatus]:
        """The folders of an account, by name."""
        with translated("reading folders"):
            return [MailboxStatus(*row) for row in await self._pool.fetch(_MAILBOXES, account_id)]

    async def positions(self) -> list[StoredPosition]:
        """How far each partition is."""
        with translated("reading positions"):
            return [StoredPosition(*row) for row in await self._pool.fetch(_POSITIONS)]
