"""Reads the log as any consumer would, and the database as any query would, and measures from deed to both.

Invariant: an event is counted once it is committed (read_committed), and is in the database once the account's
`sequence` there has reached its own: the projector writes both in one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from aiokafka import AIOKafkaConsumer

from streams.local.demo.deeds import Deeds, key_of

DATABASE_POLL_S = 0.01
CONNECT_S = 20.0
SHOWN = 200


@dataclass(slots=True)
class Seen:
    """One event of the log. Times are of the monotonic clock; latencies, in seconds, only where a deed is known."""

    account_id: str
    sequence: int
    kind: str
    what: str
    logged_at: float
    wall: float
    begun_at: float | None = None
    stored_at: float | None = None

    @property
    def log_latency(self) -> float | None:
        """From the deed to its event in the log."""
        return None if self.begun_at is None else max(0.0, self.logged_at - self.begun_at)

    @property
    def database_latency(self) -> float | None:
        """From the deed to its row."""
        if self.begun_at is None or self.stored_at is None:
            return None
        return max(0.0, self.stored_at - self.begun_at)


@dataclass(slots=True)
class Watch:
    """Everything seen so far."""

    deeds: Deeds
    topic: str
    counts: Counter[str] = field(default_factory=Counter)
    recent: deque[Seen] = field(default_factory=lambda: deque(maxlen=SHOWN))
    measured: list[Seen] = field(default_factory=list)
    caught_up: set[str] = field(default_factory=set)
    stored: int = 0
    listeners: list[Callable[[Seen], None]] = field(default_factory=list)
    _waiting: deque[Seen] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _readers: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def unstored(self) -> int:
        """Events of the log whose rows were not seen yet."""
        return len(self._waiting)

    def check(self) -> None:
        """Raise what a reader failed with, if one did."""
        for reader in self._readers:
            if reader.done():
                reader.result()

    @asynccontextmanager
    async def running(self, bootstrap: str, dsn: str) -> AsyncIterator[None]:
        """Read on while inside; `check` tells whether both readers still do."""
        consumer = AIOKafkaConsumer(
            self.topic,  # without a group: every partition, and nothing is committed
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
        )
        await asyncio.wait_for(consumer.start(), CONNECT_S)
        connection = await asyncpg.connect(dsn, timeout=CONNECT_S)
        try:
            self._readers = [asyncio.create_task(self._read(consumer)), asyncio.create_task(self._look(connection))]
            yield
        finally:
            for reader in self._readers:
                reader.cancel()
            await asyncio.gather(*self._readers, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(consumer.stop(), CONNECT_S)
            await connection.close(timeout=CONNECT_S)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            now = time.monotonic()
            if record.value is None:
                continue
            event = json.loads(record.value)
            seen = Seen(event["account_id"], event["sequence"], event["type"], describe(event), now, time.time())
            seen.begun_at = self.deeds.claim(key_of(event))
            self.counts[seen.kind] += 1
            if seen.kind == "account.caught_up":
                self.caught_up.add(seen.account_id)
            self.recent.append(seen)
            if seen.begun_at is not None:
                self.measured.append(seen)
            self._waiting.append(seen)
            self._wake.set()

    async def _look(self, connection: asyncpg.Connection) -> None:
        while True:
            await self._wake.wait()
            rows = await connection.fetch("SELECT account_id::text, sequence FROM mail.accounts")
            now = time.monotonic()
            reached = {row["account_id"]: row["sequence"] for row in rows}
            for _ in range(len(self._waiting)):
                seen = self._waiting.popleft()
                if reached.get(seen.account_id, 0) < seen.sequence:
                    self._waiting.append(seen)
                    continue
                seen.stored_at = now
                self.stored += 1
                for listener in self.listeners:
                    listener(seen)
            if not self._waiting:
                self._wake.clear()
            await asyncio.sleep(DATABASE_POLL_S)


def describe(event: dict[str, Any]) -> str:
    """An event in a few words."""
    match event["type"]:
        case "message.added":
            headers = event.get("headers", {})
            sender = (headers.get("from") or [{}])[0]
            who = sender.get("name") or sender.get("address") or "unknown sender"
            return f"{event['mailbox']}: {headers.get('subject') or '(no subject)'} from {who}"
        case "message.flags_changed":
            changed = [f"+{flag}" for flag in event.get("added", ())] + [
                f"-{flag}" for flag in event.get("removed", ())
            ]
            return f"{event['mailbox']} {event['uid']}: {' '.join(changed)}"
        case "message.moved":
            return f"{event['from']['mailbox']} {event['from']['uid']} to {event['to']['mailbox']} {event['to']['uid']}"
        case "message.removed":
            return f"{event['mailbox']} {event['uid']}"
        case "account.caught_up":
            return f"{event['mailboxes']} mailboxes, {event['messages']} messages"
        case "backfill.completed":
            return f"{event['mailbox']}: {event['messages']} messages"
    return str(event.get("mailbox", ""))
