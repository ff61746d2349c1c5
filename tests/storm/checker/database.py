"""What PostgreSQL holds, read with plain SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from tests.storm.checker.server import canonical_flags

_MAILBOXES: Final = """
SELECT account_id::text, mailbox_id, name, wire_name, selectable, uidvalidity, delimiter, special_use,
    backfilled_at IS NOT NULL AS backfilled
FROM mail.mailboxes
"""
_PLACES: Final = "SELECT account_id::text, mailbox_id, uidvalidity, uid, message_id, flags FROM mail.places"
_CONTENTS: Final = """
SELECT account_id::text, message_id, subject, internet_message_id, in_reply_to, "references", size, cleaned, truncated
FROM mail.messages
"""
_UNREADABLE: Final = "SELECT account_id::text, mailbox_id, uidvalidity, uid FROM mail.unreadable"
_ACCOUNTS: Final = "SELECT account_id::text, sequence, caught_up_at IS NOT NULL AS caught_up FROM mail.accounts"
_POSITIONS: Final = "SELECT topic, partition, next_offset FROM mail.positions"
_STATES: Final = "SELECT account_id::text, state, reason, version FROM mailstreams.accounts"
_STATUSES: Final = """
SELECT account_id::text, phase, worker, partition, tier, mailboxes, messages FROM mail.sync_status
"""
_TABLES: Final = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
_OF_POSTGRES: Final = frozenset({"pg_catalog", "information_schema"})


@dataclass(frozen=True, slots=True)
class Row:
    """A place as the database has it."""

    message: str
    flags: frozenset[str]


@dataclass(slots=True)
class Database:
    """The projection, by account."""

    mailboxes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    places: dict[str, dict[tuple[str, int, int], Row]] = field(default_factory=dict)
    messages: dict[str, set[str]] = field(default_factory=dict)
    contents: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    unreadable: dict[str, set[tuple[str, int, int]]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    caught_up: set[str] = field(default_factory=set)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)


async def read_database(dsn: str) -> Database:
    """All of the projection, in one snapshot."""
    found = Database()
    connection = await asyncpg.connect(dsn, timeout=30, command_timeout=120)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            for row in await connection.fetch(_MAILBOXES):
                found.mailboxes.setdefault(row["account_id"], {})[row["mailbox_id"]] = dict(row)
            for row in await connection.fetch(_PLACES):
                key = (row["mailbox_id"], row["uidvalidity"], row["uid"])
                place = Row(row["message_id"], canonical_flags(row["flags"]))
                found.places.setdefault(row["account_id"], {})[key] = place
            for row in await connection.fetch(_CONTENTS):
                found.contents.setdefault(row["account_id"], {})[row["message_id"]] = dict(row)
                found.messages.setdefault(row["account_id"], set()).add(row["message_id"])
            for row in await connection.fetch(_UNREADABLE):
                key = (row["mailbox_id"], row["uidvalidity"], row["uid"])
                found.unreadable.setdefault(row["account_id"], set()).add(key)
            for row in await connection.fetch(_ACCOUNTS):
                found.sequences[row["account_id"]] = row["sequence"]
                if row["caught_up"]:
                    found.caught_up.add(row["account_id"])
            found.positions = {
                (row["topic"], row["partition"]): row["next_offset"] for row in await connection.fetch(_POSITIONS)
            }
    finally:
        await connection.close()
    return found


async def account_states(dsn: str) -> dict[str, dict[str, Any]]:
    """State, reason and version of each account."""
    connection = await asyncpg.connect(dsn, timeout=30, command_timeout=60)
    try:
        return {row["account_id"]: dict(row) for row in await connection.fetch(_STATES)}
    finally:
        await connection.close()


async def statuses(dsn: str) -> dict[str, dict[str, Any]]:
    """What the projection has of `account.sync_status`, by account."""
    connection = await asyncpg.connect(dsn, timeout=30, command_timeout=60)
    try:
        return {row["account_id"]: dict(row) for row in await connection.fetch(_STATUSES)}
    finally:
        await connection.close()


async def every_text(dsn: str) -> list[tuple[str, str]]:
    """Every row of every table in every schema, as text: (table, row). Bytes are in hex: what is sealed shows nothing,
    and what should have been sealed and is not shows.
    """
    connection = await asyncpg.connect(dsn, timeout=30, command_timeout=120)
    try:
        found: list[tuple[str, str]] = []
        for row in await connection.fetch(_TABLES):
            if row["table_schema"] in _OF_POSTGRES:
                continue
            name = f'"{row["table_schema"]}"."{row["table_name"]}"'
            found.extend(
                (name, record["line"]) for record in await connection.fetch(f"SELECT t::text AS line FROM {name} t")
            )
        return found
    finally:
        await connection.close()
