"""Reads `mailbox.changes` and folds it, with plain JSON: what a consumer of the log would do."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from imapclient import IMAPClient

from streams.settings import Settings


@dataclass
class Fold:
    """Mailboxes by id and places by (mailbox id, uidvalidity, uid) of one account."""

    names: dict[str, str] = field(default_factory=dict)
    validity: dict[str, int] = field(default_factory=dict)
    places: dict[tuple[str, int, int], tuple[str, frozenset[str]]] = field(default_factory=dict)
    unreadable: set[tuple[str, int, int]] = field(default_factory=set)
    sequence: int = 0
    kinds: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def apply(self, event: dict[str, Any]) -> None:
        assert event["sequence"] == self.sequence + 1, f"gap or repeat: {self.sequence} then {event['sequence']}"
        self.sequence += 1
        kind = event["type"]
        self.kinds.append(kind)
        self.events.append(event)
        match kind:
            case "mailbox.discovered" | "mailbox.renamed":
                self.names[event["mailbox_id"]] = event["mailbox"]
            case "mailbox.deleted":
                del self.names[event["mailbox_id"]]
                self.places = {k: v for k, v in self.places.items() if k[0] != event["mailbox_id"]}
                self.unreadable = {k for k in self.unreadable if k[0] != event["mailbox_id"]}
            case "mailbox.reset":
                self.unreadable = {k for k in self.unreadable if k[0] != event["mailbox_id"]}
            case "message.unreadable":
                assert self._place(event) not in self.places
                self.unreadable.add(self._place(event))
            case "message.added":
                place = self._place(event)
                assert place not in self.places, f"added twice: {place}"
                self.places[place] = (event["message_id"], frozenset(event.get("flags", ())))
                self.unreadable.discard(place)
            case "message.moved":
                old, new = self._place(event["from"]), self._place(event["to"])
                assert self.places.pop(old)[0] == event["message_id"]
                assert new not in self.places
                self.places[new] = (event["message_id"], frozenset(event.get("flags", ())))
                self.unreadable.discard(new)
            case "message.flags_changed":
                place = self._place(event)
                assert self.places[place][0] == event["message_id"]
                self.places[place] = (event["message_id"], frozenset(event["flags"]))
            case "message.removed":
                if self._place(event) in self.unreadable:
                    self.unreadable.remove(self._place(event))
                else:
                    assert self.places.pop(self._place(event))[0] == event["message_id"]
            case _:
                pass

    @staticmethod
    def _place(event: dict[str, Any]) -> tuple[str, int, int]:
        return event["mailbox_id"], event["uidvalidity"], event["uid"]

    def by_name(self) -> dict[str, dict[int, frozenset[str]]]:
        found: dict[str, dict[int, frozenset[str]]] = {name: {} for name in self.names.values()}
        for (mailbox_id, _, uid), (_, flags) in self.places.items():
            found[self.names[mailbox_id]][uid] = flags
        return found


class LogReader:
    """Follows the log of all partitions."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self.folds: dict[str, Fold] = defaultdict(Fold)
        self.writers: dict[str, list[str]] = defaultdict(list)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncIterator[LogReader]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.KAFKA_BOOTSTRAP_SERVERS,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        topic = settings.topic("mailbox.changes")
        consumer.assign([TopicPartition(topic, p) for p in range(settings.PARTITIONS)])
        await consumer.seek_to_beginning()
        try:
            yield cls(consumer)
        finally:
            await consumer.stop()

    async def read(self) -> dict[str, Fold]:
        """Everything committed so far, folded."""
        while True:
            fetched = await self._consumer.getmany(timeout_ms=100, max_records=5000)
            if not fetched:
                return self.folds
            for records in fetched.values():
                for record in records:
                    account = record.key.decode()
                    event = json.loads(record.value)
                    self.folds[account].apply(event)
                    writer = dict(record.headers)["writer"].decode()
                    if self.writers[account][-1:] != [writer]:
                        self.writers[account].append(writer)


def server_view(client: IMAPClient) -> dict[str, dict[int, frozenset[str]]]:
    """Every selectable mailbox of the server: UIDs and flags."""
    found: dict[str, dict[int, frozenset[str]]] = {}
    for attributes, _, name in client.list_folders():
        if any(a.lower() in (b"\\noselect", b"\\nonexistent") for a in attributes):
            found[name] = {}
            continue
        client.select_folder(name, readonly=True)
        found[name] = (
            {
                uid: frozenset(f.decode() for f in data[b"FLAGS"] if f != b"\\Recent")
                for uid, data in client.fetch(client.search(), ["FLAGS"]).items()
            }
            if client.search()
            else {}
        )
    return found
