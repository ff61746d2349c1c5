"""Bad input in bulk: malformed records over all input topics while valid ones go through.

What must hold (W13): every bad record is in the dead letters with its reason and origin, every valid one is handled,
the worker lives, and its memory stays flat.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

import psutil
from aiokafka import AIOKafkaProducer

from tests.rig.fleet import Fleet, now
from tests.rig.letters import ordinary
from tests.storm.checker.log import read_raw

TOPICS: Final = ("account.state_changed", "user.active", "sync.commands", "sync.jobs")
REASONS: Final = frozenset({"not_json", "schema", "too_large", "wrong_key", "unknown_kind"})
OVERSIZE_BYTES: Final = 300_000
GROWTH: Final = 1.3
"""Resident memory at the end, against that after the first fifth."""
PIECE: Final = 500


@dataclass(frozen=True, slots=True)
class FloodFigures:
    """What was sent and what came of it."""

    sent: dict[str, int]
    letters: dict[str, int]
    reasons: dict[str, int]
    early_mb: float
    late_mb: float


class Flood:
    """Bad records, seeded, for one fleet."""

    def __init__(self, fleet: Fleet, random_: random.Random) -> None:
        self._fleet = fleet
        self._random = random_
        self.sent: Counter[str] = Counter()

    async def send(self, number: int) -> None:
        """That many bad records, and some tombstones of accounts that nobody knows, which are no mistake."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self._fleet.kafka.bootstrap, linger_ms=20, max_request_size=2_000_000
        )
        await producer.start()
        try:
            pending = []
            for _ in range(number):
                topic, key, value = self._bad()
                self.sent[topic] += 1
                pending.append(await producer.send(self._fleet.kafka.topic(topic), value, key=key))
                if self._random.random() < 0.01:
                    name = self._fleet.kafka.topic("account.state_changed")
                    pending.append(await producer.send(name, None, key=self._uuid().encode()))
                if len(pending) >= PIECE:
                    await asyncio.gather(*pending)
                    pending.clear()
            await asyncio.gather(*pending)
        finally:
            await producer.stop()

    def _uuid(self) -> str:
        text = f"{self._random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _bad(self) -> tuple[str, bytes, bytes]:
        topic = self._random.choice(TOPICS)
        key = self._uuid().encode()
        junk = bytes(self._random.getrandbits(8) for _ in range(self._random.randint(1, 60)))
        shapes = (
            b"no json " + junk.hex().encode(),
            b"\xff\xfe" + junk,
            b"[" * self._random.randint(1, 5000),
            b'{"account_id": 17, "user_id": [], "at": "yesterday"}',
            b'{"at": "%s"}' % now().encode(),
            b"null",
            b'"' + junk.hex().encode() + b'"',
        )
        if self._random.random() < 0.002:
            return topic, key, b'{"account_id": "' + b"x" * OVERSIZE_BYTES + b'"}'
        return topic, key, self._random.choice(shapes)


async def flood(fleet: Fleet, number: int, *, seed: int = 1, within_s: float = 300.0) -> FloodFigures:
    """Send `number` bad records while mail arrives and users are active; the fleet has accounts and ready workers.

    Raises `AssertionError` for anything that does not hold.
    """
    sender = Flood(fleet, random.Random(seed))
    processes = [psutil.Process(worker.pid) for worker in fleet.workers.values()]

    def resident_mb() -> float:
        return sum(process.memory_info().rss for process in processes) / 2**20

    await sender.send(number // 5)
    early = resident_mb()
    for part in range(4):
        await sender.send(number // 5)
        for account, mailer in fleet.mailers.items():
            await fleet.active(account)
            await asyncio.to_thread(mailer.append, "INBOX", ordinary(part))

    async def letters() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for topic in TOPICS:
            dead = [raw async for raw in read_raw(fleet.kafka, f"{topic}.dlq")]
            for raw in dead:
                assert raw.header("dlq_topic") in (topic, fleet.kafka.topic(topic))
                assert (raw.header("dlq_partition") or "").isdigit() and (raw.header("dlq_offset") or "").isdigit()
            found[topic] = [raw.header("dlq_reason") or "none" for raw in dead]
        return found

    def all_there(found: dict[str, list[str]]) -> bool:
        return all(len(found[topic]) >= sent for topic, sent in sender.sent.items())

    dead = await fleet.eventually(letters, all_there, within_s=within_s, what=f"dead letters for {dict(sender.sent)}")
    late = resident_mb()
    reasons = Counter(reason for each in dead.values() for reason in each)
    assert set(reasons) <= REASONS, reasons
    assert late <= early * GROWTH, f"memory grew from {early:.0f} to {late:.0f} MB"
    assert all(worker.running for worker in fleet.workers.values())
    await fleet.at_rest(within_s=within_s)
    return FloodFigures(
        sent=dict(sender.sent),
        letters={topic: len(each) for topic, each in dead.items()},
        reasons=dict(reasons),
        early_mb=round(early),
        late_mb=round(late),
    )
