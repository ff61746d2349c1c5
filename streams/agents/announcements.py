"""Publishes states of accounts, many at a time and each until Kafka has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import Final

from aiokafka.errors import KafkaError

from streams.agents.ports import Outbox, Outgoing
from streams.contracts.account import AccountStateChanged
from streams.contracts.codec import cloud_event_headers, encode
from streams.contracts.topics import STATE_CHANGED
from streams.errors import ServiceUnavailable

UNDER_WAY: Final = 256
"""Announcements that may be under way; the next one waits for the oldest."""

SOURCE: Final = "mailstreams/reconcile"


class Announcements:
    """Announcements of one comparison. Raises `ServiceUnavailable` when Kafka does not take one."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._deliveries: deque[Awaitable[object]] = deque()

    async def publish(self, event: AccountStateChanged) -> None:
        """Send one; it is under way when this returns."""
        headers = cloud_event_headers(
            event_id=f"{event.account_id}/{event.version if event.version is not None else event.at.isoformat()}",
            event_type=STATE_CHANGED,
            source=SOURCE,
            at=event.at,
        )
        try:
            delivery = await self._outbox.send(
                Outgoing(STATE_CHANGED, event.account_id.encode(), encode(event), headers)
            )
        except KafkaError as error:
            raise ServiceUnavailable(f"Kafka takes no announcement: {error!r}") from error
        self._deliveries.append(delivery)
        if len(self._deliveries) > UNDER_WAY:
            await self._oldest()

    async def delivered(self) -> None:
        """Wait until Kafka has all of them."""
        while self._deliveries:
            await self._oldest()

    async def _oldest(self) -> None:
        try:
            await self._deliveries.popleft()
        except KafkaError as error:
            raise ServiceUnavailable(f"Kafka took no announcement: {error!r}") from error
