"""Reading one partition from an offset to the end that it has now, read_committed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

CLOSE_LIMIT_S: Final = 2.0
STALL_LIMIT_S: Final = 30.0
"""Longest time without progress while there is something to come."""


async def read_to_end(
    client: dict[str, Any],
    topic: str,
    partition: int,
    take: Callable[[ConsumerRecord], None],
    *,
    start: int | None = None,
) -> int:
    """Hand every record of the partition from `start` (None: from its beginning) to `take`; returns where it ends.

    Under read_committed the end is the last stable offset, and positions pass control batches, so that "position at
    the end" is exact. Raises `KafkaError`, and `TimeoutError` when the partition stalls.
    """
    consumer = AIOKafkaConsumer(
        **client, enable_auto_commit=False, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    try:
        await consumer.start()
        tp = TopicPartition(topic, partition)
        consumer.assign([tp])
        first = (await consumer.beginning_offsets([tp]))[tp]
        end: int = (await consumer.end_offsets([tp]))[tp]
        consumer.seek(tp, first if start is None else max(first, start))
        position: int = await consumer.position(tp)
        moved_at = time.monotonic()
        while position < end:
            for record in (await consumer.getmany(tp, timeout_ms=500, max_records=5000)).get(tp, ()):
                take(record)
            before, position = position, await consumer.position(tp)
            if position > before:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > STALL_LIMIT_S:
                raise TimeoutError(f"partition {partition} of {topic} gave nothing for {STALL_LIMIT_S:g} s")
        return end
    finally:
        await close_within(consumer.stop(), CLOSE_LIMIT_S)


async def close_within(closing: Any, limit_s: float) -> None:
    """Close a client; one that cannot reach its broker may hang, and is left behind."""
    with contextlib.suppress(KafkaError, TimeoutError, OSError):
        async with asyncio.timeout(limit_s):
            await closing
