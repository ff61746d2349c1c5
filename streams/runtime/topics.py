"""Topics as they must be in Kafka: created with every value explicit, checked at every start.

Partition counts must all be the same and never change: a key's partition is its owner, and Faust ignores a missing
topic until the next rebalance and crash-loops over a wrong count. Offsets of our groups are committed once when a
topic is new, because a partition without a committed offset can skip messages after a rebalance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from streams.contracts.topics import CHANGES, TOPICS
from streams.errors import ConfigurationError, ServiceUnavailable
from streams.runtime.checks import close_quietly, unreachable
from streams.runtime.logs import muted
from streams.runtime.services import Check
from streams.settings import Settings

T = TypeVar("T")

DEADLINE_S: Final = 60.0
"""For all of an inspection or creation; a broker needs seconds for a thousand partitions."""
NOT_READY_FOR_S: Final = 50.0
"""How long brokers may take until a new group or topic can be asked about; a busy machine takes its time."""
_TOPIC_SOURCE: Final = 1
"""DescribeConfigs: the value was set on the topic itself."""
_NO_OFFSET: Final = -1
_DANGEROUS: Final = "cleanup.policy"
"""A wrong value of this one loses data: deletion forgets mirrors, compaction forgets changes."""

_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": "33554432",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """One topic as it must exist, with its full name."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of one topic that is not as wanted."""

    topic: str
    setting: str
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.found}, wanted {self.wanted}"


@dataclass(slots=True)
class Inspection:
    """What is there, against what is wanted."""

    missing: list[WantedTopic] = field(default_factory=list)
    partitions: list[Difference] = field(default_factory=list)
    config: list[Difference] = field(default_factory=list)
    offsets: dict[str, list[TopicPartition]] = field(default_factory=dict)
    """Group to partitions without a committed offset, of topics that exist."""

    def fatal(self) -> str | None:
        """Why no worker may start, in one line; None when it may."""
        if self.missing:
            names = ", ".join(topic.name for topic in self.missing)
            return f"missing topics: {names}; run `faust -A streams topics`"
        reasons = [
            f"PARTITIONS is {wanted}, but {found} partitions have {', '.join(names)}"
            for (found, wanted), names in self._counts().items()
        ]
        reasons += [str(item) for item in self.config if item.setting == _DANGEROUS]
        return "topics are not as they must be: " + "; ".join(reasons) if reasons else None

    def _counts(self) -> dict[tuple[str, str], list[str]]:
        grouped: dict[tuple[str, str], list[str]] = {}
        for item in self.partitions:
            grouped.setdefault((item.found, item.wanted), []).append(item.topic)
        return grouped


def wanted_topics(settings: Settings, changelogs: Iterable[str] = ()) -> list[WantedTopic]:
    """Every topic of the registry under its full name, and Faust's changelogs (`changelogs`, full names)."""
    wanted = []
    for spec in TOPICS:
        config = spec.config()
        if spec.name == CHANGES:
            config["retention.ms"] = str(settings.CHANGES_RETENTION_MS)
        wanted.append(_wanted(settings, settings.topic(spec.name), config))
    return wanted + [_wanted(settings, name, _COMPACTED) for name in changelogs]


def _wanted(settings: Settings, name: str, config: Mapping[str, str]) -> WantedTopic:
    return WantedTopic(name, settings.PARTITIONS, settings.KAFKA_REPLICATION_FACTOR, dict(config))


class TopicAdmin:
    """Looks at and makes the topics of one deployment. Use `TopicAdmin.connected`."""

    def __init__(self, settings: Settings, admin: AIOKafkaAdminClient) -> None:
        self._settings = settings
        self._admin = admin

    @classmethod
    @asynccontextmanager
    async def connected(cls, settings: Settings) -> AsyncIterator[TopicAdmin]:
        """Connect for the block. Raises `ServiceUnavailable` for whatever the brokers do not answer in time."""
        admin = AIOKafkaAdminClient(**settings.kafka_client())
        with muted("aiokafka") as said:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await admin.start()
                    yield cls(settings, admin)
            except (KafkaError, OSError, TimeoutError) as error:
                raise unreachable(settings, error, said) from None
            finally:
                await close_quietly(admin)

    async def inspect(self, wanted: Sequence[WantedTopic], groups: Mapping[str, Sequence[str]]) -> Inspection:
        """Compare. `groups` maps a consumer group to the topics (full names) of which it must have offsets."""
        result = Inspection()
        present = {topic["topic"]: topic for topic in await self._admin.describe_topics() if not topic["error_code"]}
        for topic in wanted:
            found = present.get(topic.name)
            if found is None:
                result.missing.append(topic)
            elif len(found["partitions"]) != topic.partitions:
                count = str(len(found["partitions"]))
                result.partitions.append(Difference(topic.name, "partitions", count, str(topic.partitions)))
        result.config = await self._config_differences([topic for topic in wanted if topic.name in present])
        for group, topics in groups.items():
            expected = [
                TopicPartition(name, number)
                for name in topics
                if name in present
                for number in range(len(present[name]["partitions"]))
            ]
            if missing := await self._without_offset(group, expected):
                result.offsets[group] = missing
        return result

    async def create(self, topics: Sequence[WantedTopic]) -> None:
        """Create topics. One that somebody else has created meanwhile is no error."""
        if not topics:
            return
        answer = await self._admin.create_topics(
            [
                NewTopic(topic.name, topic.partitions, topic.replication, topic_configs=dict(topic.config))
                for topic in topics
            ]
        )
        for name, code, *rest in answer.topic_errors:
            error = for_code(code)
            if code and error.__name__ != "TopicAlreadyExistsError":
                reason = rest[0] if rest and rest[0] else error.__name__
                raise ConfigurationError(f"topic {name} cannot be created: {reason}")
        await self._until_present({topic.name for topic in topics})

    async def alter(self, differences: Sequence[Difference]) -> None:
        """Set the configuration of topics to what is wanted; other values that were set on them are kept."""
        names = sorted({item.topic for item in differences})
        if not names:
            return
        resources = []
        for name, values in (await self._configs(names)).items():
            kept = {key: value for key, (value, source) in values.items() if source == _TOPIC_SOURCE}
            kept |= {item.setting: item.wanted for item in differences if item.topic == name}
            resources.append(ConfigResource(ConfigResourceType.TOPIC, name, configs=kept))
        for answer in await self._admin.alter_configs(resources):
            for code, message, _, name in answer.resources:
                if code:
                    raise ConfigurationError(f"topic {name} cannot be changed: {message or for_code(code).__name__}")
        await self._until_altered(names, differences)

    async def commit_first_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Commit the start of each partition for `group`. Raises `ServiceUnavailable` when the group has members: they
        commit by themselves."""
        consumer = AIOKafkaConsumer(
            **self._settings.kafka_client(), group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign(list(partitions))
            starts = await _once_ready(lambda: consumer.beginning_offsets(list(partitions)))
            await _once_ready(lambda: consumer.commit(starts))
        finally:
            await consumer.stop()

    async def _config_differences(self, topics: Sequence[WantedTopic]) -> list[Difference]:
        found = await self._configs([topic.name for topic in topics])
        return [
            Difference(topic.name, setting, found[topic.name].get(setting, ("unset", 0))[0], value)
            for topic in topics
            for setting, value in topic.config.items()
            if topic.name in found and found[topic.name].get(setting, ("unset", 0))[0] != value
        ]

    async def _configs(self, names: Sequence[str]) -> dict[str, dict[str, tuple[str, int]]]:
        """Topic to setting to (value, source)."""
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        result: dict[str, dict[str, tuple[str, int]]] = {}
        for answer in await self._admin.describe_configs(resources):
            for code, message, _, name, entries in answer.resources:
                if code:
                    raise ServiceUnavailable(f"Kafka does not describe {name}: {message or for_code(code).__name__}")
                result[name] = {entry[0]: (entry[1] or "", _source(entry)) for entry in entries}
        return result

    async def _without_offset(self, group: str, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        if not partitions:
            return []
        known: Mapping[TopicPartition, Any] = await _once_ready(lambda: self._admin.list_consumer_group_offsets(group))
        return [each for each in partitions if each not in known or known[each].offset == _NO_OFFSET]

    async def _until_present(self, names: set[str]) -> None:
        """Creation is answered by the controller; wait until the brokers know the topics, too."""
        while True:
            described = await self._admin.describe_topics(sorted(names))
            if {topic["topic"] for topic in described if not topic["error_code"] and topic["partitions"]} >= names:
                return
            await asyncio.sleep(0.1)

    async def _until_altered(self, names: Sequence[str], differences: Sequence[Difference]) -> None:
        while True:
            found = await self._configs(names)
            if all(found[item.topic].get(item.setting, ("", 0))[0] == item.wanted for item in differences):
                return
            await asyncio.sleep(0.1)


async def _once_ready(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat `call` while brokers are not ready for it: a new cluster makes the topic of offsets at the first ask, and
    a new topic has no leaders for a moment. Raises what it last met after `NOT_READY_FOR_S`.
    """
    deadline = time.monotonic() + NOT_READY_FOR_S
    while True:
        try:
            return await call()
        except KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _source(entry: Sequence[Any]) -> int:
    """Where a value comes from. Version 0 of the answer says only whether it is the default."""
    fourth = entry[3]
    return (0 if fourth else _TOPIC_SOURCE) if isinstance(fourth, bool) else int(fourth)


def topics_check(settings: Settings, changelogs: Iterable[str] = ()) -> Check:
    """Every topic exists as it must. Changelogs may be missing (Faust makes them), not wrong."""
    changelog_names = set(changelogs)

    async def probe() -> None:
        async with TopicAdmin.connected(settings) as admin:
            found = await admin.inspect(wanted_topics(settings, changelog_names), {})
        found.missing = [topic for topic in found.missing if topic.name not in changelog_names]
        if (reason := found.fatal()) is not None:
            raise ConfigurationError(reason)

    return Check("Kafka's topics", probe)
