"""Kafka records to slices: what a batch of one partition means, and where it has to end.

Invariant: a slice holds only what precedes a record that cannot be read, so a malformed event stops its partition
exactly there and not a batch earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from streams.contracts import topics
from streams.contracts.account import AccountSyncStatus, AccountTierChanged
from streams.contracts.codec import Decoder
from streams.errors import PoisonRecord
from streams.projection.batch import Position, Slice, Source
from streams.projection.decoding import MalformedEvent, UnknownEvent, clean_text, decode_change

PROJECTED: Final = (topics.CHANGES, topics.SYNC_STATUS, topics.TIER_CHANGED)
"""The topics that become rows."""

DECODED_AT_ONCE: Final = 250
"""Records between two turns of the event loop, which belongs to a worker with thousands of accounts: about 2 ms."""

_STATUS: Final[Decoder[AccountSyncStatus]] = Decoder(AccountSyncStatus)
_TIER: Final[Decoder[AccountTierChanged]] = Decoder(AccountTierChanged)


class Reader:
    """Turns records of the projected topics into slices and counts what it could not use."""

    def __init__(self, on_ignored: Callable[[str, str], None]) -> None:
        """`on_ignored` hears of each record that is passed over: the topic (without prefix) and the reason."""
        self._ignored = on_ignored

    async def slice_of(
        self, source: Source, position: Position, records: Sequence[Any]
    ) -> tuple[Slice, MalformedEvent | None]:
        """The slice that begins at `position` and, when a record in it is no event, why it ends before that."""
        piece = Slice(source, position.topic_id, position.next_offset, position.next_offset)
        for first in range(0, len(records), DECODED_AT_ONCE):
            for record in records[first : first + DECODED_AT_ONCE]:
                if source.topic == topics.CHANGES:
                    try:
                        self._change(piece, record)
                    except MalformedEvent as error:
                        where = f"{source.topic}-{source.partition} at offset {record.offset}"
                        return piece, MalformedEvent(f"{where}: {error}")
                else:
                    self._latest(piece, record)
                piece.next_offset = record.offset + 1
            await asyncio.sleep(0)
        return piece, None

    def _change(self, piece: Slice, record: Any) -> None:
        decoded = decode_change(record.value)
        if isinstance(decoded.event, UnknownEvent):
            self._ignored(piece.source.topic, "unknown_type")
        piece.changes.append(decoded)
        piece.offsets.append(record.offset)

    def _latest(self, piece: Slice, record: Any) -> None:
        """Compacted topics: the last record of a key counts, and a bad one is soon followed by a good one."""
        key = (record.key or b"").decode("utf-8", "replace")
        try:
            if record.value is None:
                if len(key) == 36:
                    target: dict[str, Any] = piece.statuses if piece.source.topic == topics.SYNC_STATUS else piece.tiers
                    target[key] = None
            elif piece.source.topic == topics.SYNC_STATUS:
                status = _STATUS(clean_text(record.value))
                piece.statuses[status.account_id] = status
            else:
                tier = _TIER(clean_text(record.value))
                piece.tiers[tier.account_id] = tier
        except PoisonRecord as error:
            self._ignored(piece.source.topic, error.reason)
