"""Says on `account.state_changed` what PostgreSQL holds.

Invariant: an announcement carries the row's version, so one that is late or repeated does no harm; one that could not
be sent is made up for by reconcile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, cast

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.contracts import topics
from streams.contracts.account import AccountState, AccountStateChanged
from streams.contracts.codec import cloud_event_headers, encode
from streams.directory.accounts import AccountRow
from streams.errors import ServiceUnavailable
from streams.runtime.checks import unreachable
from streams.runtime.logs import muted
from streams.settings import Settings

DEADLINE_S: Final = 15.0
SOURCE: Final = "mailstreams/cli"


class Announcer:
    """Announces accounts. Use `Announcer.connected`."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic

    @classmethod
    @asynccontextmanager
    async def connected(cls, settings: Settings) -> AsyncIterator[Announcer]:
        """An announcer with a producer of its own. Raises `ServiceUnavailable` when no broker answers."""
        producer = AIOKafkaProducer(
            **settings.kafka_client(), enable_idempotence=True, request_timeout_ms=int(DEADLINE_S * 1000)
        )
        try:
            with muted("aiokafka") as said:
                try:
                    async with asyncio.timeout(DEADLINE_S):
                        await producer.start()
                except (KafkaError, OSError, TimeoutError) as error:
                    raise unreachable(settings, error, said) from None
            yield cls(producer, settings.topic(topics.STATE_CHANGED))
        finally:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await producer.stop()
            except (KafkaError, OSError, TimeoutError):
                pass  # every send was awaited, so nothing is lost with it

    async def announce(self, row: AccountRow, reason: str | None = None) -> None:
        """Say what the row says. Returns when the broker has it; raises `ServiceUnavailable`."""
        at = datetime.now(UTC)
        event = AccountStateChanged(
            account_id=row.account_id,
            user_id=row.user_id,
            state=cast(AccountState, row.state),
            at=at,
            version=row.version,
            reason=reason,
        )
        headers = cloud_event_headers(
            event_id=f"{row.account_id}/{row.version}", event_type=topics.STATE_CHANGED, source=SOURCE, at=at
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._producer.send_and_wait(
                    self._topic, encode(event), key=row.account_id.encode(), headers=headers
                )
        except (KafkaError, OSError, TimeoutError) as error:
            raise ServiceUnavailable(f"Kafka does not take the announcement ({type(error).__name__})") from None
