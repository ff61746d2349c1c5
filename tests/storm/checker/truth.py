"""The whole check in one call: read everything, apply every rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.storm.checker import rules
from tests.storm.checker.clocks import Jump
from tests.storm.checker.content import messages_in_database, told_of_messages
from tests.storm.checker.database import Database, every_text, read_database
from tests.storm.checker.findings import Report
from tests.storm.checker.fold import FoldedAccount, fold
from tests.storm.checker.invitations import assignments, log_records, nobody_invited, uninvited
from tests.storm.checker.journal import Journal, ended, explained, untouched
from tests.storm.checker.log import Event, Kafka, Raw, end_offsets, read_events, read_raw, topics_of
from tests.storm.checker.secrets import leaks
from tests.storm.checker.server import Login, ServerMailbox, listed, read_server

PUBLIC_TOPICS: Final = (
    "mailbox.changes",
    "mailbox.mirror",
    "account.state_changed",
    "account.sync_status",
    "account.tier_changed",
    "sync.commands",
    "sync.command_events",
    "sync.jobs",
    "sync.jobs.state",
    "account.heat",
    "user.accounts",
    "user.active",
    "user.active.dlq",
    "account.state_changed.dlq",
    "sync.commands.dlq",
    "sync.jobs.dlq",
)
_READERS: Final = 4
_LOOKS: Final = 5
"""How often everything is read again because the log has gone on meanwhile."""


@dataclass(frozen=True, slots=True)
class World:
    """Where everything is, and what is known of it beforehand."""

    kafka: Kafka
    dsn: str | None
    logins: Sequence[Login]
    journals: Mapping[str, Journal] = field(default_factory=dict)
    commands: frozenset[str] = frozenset()
    secrets: Sequence[str] = field(default=(), repr=False)
    logs: Sequence[Path] = ()
    outside: Callable[[], Iterable[tuple[str, bytes]]] = tuple
    """What processes show of themselves, asked for when secrets are looked for: command lines, probes, files."""

    jumps: Sequence[Jump] = ()
    """Wrong clocks of workers."""

    scripts_at_rest: bool = True
    """Nobody but the product has touched the mail since the journals were written."""

    stopped: frozenset[str] = frozenset()
    """Accounts that are not live: their log may lag behind the server, and must still be sound."""


@dataclass(slots=True)
class Seen:
    """What was read, for questions that a test has of its own."""

    events: list[Event]
    accounts: dict[str, FoldedAccount]
    servers: dict[str, dict[str, ServerMailbox]]
    database: Database | None
    report: Report


async def read_servers(logins: Iterable[Login]) -> dict[str, dict[str, ServerMailbox]]:
    """All accounts at their mail servers, a few at a time."""
    room = asyncio.Semaphore(_READERS)

    async def one(login: Login) -> tuple[str, dict[str, ServerMailbox]]:
        async with room:
            return login.account, await asyncio.to_thread(read_server, login)

    return dict(await asyncio.gather(*(one(login) for login in logins)))


async def read_contradicted(
    logins: Iterable[Login], servers: Mapping[str, Mapping[str, ServerMailbox]]
) -> dict[str, set[str]]:
    """Wire names of mailboxes that a server lists and refuses to open: a server that is stopped while it deletes one
    may leave such a thing behind.
    """
    found = {}
    for login in logins:
        if login.account in servers:
            found[login.account] = await asyncio.to_thread(listed, login) - servers[login.account].keys()
    return found


async def _set_aside(kafka: Kafka) -> dict[str, set[str]]:
    """Names of the mailboxes of each account that its latest status says are not followed."""
    found: dict[str, set[str]] = {}
    async for raw in read_raw(kafka, "account.sync_status"):
        if raw.value:
            found[(raw.key or b"").decode()] = set(json.loads(raw.value).get("set_aside") or ())
    return found


async def check(world: World) -> Seen:
    """Compare mail server, log and database, and report everything that is wrong. Changes nothing."""
    report = Report()
    events, strange = await read_events(world.kafka)
    for _ in range(_LOOKS):
        servers = await read_servers(world.logins)
        database = await read_database(world.dsn) if world.dsn else None
        before = len(events)
        events, strange = await read_events(world.kafka)
        if len(events) == before:
            break  # nothing came in between: the log, the servers and the database are of one moment
    accounts = fold(events)

    report.add(rules.strange_records(strange))
    report.add(rules.headers_of_changes(events))
    report.add(rules.sequences(events))
    report.add(rules.writers(events))
    given = assignments(await asyncio.to_thread(log_records, world.logs), world.jumps)
    report.add(nobody_invited(events, given, world.logs))
    report.add(uninvited(events, given, world.jumps))
    for account in accounts.values():
        report.add(account.nonsense)
    unopened = await read_contradicted(world.logins, servers)
    aside = await _set_aside(world.kafka) if any(unopened.values()) else {}
    for name, server in servers.items():
        folded = accounts.get(name) or FoldedAccount(name)
        if name not in world.stopped:
            # what is still in the log must be said to be set aside
            shown = {box.wire_name for box in folded.mailboxes.values() if box.name in aside.get(name, ())}
            report.add(rules.log_against_server(folded, server, unopened[name] & shown))
            report.add(told_of_messages(folded, server))
            report.count("contradicted", len(unopened[name]))
        if name in world.journals:
            if world.scripts_at_rest:
                report.add(untouched(name, world.journals[name], server))
            world.journals[name].observe(server)
            report.add(explained(folded, world.journals[name]))
            if name not in world.stopped:  # of an account that was removed every mailbox is told as deleted
                report.add(ended(folded, world.journals[name], server))
        report.count("messages", sum(len(mailbox.messages) for mailbox in server.values()))
        report.count("mailboxes", len(server))
    if database is not None:
        for account in accounts.values():
            report.add(rules.log_against_database(account, database))
            report.add(messages_in_database(account, database.contents.get(account.account, {})))
        report.add(rules.nothing_else_in_database(accounts, database))
        ends = await end_offsets(world.kafka, "mailbox.changes")
        report.add(rules.positions(database, "mailbox.changes", events, ends))
    if world.commands:
        told = [raw async for raw in read_raw(world.kafka, "sync.command_events")]
        report.add(rules.conclusions(told, world.commands))
        report.count("commands", len(world.commands))
    if world.secrets:
        report.add(leaks(world.secrets, [place async for place in _everywhere(world)]))
    # Allowed, and worth a look when there are many: what was missed at first, and what the product could not read.
    report.count("repaired", sum(event.body.get("origin") == "repair" for event in events))
    report.count("unreadable", sum(len(account.unreadable) for account in accounts.values()))
    report.count("events", len(events))
    report.count("accounts", len(servers))
    report.count("writers", len({(event.partition, event.writer) for event in events}))
    return Seen(events, accounts, servers, database, report)


async def _everywhere(world: World) -> AsyncIterator[tuple[str, bytes]]:
    # Also those that nobody named beforehand: changelogs of the tables, what a later version may add.
    for topic in sorted({*PUBLIC_TOPICS, *await topics_of(world.kafka)}):
        async for raw in read_raw(world.kafka, topic, committed=False):
            yield f"{topic} {raw.partition}@{raw.offset}", b"\n".join(_parts(raw))
    if world.dsn:
        for table, line in await every_text(world.dsn):
            yield f"table {table}", line.encode("utf-8", "surrogateescape")
    for place in await asyncio.to_thread(lambda: list(world.outside())):
        yield place
    for path in world.logs:
        if await asyncio.to_thread(path.exists):
            yield f"log {path.name}", await asyncio.to_thread(path.read_bytes)


def _parts(raw: Raw) -> Iterator[bytes]:
    yield raw.key or b""
    yield raw.value or b""
    for name, value in raw.headers:
        yield name.encode() + b"=" + value
