"""`projection rebuild`: the log into fresh tables, swapped in under running projectors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from click.testing import CliRunner

from streams.cli import projection
from streams.projection.batch import LogStartGone
from streams.projection.projector import Projector
from streams.projection.rebuild import RebuildRefused, rebuild
from streams.settings import Settings
from tests.fixtures.mail_events import AccountLog, place
from tests.integration.projection.log import LogWriter, Rows, eventually

EVERYTHING = """
SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
    SELECT p.account_id || p.mailbox_id || p.uid || p.message_id || p.flags::text || m.subject || p.sort_at AS line
    FROM mail.places p JOIN mail.messages m USING (account_id, message_id)
    UNION ALL SELECT account_id || mailbox_id || name || coalesce(uidvalidity, 0) FROM mail.mailboxes
    UNION ALL SELECT account_id || sequence::text FROM mail.accounts
) AS lines
"""


@pytest.fixture
async def projector(settings: Settings) -> AsyncIterator[Projector]:
    """A projector that runs."""
    running = Projector(settings)
    await running.start()
    yield running
    await running.stop(5.0)


async def some_history(log_writer: LogWriter, count: int = 20) -> list[AccountLog]:
    """A log of several accounts in which things moved about."""
    logs = [AccountLog() for _ in range(count)]
    for log in logs:
        await log_writer.write(
            log.discovered(), log.discovered("Archive"), *[log.added(uid, f"m{uid}") for uid in range(1, 9)]
        )
        await log_writer.write(
            log.flags(2, "m2", "\\Seen"),
            log.removed(1, "m1"),
            log.moved("m3", place(3), place(1, mailbox="Archive")),
            log.renamed("Archive", "Attic"),
        )
    return logs


async def test_a_rebuild_gives_the_same_rows_while_events_flow(
    settings: Settings, log_writer: LogWriter, rows: Rows, projector: Projector
) -> None:
    """What was wrong in the tables is right afterwards; the projector goes on; what was granted stays granted."""
    logs = await some_history(log_writer)
    await rows.until("SELECT count(*) FROM mail.accounts WHERE sequence = 14", len(logs))
    before = await rows.value(EVERYTHING)
    await rows.connection.execute("UPDATE mail.places SET flags = '{broken}'")
    await rows.connection.execute("GRANT USAGE ON SCHEMA mail TO PUBLIC")
    await rows.connection.execute("GRANT SELECT ON mail.places TO PUBLIC")
    assert await rows.value(EVERYTHING) != before

    stop = asyncio.Event()

    async def mail_goes_on() -> int:
        uid = 100
        while not stop.is_set():
            await log_writer.write(*[log.added(uid, f"m{uid}") for log in logs])
            uid += 1
        return uid - 100

    flow = asyncio.create_task(mail_goes_on())
    seen: list[tuple[int, int]] = []
    try:
        done = await asyncio.wait_for(rebuild(settings, lambda d, t: seen.append((d, t))), 60)
    finally:
        stop.set()
        more = await flow
    assert done.events >= 14 * len(logs)
    assert seen[-1][0] == seen[-1][1] > 0
    await rows.until("SELECT count(*) FROM mail.accounts WHERE sequence = $1", len(logs), 14 + more)
    await rows.until("SELECT count(*) FROM mail.places", (7 + more) * len(logs))
    assert await rows.value("SELECT count(*) FROM mail.places WHERE 'broken' = ANY(flags)") == 0
    assert await rows.value("SELECT has_table_privilege('public', 'mail.places', 'SELECT')")
    assert await rows.value("SELECT count(*) FROM pg_namespace WHERE nspname IN ('mail_rebuild', 'mail_replaced')") == 0
    again = await rows.value(EVERYTHING)
    await asyncio.wait_for(rebuild(settings), 60)
    assert await rows.value(EVERYTHING) == again
    assert projector.health().ok


async def test_rebuild_is_refused_when_the_logs_start_is_gone(
    settings: Settings, log_writer: LogWriter, rows: Rows
) -> None:
    log = AccountLog()
    await log_writer.write(log.added(1, "m1"))
    await log_writer.write(log.added(2, "m2"))
    partition = TopicPartition(settings.topic("mailbox.changes"), log_writer.partition(log.account_id))
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.KAFKA_BOOTSTRAP_SERVERS)
    await admin.start()
    await admin.delete_records({partition: RecordsToDelete(before_offset=2)})
    await admin.close()
    with pytest.raises(LogStartGone):
        await rebuild(settings)
    fresh = Projector(settings)
    await fresh.start()

    async def says_so() -> bool:
        return any("log_start_gone" in why for why in fresh.health().failed.values())

    assert await eventually(says_so)
    await fresh.stop()


async def test_rebuild_is_refused_when_others_hang_on_the_tables(
    settings: Settings, log_writer: LogWriter, rows: Rows
) -> None:
    await rows.connection.execute("CREATE VIEW public.inbox AS SELECT uid FROM mail.places")
    with pytest.raises(RebuildRefused, match=r"public\.inbox"):
        await rebuild(settings)


async def test_a_rebuild_that_meets_a_malformed_event_changes_nothing(
    settings: Settings, log_writer: LogWriter, rows: Rows
) -> None:
    log = AccountLog()
    await log_writer.write(log.added(1, "m1"))
    await rebuild(settings)
    await log_writer.write_raw("mailbox.changes", [(log.account_id, b"{}")])
    with pytest.raises(RebuildRefused):
        await rebuild(settings)
    assert await rows.value("SELECT count(*) FROM mail.places") == 1


async def test_the_commands(settings: Settings, log_writer: LogWriter, rows: Rows) -> None:
    """migrate, rebuild and status, for people and for programs."""
    log = AccountLog()
    await log_writer.write(log.discovered(), log.added(1, "m1"))
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": settings.KAFKA_BOOTSTRAP_SERVERS,
        "KAFKA_TOPIC_PREFIX": settings.KAFKA_TOPIC_PREFIX,
        "POSTGRES_DSN": settings.POSTGRES_DSN.get_secret_value(),
        "PARTITIONS": str(settings.PARTITIONS),
    }

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, projection.group, list(arguments), env=environment)

    assert "nothing to do" in (await run("migrate")).stdout
    rebuilt = await run("rebuild", "--yes", "--json")
    assert rebuilt.exit_code == 0, rebuilt.output
    assert json.loads(rebuilt.stdout)["events"] == 2
    told = await run("status", "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert (found["kafka"], found["never_projected"]) == ("ok", [])
    assert {row["lag"] for row in found["positions"]} == {0}
    # Where a projector stands after the last event: before the mark that ends its transaction.
    written = (
        "UPDATE mail.positions SET next_offset = next_offset - $1 WHERE topic = 'mailbox.changes' AND next_offset > 1"
    )
    await rows.connection.execute(written, 1)
    assert {row["lag"] for row in json.loads((await run("status", "--json")).stdout)["positions"]} == {0}
    await rows.connection.execute(written, 1)
    assert {row["lag"] for row in json.loads((await run("status", "--json")).stdout)["positions"]} == {0, 2}
    assert "mailbox.changes" in (await run("status")).stdout
    await rows.connection.execute("UPDATE mail.positions SET topic_id = gen_random_uuid()")
    assert (await run("status")).exit_code == 1
