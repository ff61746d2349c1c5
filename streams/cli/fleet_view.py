"""What `status` knows of a fleet: the members of the group, and the newest record of every account. Read only.

The state is what the compacted topics say, so it is there whatever runs and needs no database. `summarise` is pure.
An account is *served* when its partition's owner says so itself; what a former owner said last does not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from streams.contracts import topics
from streams.contracts.account import AccountStateChanged, AccountSyncStatus, AccountTierChanged
from streams.contracts.codec import Decoder
from streams.contracts.keys import partition_for
from streams.domain.lifecycle import Life, judge
from streams.errors import PoisonRecord
from streams.runtime.checks import unreachable
from streams.runtime.logs import muted
from streams.settings import Settings

DEADLINE_S: Final = 60.0
"""For everything that is asked of Kafka; 100,000 accounts take about 5 s."""

R = TypeVar("R", bound=msgspec.Struct)

SERVED: Final = frozenset({"starting", "syncing", "running", "backing_off"})
UNSERVED: Final = "unserved"


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as the group's coordinator knows it."""

    worker: str
    host: str
    partitions: frozenset[int]


@dataclass(slots=True)
class Observed:
    """Everything that was read."""

    group: str
    state: str = "Dead"
    members: list[Member] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    statuses: dict[str, AccountSyncStatus] = field(default_factory=dict)
    tiers: dict[str, AccountTierChanged] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker and what it serves."""

    worker: str
    host: str
    partitions: list[int]
    live: int
    served: int
    by_tier: dict[str, int]


@dataclass(frozen=True, slots=True)
class ErrorView:
    """The last error of an account."""

    account_id: str
    code: str
    message: str
    at: datetime
    mailbox: str | None
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class FleetView:
    """The state of the fleet, as it is shown."""

    group: str
    state: str
    partitions: int
    unassigned: list[int]
    workers: list[WorkerView]
    by_state: dict[str, int]
    live: int
    served: int
    unserved: int
    by_tier: dict[str, int]
    by_phase: dict[str, int]
    oldest_overdue_s: float
    oldest_overdue_account: str | None
    errors: list[ErrorView]


def summarise(seen: Observed, *, partitions: int, now: datetime, errors: int = 10) -> FleetView:
    """Put together what was read. `errors` is how many of the newest errors are kept."""
    # By member and not by name: two workers may have been given the same one.
    owner = {partition: number for number, member in enumerate(seen.members) for partition in member.partitions}
    live = [name for name, life in seen.lives.items() if life.live]
    by_tier: Counter[str] = Counter()
    by_phase: Counter[str] = Counter()
    lives_of: Counter[int] = Counter()
    tiers_of: list[Counter[str]] = [Counter() for _ in seen.members]
    found: list[ErrorView] = []
    overdue: tuple[float, str | None] = (0.0, None)
    for account_id in live:
        number = owner.get(partition_for(account_id, partitions))
        status = seen.statuses.get(account_id)
        if number is not None:
            lives_of[number] += 1
        worker = None if number is None else seen.members[number].worker
        if status is None or number is None or status.worker != worker or status.phase not in SERVED:
            by_phase[UNSERVED] += 1
            continue
        tier = seen.tiers[account_id].tier if account_id in seen.tiers else (status.tier or "warm")
        by_phase[status.phase] += 1
        by_tier[tier] += 1
        tiers_of[number][tier] += 1
        if status.next_poll_at is not None:
            overdue = max(overdue, ((now - status.next_poll_at).total_seconds(), account_id), key=lambda pair: pair[0])
        if (error := status.error) is not None:
            found.append(ErrorView(account_id, error.code, error.message, error.at, error.mailbox, status.retry_at))
    found.sort(key=lambda error: error.at, reverse=True)
    return FleetView(
        group=seen.group,
        state=seen.state,
        partitions=partitions,
        unassigned=sorted(set(range(partitions)) - set(owner)),
        workers=[
            WorkerView(
                member.worker,
                member.host,
                sorted(member.partitions),
                lives_of[number],
                sum(tiers_of[number].values()),
                dict(tiers_of[number]),
            )
            for number, member in sorted(enumerate(seen.members), key=lambda pair: (pair[1].worker, pair[1].host))
        ],
        by_state=dict(Counter(life.state for life in seen.lives.values())),
        live=len(live),
        served=len(live) - by_phase[UNSERVED],
        unserved=by_phase[UNSERVED],
        by_tier=dict(by_tier),
        by_phase=dict(by_phase),
        oldest_overdue_s=round(overdue[0], 1),
        oldest_overdue_account=overdue[1],
        errors=found[:errors],
    )


async def observe(settings: Settings) -> Observed:
    """Ask Kafka. Raises `ServiceUnavailable` when it does not answer in time."""
    with muted("aiokafka") as said:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await _observe(settings)
        except (KafkaError, OSError, TimeoutError) as error:
            raise unreachable(settings, error, said) from None


async def _observe(settings: Settings) -> Observed:
    async with _admin(settings) as admin:
        seen = await _group(settings, admin)
        sizes = await _sizes(settings, admin)
    statuses = Decoder[AccountSyncStatus](AccountSyncStatus)
    tiers = Decoder[AccountTierChanged](AccountTierChanged)
    async for account_id, value in _records(settings, topics.SYNC_STATUS, sizes):
        _keep(seen.statuses, account_id, value, statuses)
    async for account_id, value in _records(settings, topics.TIER_CHANGED, sizes):
        _keep(seen.tiers, account_id, value, tiers)
    await _lives(settings, seen, sizes)
    return seen


def _keep(found: dict[str, R], account_id: str, value: bytes | None, decode: Decoder[R]) -> None:
    if value is None:
        found.pop(account_id, None)
        return
    try:
        found[account_id] = decode(value)
    except PoisonRecord:
        # A field of a later version with another meaning; what we do not understand is not shown.
        found.pop(account_id, None)


async def _lives(settings: Settings, seen: Observed, sizes: Mapping[str, int]) -> None:
    decode = Decoder[AccountStateChanged](AccountStateChanged)
    async for account_id, value in _records(settings, topics.STATE_CHANGED, sizes):
        if value is None:
            seen.lives.pop(account_id, None)
            continue
        try:
            event = decode(value)
        except PoisonRecord:
            continue
        if event.account_id == account_id:
            life = Life(event.user_id, event.state, event.version)
            seen.lives[account_id] = judge(seen.lives.get(account_id), life)[1]


async def _records(settings: Settings, topic: str, sizes: Mapping[str, int]) -> AsyncIterator[tuple[str, bytes | None]]:
    """Committed records of a topic up to now that lie in the partition of their key, in order."""
    size = sizes.get(topic, 0)
    if not size:
        return
    consumer = AIOKafkaConsumer(
        **settings.kafka_client(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        partitions = [TopicPartition(settings.topic(topic), number) for number in range(size)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        left: dict[TopicPartition, int] = dict(await consumer.end_offsets(partitions))
        while left:
            for records in (await consumer.getmany(timeout_ms=200, max_records=5000)).values():
                for record in records:
                    key = (record.key or b"").decode("utf-8", "replace")
                    if record.partition == partition_for(key, size):
                        yield key, record.value
            for partition in [tp for tp in left if await consumer.position(tp) >= left[tp]]:
                del left[partition]
    finally:
        await consumer.stop()


@asynccontextmanager
async def _admin(settings: Settings) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(**settings.kafka_client())
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def _sizes(settings: Settings, admin: Any) -> dict[str, int]:
    """Partitions of the topics that are read; one that does not exist is not named."""
    names = {settings.topic(name): name for name in (topics.STATE_CHANGED, topics.SYNC_STATUS, topics.TIER_CHANGED)}
    described = await admin.describe_topics()
    return {names[item["topic"]]: len(item["partitions"]) for item in described if item["topic"] in names}


async def _group(settings: Settings, admin: Any) -> Observed:
    group = f"{settings.KAFKA_TOPIC_PREFIX}{settings.KAFKA_GROUP}"
    source = settings.topic(topics.STATE_CHANGED)
    for answer in await admin.describe_consumer_groups([group]):
        for described in answer.groups:
            _error, name, state, _type, _protocol, members = described[:6]
            if name == group:
                return Observed(group, state, [_member(settings, item, source) for item in members])
    return Observed(group)


def _member(settings: Settings, item: Sequence[Any], source: str) -> Member:
    """One member from the coordinator's answer: (id, client id, host, metadata, assignment)."""
    client_id, host, assignment = _client_of(item)
    partitions: Iterable[int] = ()
    if assignment:
        decoded = ConsumerProtocolMemberAssignment.decode(assignment)
        partitions = next((numbers for topic, numbers in decoded.assignment if topic == source), ())
    return Member(client_id.removeprefix(f"{settings.KAFKA_GROUP}-"), host.lstrip("/"), frozenset(partitions))


def _client_of(item: Sequence[Any]) -> tuple[str, str, bytes]:
    # Later versions of the answer put the static member's id second.
    client_id, host = item[-4], item[-3]
    return str(client_id), str(host), bytes(item[-1])


def ranges(numbers: Iterable[int]) -> str:
    """Numbers for people: `0-3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def counts(by_name: Mapping[str, int], order: Sequence[str]) -> str:
    """Counts for people: `hot 3, warm 20`; names in `order` first."""
    known = [name for name in order if name in by_name]
    names = known + sorted(name for name in by_name if name not in order)
    return ", ".join(f"{name} {by_name[name]}" for name in names) or "none"
