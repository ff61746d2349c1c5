"""From a raw record to a handler. Owns what happens to records that are wrong: none is lost, none stops a stream.

* A value that is no valid record goes to the topic's dead letters, as it came, with reason and origin in its headers.
* A record with a wrong key, or in a partition to which its key does not lead (a producer with another partitioner), is
  sent again with the right key and counted. It carries a mark then, and is a dead letter if it comes back.
* A handler that fails is tried again, a few times, then the record becomes a dead letter.
* A handler that cannot do its work for now (a table that cannot be written) is tried until it can.

Invariant: `handled` never raises for a record's content; what it returns has to reach Kafka before the record is done.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from streams.agents.ports import Outgoing
from streams.contracts.codec import Decoder, check_sendable, dead_letter_headers, dead_letter_key, header
from streams.contracts.keys import partition_for
from streams.contracts.topics import dead_letter_name
from streams.errors import PoisonRecord, RetryLater
from streams.observer import RuntimeObserver

REKEYED_HEADER: Final = "rekeyed_from"
"""Marks a record that was sent again to the partition of its key; the value is `partition/offset` of where it was."""

HANDLER_ATTEMPTS: Final = 5
"""Attempts of a handler before its record is a dead letter: 0.1 + 0.2 + 0.4 + 0.8 s of waiting in all."""

HANDLER_BACKOFF_S: Final = 0.1

UNAVAILABLE_BACKOFF_S: Final = 5.0
"""Longest wait between two attempts while something that all events need does not work."""

R = TypeVar("R", bound=msgspec.Struct)

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inbound:
    """A record as it came. `topic` is the name in the registry, without prefix."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


Handle = Callable[[Inbound, R], Sequence[Outgoing]]
"""Changes tables, tells the host, returns what is to be sent. Synchronous, idempotent; repeated when it raises."""

Forget = Callable[[Inbound, str], Sequence[Outgoing]]
"""The same for a tombstone, given the key."""


class Intake(Generic[R]):
    """Checks and handles the records of one topic."""

    def __init__(
        self,
        decode: Decoder[R],
        key_of: Callable[[R], str],
        handle: Handle[R],
        *,
        partitions: int,
        observer: RuntimeObserver,
        forget: Forget | None = None,
        key_pattern: re.Pattern[str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`forget` handles tombstones whose key fits `key_pattern`; without it a missing value is a dead letter."""
        self._decode = decode
        self._key_of = key_of
        self._handle = handle
        self._forget = forget
        self._key_pattern = key_pattern
        self._partitions = partitions
        self._observer = observer
        self._sleep = sleep

    async def handled(self, record: Inbound, ours: Callable[[], bool] = lambda: True) -> Sequence[Outgoing] | None:
        """Handle one record; returns what has to be sent for it to be done.

        None when its partition went to somebody else meanwhile (`ours` tells), who gets the record as well.
        """
        attempt = unavailable = 0
        while True:
            if not ours():
                return None
            try:
                return self._attempt(record)
            except PoisonRecord as poison:
                return [self._dead_letter(record, poison)]
            except RetryLater as error:
                # Every event would fail now. The topic stands still, which the probes show, until the cause is gone.
                unavailable += 1
                _LOGGER.warning("handling %s/%d waits: %s", record.topic, record.partition, error)
                await self._sleep(min(HANDLER_BACKOFF_S * 2 ** min(unavailable, 8), UNAVAILABLE_BACKOFF_S))
                continue
            except Exception as error:
                attempt += 1
                _LOGGER.exception(
                    "handling %s/%d at offset %d failed, attempt %d",
                    record.topic,
                    record.partition,
                    record.offset,
                    attempt,
                )
                if attempt == HANDLER_ATTEMPTS:
                    return [self._dead_letter(record, PoisonRecord("handler_failed", type(error).__name__))]
            await self._sleep(HANDLER_BACKOFF_S * 2 ** (attempt - 1))

    def _attempt(self, record: Inbound) -> Sequence[Outgoing]:
        if record.value is None:
            key = self._tombstone_key(record)
            if self._misplaced(record, key):
                return [self._rekeyed(record, key)]
            assert self._forget is not None
            return self._forget(record, key)
        message = self._decode(record.value)
        key = self._key_of(message)
        if self._misplaced(record, key):
            return [self._rekeyed(record, key)]
        return self._handle(record, message)

    def _tombstone_key(self, record: Inbound) -> str:
        if self._forget is None:
            raise PoisonRecord("schema", "the value is missing")
        key = (record.key or b"").decode("utf-8", "replace")
        if self._key_pattern is not None and not self._key_pattern.match(key):
            raise PoisonRecord("wrong_key", "the value is missing and the key is not an id")
        return key

    def _misplaced(self, record: Inbound, key: str) -> bool:
        return record.key != key.encode() or record.partition != partition_for(key, self._partitions)

    def _rekeyed(self, record: Inbound, key: str) -> Outgoing:
        if header(record.headers, REKEYED_HEADER) is not None:
            raise PoisonRecord("wrong_key", "the record was given its key once and is still in a wrong partition")
        check_sendable(record.headers)
        self._observer.rekeyed(record.topic)
        mark = (REKEYED_HEADER, f"{record.partition}/{record.offset}".encode())
        return Outgoing(record.topic, key.encode(), record.value, (*record.headers, mark))

    def _dead_letter(self, record: Inbound, poison: PoisonRecord) -> Outgoing:
        self._observer.poison(record.topic, poison.reason)
        _LOGGER.warning(
            "dead letter: %s/%d offset %d: %s: %s", record.topic, record.partition, record.offset, poison.reason, poison
        )
        headers = dead_letter_headers(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=poison.reason,
            error=str(poison),
            original=record.headers,
        )
        key = dead_letter_key(record.key, headers)
        return Outgoing(dead_letter_name(record.topic), key, record.value, headers)
