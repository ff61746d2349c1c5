"""Bad input in bulk: malformed records over all input topics while valid ones go through.

What must hold (W13): every bad record is in the dead letters as it came, with the reason that it has, and nothing else
is; every valid one is handled, also when it came with a wrong key; the worker lives, and its memory stays flat.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import psutil
from aiokafka import AIOKafkaProducer

from tests.rig.fleet import Fleet, now
from tests.rig.letters import ordinary
from tests.storm.checker.log import Raw, read_raw

TOPICS: Final = ("account.state_changed", "user.active", "sync.commands", "sync.jobs")
COMMAND_TOPICS: Final = frozenset({"sync.commands", "sync.jobs"})
REASONS: Final = frozenset({"not_json", "schema", "too_large", "wrong_key", "unknown_kind"})
MISPLACED_SHARE: Final = 0.01
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


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be handled, and why."""

    topic: str
    key: bytes
    value: bytes | None
    reason: str
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Owed:
    """What must be in the dead letters of one record."""

    reason: str
    value: bytes
    """A digest of it."""


Place = tuple[str, int, int]
"""Topic, partition, offset."""


def digest(value: bytes | None) -> bytes:
    """Short, so that 100,000 of them can be remembered."""
    return hashlib.blake2b(value or b"", digest_size=8).digest()


class Flood:
    """Bad records, seeded, for one fleet."""

    def __init__(self, fleet: Fleet, random_: random.Random) -> None:
        self._fleet = fleet
        self._random = random_
        self.owed: dict[Place, Owed] = {}
        self.misplaced: set[Place] = set()
        """Valid records under a key that is not theirs: handled all the same, as copies under the right one."""

    async def send(self, number: int) -> None:
        """That many bad records; some tombstones of accounts that nobody knows, which are no mistake; some valid
        records with wrong keys.
        """
        producer = AIOKafkaProducer(
            bootstrap_servers=self._fleet.kafka.bootstrap, linger_ms=20, max_request_size=2_000_000
        )
        await producer.start()
        topic = self._fleet.kafka.topic
        try:
            for start in range(0, number, PIECE):
                bad = [self.bad() for _ in range(min(PIECE, number - start))]
                sent = [await producer.send(topic(b.topic), b.value, key=b.key, headers=list(b.headers)) for b in bad]
                valid = []
                for _ in bad:
                    if self._random.random() < MISPLACED_SHARE:
                        await producer.send(topic("account.state_changed"), None, key=self._uuid().encode())
                        user = self._fleet.users[self._random.choice(sorted(self._fleet.users))]
                        value = json.dumps({"user_id": user, "source": "ws_ping", "at": now()}).encode()
                        valid.append(await producer.send(topic("user.active"), value, key=self._uuid().encode()))
                for each, record in zip(bad, await asyncio.gather(*sent), strict=True):
                    self.owed[each.topic, record.partition, record.offset] = Owed(each.reason, digest(each.value))
                for record in await asyncio.gather(*valid):
                    self.misplaced.add(("user.active", record.partition, record.offset))
        finally:
            await producer.stop()

    def _uuid(self) -> str:
        text = f"{self._random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def bad(self) -> Bad:
        """One of them."""
        topic, account = self._random.choice(TOPICS), self._uuid()
        junk = bytes(self._random.getrandbits(8) for _ in range(self._random.randint(1, 60)))
        shapes = [
            (b"no json " + junk.hex().encode(), "not_json"),
            (b"\xff\xfe" + junk, "not_json"),
            (b"{" * self._random.randint(1, 5000), "not_json"),
            (b'[1, "' + junk.hex().encode() + b'"]', "schema"),
            (b'{"account_id": 17, "user_id": [], "at": "yesterday"}', "schema"),
            (b'{"at": "%s"}' % now().encode(), "schema"),
            (b"null", "schema"),
            (b'"' + junk.hex().encode() + b'"', "schema"),
        ]
        if self._random.random() < 0.002:
            value = b'{"account_id": "' + b"x" * OVERSIZE_BYTES + b'"}'
            return Bad(topic, account.encode(), value, "too_large")
        if self._random.random() < 0.1:
            return self._of_wrong_key(topic, account)
        if topic in COMMAND_TOPICS and self._random.random() < 0.1:
            return Bad(topic, account.encode(), self._command(account, "paint"), "unknown_kind")
        shape, reason = self._random.choice(shapes)
        return Bad(topic, account.encode(), shape, reason)

    def _of_wrong_key(self, topic: str, account: str) -> Bad:
        """Records whose only fault is their key, and which nobody may put right."""
        if topic in COMMAND_TOPICS:
            value = self._command(account, "sync_now" if topic == "sync.commands" else "export")
            return Bad(topic, self._uuid().encode(), value, "wrong_key")
        if topic == "account.state_changed":
            return Bad(topic, b"nobody's " + account.encode(), None, "wrong_key")
        value = json.dumps({"user_id": account, "source": "login", "at": now()}).encode()
        return Bad(topic, self._uuid().encode(), value, "wrong_key", (("rekeyed_from", b"0/0"),))

    def _command(self, account: str, kind: str) -> bytes:
        command = {"command_id": self._uuid(), "account_id": account, "kind": kind, "args": {}, "at": now()}
        return json.dumps(command).encode()


def wrong_letters(owed: Mapping[Place, Owed], letters: Iterable[Raw]) -> Iterator[str]:
    """What is in the dead letters and was not bad, or for another reason, or not as it came."""
    for raw in letters:
        topic = raw.topic.removesuffix(".dlq")
        partition, offset = raw.header("dlq_partition") or "", raw.header("dlq_offset") or ""
        found = owed.get((topic, int(partition), int(offset))) if partition.isdigit() and offset.isdigit() else None
        reason = raw.header("dlq_reason")
        if found is None:
            yield f"{topic} {partition}@{offset} was valid, and is there as {reason}: {(raw.value or b'')[:80]!r}"
        elif reason != found.reason:
            yield f"{topic} {partition}@{offset} is {found.reason}, and is there as {reason}"
        elif not raw.header("dlq_truncated") and digest(raw.value) != found.value:
            yield f"{topic} {partition}@{offset} is not there as it came"


def missing_letters(owed: Mapping[Place, Owed], letters: Iterable[Raw]) -> set[Place]:
    """Bad records that are not in the dead letters. One may lie there twice."""
    places = {
        (raw.topic.removesuffix(".dlq"), int(raw.header("dlq_partition") or -1), int(raw.header("dlq_offset") or -1))
        for raw in letters
    }
    return owed.keys() - places


def handled_elsewhere(records: Iterable[Raw]) -> set[Place]:
    """Records that were sent on under their right key, by what their copies say."""
    found: set[Place] = set()
    for raw in records:
        partition, _, offset = (raw.header("rekeyed_from") or "").partition("/")
        if partition.isdigit() and offset.isdigit():
            found.add((raw.topic, int(partition), int(offset)))
    return found


async def flood(fleet: Fleet, number: int, *, seed: int = 1, within_s: float = 300.0) -> FloodFigures:
    """Send `number` bad records while mail arrives and users are active; the fleet has accounts and ready workers.

    Raises `AssertionError` for anything that does not hold.
    """
    sender = Flood(fleet, random.Random(seed))
    processes = [psutil.Process(worker.pid) for worker in fleet.workers.values()]

    def resident_mb() -> float:
        return sum(process.memory_info().rss for process in processes) / 2**20

    commands: list[str] = []
    await sender.send(number // 5)
    early = resident_mb()
    for part in range(4):
        await sender.send(number // 5)
        for account, mailer in fleet.mailers.items():
            await fleet.active(account)
            commands.append(await fleet.command(account, "sync_now"))
            await asyncio.to_thread(mailer.append, "INBOX", ordinary(part))

    async def dead_letters() -> list[Raw]:
        return [raw for topic in TOPICS async for raw in read_raw(fleet.kafka, f"{topic}.dlq")]

    async def missing() -> set[Place]:
        return missing_letters(sender.owed, await dead_letters())

    async def not_handled() -> set[Place]:
        return sender.misplaced - handled_elsewhere([raw async for raw in read_raw(fleet.kafka, "user.active")])

    async def cold() -> set[str]:
        told = await fleet.statuses()
        return {account for account in fleet.mailers if not told.get(account, {}).get("heat_until")}

    await fleet.eventually(missing, lambda left: not left, within_s=within_s, what="every bad record a dead letter")
    late = resident_mb()
    dead = await dead_letters()
    wrong = list(wrong_letters(sender.owed, dead))
    assert not wrong, f"{len(wrong)} wrong dead letters, the first: {wrong[:5]}"
    await fleet.eventually(not_handled, lambda left: not left, within_s=within_s, what="wrong keys put right")
    await fleet.eventually(cold, lambda left: not left, within_s=within_s, what="every session heard of")
    for command in commands:
        await fleet.concluded(command, within_s=within_s)
    assert late <= early * GROWTH, f"memory grew from {early:.0f} to {late:.0f} MB"
    assert all(worker.running for worker in fleet.workers.values())
    await fleet.at_rest(within_s=within_s)
    return FloodFigures(
        sent=dict(Counter(topic for topic, _, _ in sender.owed)),
        letters=dict(Counter(raw.topic.removesuffix(".dlq") for raw in dead)),
        reasons=dict(Counter(raw.header("dlq_reason") or "none" for raw in dead)),
        early_mb=round(early),
        late_mb=round(late),
    )
