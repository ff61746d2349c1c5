"""Acknowledges events in order, each after everything that was to be sent for it is in Kafka.

Agents do not wait for one delivery before they handle the next event: a round trip to the broker for each would bound
them to a few hundred events a second. Invariants: an event is acknowledged only when all records sent for it were
accepted and all events before it in its topic were acknowledged; at most `WINDOW` events are under way; what Kafka
does not accept is sent again until it does, or until the partition may have another owner, who gets the event again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aiokafka.errors import MessageSizeTooLargeError

from streams.agents.ports import Outbox, Outgoing

WINDOW: Final = 512
"""Events under way per topic: a bound on memory and on what is handled again after a crash."""

RESEND_MIN_S: Final = 0.2
RESEND_MAX_S: Final = 5.0

CUT_BYTES: Final = 524_288
"""What is kept of a value that with its dead letter's headers became too large to be sent."""

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _UnderWay:
    records: Sequence[Outgoing]
    deliveries: list[Awaitable[object] | None]
    acknowledge: Callable[[], object]
    ours: Callable[[], bool]
    since: float = field(default_factory=time.monotonic)


class Deliveries:
    """The events of one topic whose records are on their way. `run` is the task that brings them to an end."""

    def __init__(self, topic: str, outbox: Outbox, *, window: int = WINDOW) -> None:
        self.topic = topic
        self._outbox = outbox
        self._queue: deque[_UnderWay] = deque()
        self._window = window
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def put(
        self, records: Sequence[Outgoing], acknowledge: Callable[[], object], ours: Callable[[], bool]
    ) -> None:
        """Send `records`, and acknowledge the event after them. Waits while too many events are under way.

        `ours` tells whether the event's partition is still assigned as it was when the event came.
        """
        while len(self._queue) >= self._window:
            self._room.clear()
            await self._room.wait()
        deliveries = [await self._send(record) for record in records]
        self._queue.append(_UnderWay(records, deliveries, acknowledge, ours))
        self._arrived.set()

    def oldest_s(self) -> float:
        """How long the oldest event has been under way; 0 without any."""
        return time.monotonic() - self._queue[0].since if self._queue else 0.0

    async def run(self) -> None:
        """Acknowledge in order, for good."""
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            event = self._queue[0]
            if await self._delivered(event):
                event.acknowledge()
            self._queue.popleft()
            self._room.set()

    async def _delivered(self, event: _UnderWay) -> bool:
        """Whether all records are in Kafka; False when the event is somebody else's by now."""
        wait = RESEND_MIN_S
        for index, record in enumerate(event.records):
            while True:
                delivery = event.deliveries[index]
                try:
                    if delivery is not None:
                        await delivery
                        break
                except MessageSizeTooLargeError:
                    record = _cut(record)
                except asyncio.CancelledError:
                    # A producer that stops cancels what it has not sent; that is no cancellation of this task.
                    if not (isinstance(delivery, asyncio.Future) and delivery.cancelled()):
                        raise
                except Exception as error:
                    _LOGGER.warning("sending to %s failed, trying again: %r", record.topic, error)
                if not event.ours():
                    return False
                await asyncio.sleep(wait)
                wait = min(wait * 2, RESEND_MAX_S)
                event.deliveries[index] = await self._send(record)
        return event.ours()

    async def _send(self, record: Outgoing) -> Awaitable[object] | None:
        """The delivery of a record; None when the producer did not even take it."""
        try:
            return await self._outbox.send(record)
        except MessageSizeTooLargeError:
            return await self._send(_cut(record))
        except Exception as error:
            # Nothing may escape an agent, and a producer that is being stopped has errors of its own.
            _LOGGER.warning("the producer does not take a record for %s: %r", record.topic, error)
            return None


def _cut(record: Outgoing) -> Outgoing:
    """The record with less of its value, and a header that says so. Only dead letters ever come near the limit."""
    kept = min(len(record.value or b"") // 2, CUT_BYTES)
    headers = [item for item in record.headers if item[0] != "dlq_truncated"]
    return replace(record, value=(record.value or b"")[:kept], headers=(*headers, ("dlq_truncated", b"true")))
