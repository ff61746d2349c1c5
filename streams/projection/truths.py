"""What database and log say an account's mail is, for `verify` and for whoever wants to compare. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.contracts import topics
from streams.directory.postgres import open_pool, translated
from streams.errors import ServiceUnavailable
from streams.settings import Settings

Places = Mapping[tuple[str, int, int], frozenset[str]]

_ANSWER_S: Final = 60.0
_PLACES: Final = """
SELECT mailbox_id, uidvalidity, uid, flags FROM mail.places WHERE account_id = $1
"""


class ProjectedTruths:
    """Places of one account as the database and as the committed log have them. One per process; opens lazily."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def database(self, account_id: str) -> Places:
        """Places of the projection: flags by (mailbox id, uidvalidity, uid). Raises `ServiceUnavailable`."""
        with translated("reading places"):
            async with self._opening:  # commands of several accounts ask at once
                if self._pool is None:
                    self._pool = await open_pool(self._settings.POSTGRES_DSN.get_secret_value(), 1)
            rows = await self._pool.fetch(_PLACES, UUID(account_id), timeout=_ANSWER_S)
        return {(r["mailbox_id"], r["uidvalidity"], r["uid"]): frozenset(r["flags"]) for r in rows}

    async def folded_log(self, account_id: str, partition: int) -> Places:
        """Fold of the account's events from the beginning of its partition to the end. Raises `ServiceUnavailable`."""
        tp = TopicPartition(self._settings.topic(topics.CHANGES), partition)
        consumer = AIOKafkaConsumer(
            **self._settings.kafka_client(),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        places: dict[tuple[str, int, int], frozenset[str]] = {}
        key = account_id.encode()
        try:
            async with asyncio.timeout(_ANSWER_S):
                await consumer.start()
                consumer.assign([tp])
                end = (await consumer.end_offsets([tp]))[tp]
                await consumer.seek_to_beginning(tp)
            while True:
                async with asyncio.timeout(_ANSWER_S):
                    if await consumer.position(tp) >= end:
                        return places
                    fetched = await consumer.getmany(tp, timeout_ms=500, max_records=1000)
                for record in fetched.get(tp, ()):
                    if record.key == key and record.offset < end:
                        _apply(places, msgspec.json.decode(record.value))
                await asyncio.sleep(0)
        except (KafkaError, TimeoutError, OSError) as error:
            raise ServiceUnavailable(f"the log could not be read: {type(error).__name__}") from error
        finally:
            await consumer.stop()

    async def close(self) -> None:
        """Close the connection to the database."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()


def _apply(places: dict[tuple[str, int, int], frozenset[str]], event: Mapping[str, Any]) -> None:
    match event["type"]:
        case "message.added" | "message.flags_changed":
            places[_place(event)] = frozenset(event.get("flags", ()))
        case "message.moved":
            places.pop(_place(event["from"]), None)
            places[_place(event["to"])] = frozenset(event.get("flags", ()))
        case "message.removed":
            places.pop(_place(event), None)
        case "mailbox.deleted":
            for place in [p for p in places if p[0] == event["mailbox_id"]]:
                del places[place]
        case _:
            pass


def _place(event: Mapping[str, Any]) -> tuple[str, int, int]:
    return event["mailbox_id"], event["uidvalidity"], event["uid"]
