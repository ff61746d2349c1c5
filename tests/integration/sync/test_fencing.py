"""S1, S3, S6: one writer at a time, whoever wakes up when; a kept shard keeps its connections; producers that fail."""

from __future__ import annotations

import time

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streams.domain.ownership import ShardPhase
from streams.observer import NoopObserver
from streams.sync.log import ShardLog
from streams.sync.store import MirrorStore
from tests.fixtures.services import MailUser
from tests.integration.sync.conftest import Plane, TestMembership, eventually
from tests.integration.sync.folding import LogReader
from tests.integration.sync.test_host import agrees, letter


async def test_s6_a_shard_that_stays_keeps_its_connections(
    plane: Plane, reader: LogReader, mail_user: MailUser
) -> None:
    """S6: a join and a leave elsewhere cause not one LOGIN for an account whose partition stays."""
    account = await plane.add(mail_user)
    home = plane.partition(account)
    first = await plane.host("w1")
    await eventually(lambda: agrees(reader, account, mail_user))
    runner = first.runner(account)
    assert runner is not None
    runner.set_tier("hot", "session")
    await eventually(lambda: runner.watching)
    runner._due_at += 3600
    logins = mail_user.server.logins(mail_user.name)
    second = await plane.host("w2", assign=False)
    await plane.assign(first, {home})
    await plane.assign(second, {1 - home})
    await plane.assign(first)
    await plane.assign(second, set())
    with mail_user.client() as client:
        client.append("INBOX", letter(1))
    await eventually(lambda: agrees(reader, account, mail_user))
    assert first.runner(account) is runner and runner.watching
    polls_and_checks = mail_user.server.logins(mail_user.name) - logins
    assert len(set(reader.writers[account])) == 1, "the shard was fenced again although it stayed"
    assert polls_and_checks < 60


async def test_s3_a_sleeper_that_fences_last_writes_nothing(
    plane: Plane, reader: LogReader, mail_user: MailUser
) -> None:
    """S3: a member that slept through a rebalance fences the rightful owner, fails its proof, and goes away."""
    account = await plane.add(mail_user)
    home = plane.partition(account)
    sleeper_member = TestMembership()
    sleeper = await plane.host("sleeper", assign=False)
    await plane.assign(sleeper, membership=sleeper_member)
    await eventually(lambda: agrees(reader, account, mail_user))
    sleeper_member.member = False
    owner = await plane.host("owner")
    await eventually(lambda: owner.runner(account) is not None and owner.runner(account).phase == "running")  # type: ignore[union-attr]
    with mail_user.client() as client:
        for n in range(5):
            client.append("INBOX", letter(n))
    await eventually(lambda: agrees(reader, account, mail_user))
    shard = sleeper.shard(home)
    assert shard is not None
    await eventually(lambda: shard.phase is ShardPhase.BARRED, what="the sleeper is barred")
    with mail_user.client() as client:
        client.append("INBOX", letter(99))
    await eventually(lambda: agrees(reader, account, mail_user))
    workers = [writer.split("/")[0] for writer in reader.writers[account]]
    assert workers[-1] == "owner"
    assert "sleeper" not in workers[workers.index("owner") :], f"two writers at once: {workers}"


async def test_a_refused_batch_in_the_middle_of_a_backfill_loses_nothing(
    plane: Plane, reader: LogReader, mail_user: MailUser
) -> None:
    """A producer error (records refused as too large) drops what is in memory; the shard fences again and goes on."""
    with mail_user.client() as client:
        for n in range(300):
            client.append("INBOX", letter(n))
    topic = plane.settings.topic("mailbox.changes")
    admin = AIOKafkaAdminClient(bootstrap_servers=plane.settings.KAFKA_BOOTSTRAP_SERVERS)
    await admin.start()
    try:
        await _limit(admin, topic, 1500)  # a few messages fill that, the events before them do not
        account = await plane.add(mail_user)
        host = await plane.host("w1", FETCH_CHUNK=20, FETCH_WINDOW=40, KAFKA_TRANSACTION_TIMEOUT_S=5.0)
        shard = host.shard(plane.partition(account))
        assert shard is not None
        await eventually(lambda: shard.error is not None and "writer" in shard.error, what="the producer is lost")
        await _limit(admin, topic, 1_114_112)
        await eventually(lambda: agrees(reader, account, mail_user), seconds=60, what="the backfill completes")
    finally:
        await admin.close()


async def _limit(admin: AIOKafkaAdminClient, topic: str, size: int) -> None:
    await admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(size)})]
    )


async def test_a_lost_producer_costs_no_connection(plane: Plane, reader: LogReader, mail_user: MailUser) -> None:
    """A rival that fences and goes away: the shard fences again, INBOX is looked at anew, nobody logs in again."""
    account = await plane.add(mail_user)
    host = await plane.host("w1", POLL_WARM=3600.0, POLL_COLD=3600.0)
    await eventually(lambda: agrees(reader, account, mail_user))
    runner = host.runner(account)
    assert runner is not None
    runner.set_tier("hot", "session")
    await eventually(lambda: runner.watching and runner.next_poll_at > time.time() + 60)
    with mail_user.client() as client:
        client.append("INBOX", letter(1))
        await eventually(lambda: agrees(reader, account, mail_user))
        logins = mail_user.server.logins(mail_user.name)
        rival = ShardLog(
            plane.partition(account),
            settings=plane.settings,
            store=MirrorStore(plane.data / "rival"),
            observer=NoopObserver(),
            worker="rival",
        )
        await rival.fence()
        await rival.close()
        for n in range(2, 6):
            client.append("INBOX", letter(n))
    await eventually(lambda: reader_has(reader, account, 5), what="the mail that came while the producer was lost")
    assert mail_user.server.logins(mail_user.name) == logins
    assert len(set(reader.writers[account])) == 2, "the shard fenced again"


async def reader_has(reader: LogReader, account: str, messages: int) -> bool:
    return len((await reader.read())[account].by_name()["INBOX"]) == messages
