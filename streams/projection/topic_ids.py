"""Ids of topics (KIP-516): a topic that was deleted and made anew has another one, whatever its name and offsets say.

aiokafka asks for metadata in versions that do not carry them, so the one request is spelled out here: Metadata v12.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final
from uuid import UUID

from aiokafka.errors import KafkaError
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from streams.errors import ConfigurationError, ServiceUnavailable

DEADLINE_S: Final = 15.0
_UNKNOWN_TOPIC: Final = 3
_NIL: Final = UUID(int=0)


class _Uuid(AbstractType[UUID]):  # type: ignore[misc]
    """Sixteen bytes, most significant first."""

    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        return UUID(bytes=data.read(16))


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("in_sync", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MetadataRequestStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):  # type: ignore[misc]
    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[Any]) -> Any:
        return request_struct_class([(_NIL, name, {}) for name in self._topics], False, False, {})


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What makes a topic this one and no other, and its partitions."""

    topic_id: UUID
    partitions: frozenset[int]


async def topic_facts(consumer: Any, topics: Iterable[str]) -> dict[str, TopicFacts]:
    """Facts about these topics (full names), asked through a started aiokafka consumer.

    Raises `ConfigurationError` for a topic that does not exist, `ServiceUnavailable` when no broker answers.
    """
    names = list(topics)
    client = consumer._client  # aiokafka offers no other way to send a request
    try:
        async with asyncio.timeout(DEADLINE_S):
            answer = await client.send(client.get_random_node(), _MetadataRequest(names))
    except (KafkaError, TimeoutError, OSError) as error:
        raise ServiceUnavailable(f"Kafka does not tell the ids of topics ({type(error).__name__})") from None
    found: dict[str, TopicFacts] = {}
    for error_code, name, topic_id, _, partitions, *_ in answer.topics:
        if error_code == _UNKNOWN_TOPIC:
            raise ConfigurationError(f"missing topic {name}; run `faust -A streams topics`")
        if error_code == 0:
            found[name] = TopicFacts(topic_id, frozenset(partition for _, partition, *_ in partitions))
    if missing := set(names) - set(found):
        raise ServiceUnavailable(f"Kafka does not tell the ids of {', '.join(sorted(missing))} yet")
    return found
