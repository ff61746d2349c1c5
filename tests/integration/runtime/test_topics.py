"""Topics on a real broker: created with explicit settings, checked, first offsets committed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streams.contracts.topics import CHANGES, MIRROR, STATE_CHANGED, TOPICS, USER_ACTIVE
from streams.errors import ConfigurationError, ServiceUnavailable
from streams.runtime.checks import kafka_check
from streams.runtime.topics import TopicAdmin, topics_check, wanted_topics
from streams.settings import Settings, load_settings
from tests.fixtures.services import Broker
from tests.integration.runtime.processes import running


@pytest.fixture
def settings(kafka: Broker, topic_prefix: str) -> Settings:
    return load_settings(
        KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap,
        KAFKA_TOPIC_PREFIX=topic_prefix,
        PARTITIONS=3,
        CHANGES_RETENTION_MS=86_400_000,
    )


def groups(settings: Settings) -> dict[str, list[str]]:
    return {f"{settings.KAFKA_TOPIC_PREFIX}group": [settings.topic(STATE_CHANGED), settings.topic(USER_ACTIVE)]}


async def create(settings: Settings) -> None:
    async with TopicAdmin.connected(settings) as admin:
        found = await admin.inspect(wanted_topics(settings), groups(settings))
        await admin.create(found.missing)


async def made_by_somebody_else(settings: Settings, topic: NewTopic) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=settings.KAFKA_BOOTSTRAP_SERVERS)
    await client.start()
    try:
        await client.create_topics([topic])
        async with asyncio.timeout(20):
            while (await client.describe_topics([topic.name]))[0]["error_code"]:
                await asyncio.sleep(0.05)
    finally:
        await client.close()


async def test_missing_topics_are_created_as_they_must_be(settings: Settings) -> None:
    async with TopicAdmin.connected(settings) as admin:
        before = await admin.inspect(wanted_topics(settings), groups(settings))
        assert len(before.missing) == len(TOPICS)
        reason = before.fatal()
        assert reason is not None
        assert "run `faust -A streams topics`" in reason
        await admin.create(before.missing)
        await admin.create(before.missing)
        after = await admin.inspect(wanted_topics(settings), groups(settings))
    assert (after.missing, after.partitions, after.config) == ([], [], [])
    assert after.fatal() is None
    await topics_check(settings).probe()


async def test_topics_are_configured_explicitly(settings: Settings) -> None:
    await create(settings)
    async with TopicAdmin.connected(settings) as admin:
        found = await admin._configs([settings.topic(MIRROR), settings.topic(CHANGES)])
    mirror, changes = found[settings.topic(MIRROR)], found[settings.topic(CHANGES)]
    assert mirror["cleanup.policy"][0] == "compact"
    assert mirror["segment.bytes"][0] == "33554432"
    assert changes["cleanup.policy"][0] == "delete"
    assert changes["retention.ms"][0] == "86400000"


async def test_first_offsets_are_committed_once(settings: Settings) -> None:
    await create(settings)
    group = next(iter(groups(settings)))
    async with TopicAdmin.connected(settings) as admin:
        before = await admin.inspect(wanted_topics(settings), groups(settings))
        assert len(before.offsets[group]) == 6
        await admin.commit_first_offsets(group, before.offsets[group])
        after = await admin.inspect(wanted_topics(settings), groups(settings))
        assert after.offsets == {}
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.KAFKA_BOOTSTRAP_SERVERS, group_id=group)
    await consumer.start()
    try:
        assert await consumer.committed(TopicPartition(settings.topic(USER_ACTIVE), 2)) == 0
    finally:
        await consumer.stop()


async def test_a_wrong_partition_count_is_a_configuration_error(settings: Settings) -> None:
    await create(settings)
    other = settings.model_copy(update={"PARTITIONS": 4})
    with pytest.raises(ConfigurationError, match="PARTITIONS is 4, but 3 partitions have"):
        await topics_check(other).probe()


async def test_a_wrong_cleanup_policy_is_a_configuration_error_and_can_be_altered(settings: Settings) -> None:
    extra = {"cleanup.policy": "delete", "min.insync.replicas": "1", "flush.messages": "1000"}
    await made_by_somebody_else(settings, NewTopic(settings.topic(MIRROR), 3, 1, topic_configs=extra))
    await create(settings)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is delete, wanted compact"):
        await topics_check(settings).probe()
    async with TopicAdmin.connected(settings) as admin:
        found = await admin.inspect(wanted_topics(settings), {})
        await admin.alter(found.config)
        after = await admin.inspect(wanted_topics(settings), {})
        kept = (await admin._configs([settings.topic(MIRROR)]))[settings.topic(MIRROR)]
    assert after.config == []
    assert kept["flush.messages"][0] == "1000", "what an operator has set besides is kept"


async def test_changelogs_may_be_missing_but_not_wrong(settings: Settings) -> None:
    await create(settings)
    changelog = f"{settings.KAFKA_TOPIC_PREFIX}app-table-changelog"
    await topics_check(settings, [changelog]).probe()
    await made_by_somebody_else(settings, NewTopic(changelog, 5, 1, topic_configs={"cleanup.policy": "compact"}))
    with pytest.raises(ConfigurationError, match=f"but 5 partitions have {changelog}"):
        await topics_check(settings, [changelog]).probe()


async def test_no_broker_is_unavailable_not_a_traceback(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    with pytest.raises(ServiceUnavailable, match=r"Errno 111"):
        await topics_check(nowhere).probe()
    with pytest.raises(ServiceUnavailable, match=r"no broker of 127\.0\.0\.1:1 answers: .*Errno 111"):
        await kafka_check(nowhere).probe()


async def run_topics(
    settings: Settings, data: Path, *arguments: str, **changes: str
) -> tuple[int, list[str], list[str]]:
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": settings.KAFKA_BOOTSTRAP_SERVERS,
        "KAFKA_TOPIC_PREFIX": settings.KAFKA_TOPIC_PREFIX,
        "PARTITIONS": str(settings.PARTITIONS),
        **changes,
    }
    command = ("-m", "faust", *arguments)
    async with running(*command, environment=environment, data=data) as process:
        return await process.ended(), process.said, process.logged


async def test_the_command_shows_makes_and_finds_everything_in_order(settings: Settings, tmp_path: Path) -> None:
    code, said, errors = await run_topics(settings, tmp_path, "-A", "streams", "topics", "--dry-run")
    assert (code, errors) == (0, [])
    assert any(line.startswith(f"would create {settings.topic(CHANGES)} (3 partitions") for line in said)

    code, said, errors = await run_topics(settings, tmp_path, "--json", "-A", "streams", "topics")
    assert (code, errors) == (0, [])
    report = json.loads("\n".join(said))
    assert settings.topic(CHANGES) in report["created"]
    assert f"{settings.KAFKA_TOPIC_PREFIX}mailstreams-accounts-changelog" in report["created"]

    code, said, errors = await run_topics(settings, tmp_path, "-A", "streams", "topics")
    assert (code, errors) == (0, [])
    assert len(said) <= 2
    assert said[-1].endswith("(3 partitions each)")


async def test_the_command_names_a_wrong_count_in_one_line_and_ends_with_2(settings: Settings, tmp_path: Path) -> None:
    await create(settings)
    code, _, errors = await run_topics(settings, tmp_path, "-A", "streams", "topics", PARTITIONS="5")
    assert code == 2
    (line,) = errors
    assert line.startswith(
        "configuration error: topics are not as they must be: PARTITIONS is 5, but 3 partitions have"
    )


async def test_the_command_without_a_broker_is_one_line_and_1(settings: Settings, tmp_path: Path) -> None:
    nowhere = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    code, said, errors = await run_topics(settings, tmp_path, "-A", "streams", "topics", **nowhere)
    assert (code, said) == (1, [])
    (line,) = errors
    assert line.startswith("no broker of 127.0.0.1:1 answers: ")
