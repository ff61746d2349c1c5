"""The projector on real Kafka and PostgreSQL: exactly once as the database sees it, whatever happens."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from streams.contracts.account import AccountSyncStatus, AccountTierChanged, SyncError
from streams.contracts.mailbox import MessageHeaders
from streams.local.postgres import Postgres
from streams.projection.migrations import migrate
from streams.projection.projector import Projector
from streams.projection.status import StatusReader
from streams.settings import Settings
from tests.fixtures.mail_events import EPOCH, AccountLog, place
from tests.fixtures.services import Broker
from tests.integration.projection.log import DEADLINE_S, LogWriter, Rows, create_topics, deployment, eventually

StartProjector = Callable[[Settings], Awaitable[Projector]]


@pytest.fixture
async def start() -> AsyncIterator[StartProjector]:
    """Starts projectors and stops them afterwards."""
    running: list[Projector] = []

    async def begin(settings: Settings) -> Projector:
        projector = Projector(settings)
        await projector.start()
        running.append(projector)
        return projector

    yield begin
    for projector in running:
        await projector.stop(5.0)


async def test_events_become_rows(settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector) -> None:
    """Issue 3 item 6: mailboxes, messages, places, status and positions; aborted transactions leave no trace."""
    log = AccountLog()
    aborted = AccountLog()
    projector = await start(settings)
    await log_writer.write(log.discovered(), log.discovered("Archive"))
    await log_writer.write(aborted.discovered(), abort=True)
    await log_writer.write(
        log.added(1, "m1", flags=("\\Seen",)),
        log.added(2, "m2"),
        log.flags(2, "m2", "\\Flagged", "\\Deleted"),
        log.moved("m1", place(1), place(7, mailbox="Archive"), "\\Seen"),
        log.backfilled(),
        log.caught_up(),
    )
    await rows.until("SELECT sequence FROM mail.accounts", log.sequence)
    assert await rows.all("SELECT mailbox_id, uid, message_id, flags FROM mail.places ORDER BY uid") == [
        {"mailbox_id": "id-INBOX", "uid": 2, "message_id": "m2", "flags": ["\\Flagged", "\\Deleted"]},  # case 99
        {"mailbox_id": "id-Archive", "uid": 7, "message_id": "m1", "flags": ["\\Seen"]},
    ]
    assert await rows.value("SELECT count(*) FROM mail.messages") == 2
    assert await rows.value("SELECT from_address FROM mail.messages WHERE message_id = 'm1'") == "ada@example.test"
    assert await rows.value("SELECT caught_up_at IS NOT NULL FROM mail.accounts")
    assert await rows.value("SELECT backfilled_at IS NOT NULL FROM mail.mailboxes WHERE name = 'INBOX'")
    await log_writer.write(log.removed(2, "m2"), log.deleted("Archive"))
    await rows.until("SELECT count(*) FROM mail.messages", 0)
    assert await rows.value("SELECT count(*) FROM mail.places") == 0
    assert projector.health().ok


async def test_status_and_tiers_become_rows(
    settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector
) -> None:
    account = str(uuid.uuid4())
    await start(settings)
    status = AccountSyncStatus(
        account_id=account,
        phase="backing_off",
        since=EPOCH,
        at=EPOCH,
        tier="cold",
        error=SyncError(code="host_busy", message="later\x00", at=EPOCH),
        messages=7,
        partition=3,
        tier_reason="idle_mail",
        heat_until=EPOCH,
        set_aside={"Bro\x00ken": "mailbox_unusable: cannot be opened"},
    )
    tier = AccountTierChanged(account_id=account, tier="hot", reason="session", at=EPOCH)
    await log_writer.write_raw("account.sync_status", [(account, msgspec.json.encode(status)), (account, b"nonsense")])
    await log_writer.write_raw("account.tier_changed", [(account, msgspec.json.encode(tier))])
    await rows.until("SELECT error_message FROM mail.sync_status", "later\N{REPLACEMENT CHARACTER}")
    await rows.until("SELECT tier FROM mail.tiers", "hot")
    async with StatusReader.connected(settings) as reader:
        found = (await reader.of([account]))[account]
    assert (found.tier, found.tier_reason, found.partition, found.heat_until) == ("cold", "idle_mail", 3, EPOCH)
    assert found.set_aside == {"Bro\N{REPLACEMENT CHARACTER}ken": "mailbox_unusable: cannot be opened"}
    plain = msgspec.structs.replace(status, set_aside={}, tier_reason=None, heat_until=None, tier=None)
    await log_writer.write_raw("account.sync_status", [(account, msgspec.json.encode(plain))])
    await rows.until("SELECT heat_until IS NULL FROM mail.sync_status", True)
    async with StatusReader.connected(settings) as reader:
        found = (await reader.of([account]))[account]
    assert (found.tier, found.tier_reason, found.heat_until, found.set_aside) == ("hot", "session", None, {})
    await log_writer.write_raw("account.sync_status", [(account, None)])
    await rows.until("SELECT count(*) FROM mail.sync_status", 0)


async def test_case_85_and_86_text_that_postgresql_cannot_store(
    settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector
) -> None:
    """NUL, lone surrogates and invalid UTF-8 are replaced and flagged; the mailbox goes on."""
    log = AccountLog()
    await start(settings)
    nul = log.added(1, "m1", headers=MessageHeaders(subject="a\x00b"))
    raw = msgspec.json.encode(log.added(2, "m2", headers=MessageHeaders(subject="caf?"))).replace(
        b"caf?", b"caf\xe9 \xc1\xbe"
    )
    lone = msgspec.json.encode(log.added(3, "m3", headers=MessageHeaders(subject="#"))).replace(b'"#"', b'"\\udce9"')
    huge = log.added(4, "m4", thread_id="t" * 9000, size=2**70, modseq="9" * 19)
    await log_writer.write_raw(
        "mailbox.changes",
        [
            (log.account_id, msgspec.json.encode(nul)),
            (log.account_id, raw),
            (log.account_id, lone),
            (log.account_id, msgspec.json.encode(huge)),
            (log.account_id, msgspec.json.encode(log.added(5, "m5"))),
        ],
    )
    await rows.until("SELECT sequence FROM mail.accounts", 5)
    assert await rows.all("SELECT message_id, subject, cleaned FROM mail.messages ORDER BY message_id") == [
        {"message_id": "m1", "subject": "a\ufffdb", "cleaned": True},
        {"message_id": "m2", "subject": "caf\ufffd \ufffd\ufffd", "cleaned": True},
        {"message_id": "m3", "subject": "\ufffd", "cleaned": True},
        {"message_id": "m4", "subject": "about m4", "cleaned": False},
        {"message_id": "m5", "subject": "about m5", "cleaned": False},
    ]


async def test_unknown_types_are_passed_over_and_count(
    settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector
) -> None:
    log = AccountLog()
    projector = await start(settings)
    new = msgspec.json.encode(log.added(1, "m1")).replace(b"message.added", b"message.pinned")
    await log_writer.write_raw("mailbox.changes", [(log.account_id, new)])
    await log_writer.write(log.added(2, "m2"))
    await rows.until("SELECT sequence FROM mail.accounts", 2)
    assert projector.health().ignored == {"mailbox.changes:unknown_type": 1}


@pytest.mark.parametrize("trouble", ["malformed", "gap"])
async def test_what_is_wrong_in_the_log_stops_its_partition_alone(
    trouble: str, settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector
) -> None:
    """What precedes the trouble is written, nothing behind it is, other partitions go on, and health says where."""
    log, others = AccountLog(), [AccountLog() for _ in range(12)]
    projector = await start(settings)
    await log_writer.write(log.added(1, "m1"))
    if trouble == "malformed":
        await log_writer.write_raw("mailbox.changes", [(log.account_id, b'{"type": "message.added"}')])
    else:
        log.sequence += 1
    await log_writer.write(log.added(3, "m3"), *[other.added(1, "x") for other in others])

    async def stopped() -> bool:
        return len(projector.health().failed) == 1

    assert await eventually(stopped)
    [(where, why)] = projector.health().failed.items()
    partition = int(where.rpartition("-")[2])
    assert why.startswith("malformed_event" if trouble == "malformed" else "sequence_gap")
    fine = [other for other in others if log_writer.partition(other.account_id) != partition]
    assert fine
    await rows.until(
        "SELECT count(*) FROM mail.messages WHERE account_id = ANY($1::uuid[])", len(fine), [o.account_id for o in fine]
    )
    assert await rows.value("SELECT count(*) FROM mail.places WHERE message_id = 'm3'") == 0
    assert await rows.value("SELECT count(*) FROM mail.places WHERE message_id = 'm1'") == 1


async def test_repeats_are_passed_over(
    settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector
) -> None:
    """The same event twice in the log counts once."""
    log = AccountLog()
    projector = await start(settings)
    first = log.added(1, "m1")
    await log_writer.write(first, log.removed(1, "m1"), first, log.added(2, "m2"))
    await rows.until("SELECT sequence FROM mail.accounts", 3)
    assert await rows.value("SELECT array_agg(message_id) FROM mail.places") == ["m2"]
    assert projector.health().repeats == 1


async def test_two_projectors_share_and_hand_over(
    settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector
) -> None:
    """Joining and leaving while events flow: nothing lost, nothing twice."""
    logs = [AccountLog() for _ in range(8)]
    first = await start(settings)
    second = Projector(settings)

    async def both() -> bool:
        return first.health().ready > 0 and second.health().ready > 0

    for turn in range(1, 31):
        await log_writer.write(*[log.added(turn, f"m{turn}") for log in logs])
        if turn == 10:
            await second.start()
            assert await eventually(both)
        if turn == 20:
            await first.stop()
    await rows.until("SELECT count(*) FROM mail.places", 240)
    await second.stop()
    assert await rows.value("SELECT min(sequence) FROM mail.accounts") == 30


async def test_postgresql_away_holds_everything(
    kafka: Broker, topic_prefix: str, private_postgres: Postgres, start: StartProjector
) -> None:
    """Case: PostgreSQL down. Positions wait, nothing is skipped, and it goes on by itself."""
    settings = deployment(kafka.bootstrap, private_postgres.dsn(), topic_prefix)
    await create_topics(settings)
    writer = LogWriter(settings)
    await writer.start()
    log = AccountLog()
    projector = await start(settings)
    await writer.write(log.added(1, "m1"))

    async def projected() -> bool:
        return projector.health().events >= 1

    assert await eventually(projected)
    await private_postgres.kill()
    await writer.write(log.added(2, "m2"))

    async def waits() -> bool:
        return "PostgreSQL" in (projector.health().waiting or "")

    assert await eventually(waits)
    await writer.write(log.added(3, "m3"))
    await private_postgres.start()

    async def caught_up() -> bool:
        return projector.health().events >= 3

    assert await eventually(caught_up)
    assert projector.health().ok
    assert projector.health().repeats == 0
    await projector.stop()
    await writer.stop()


async def test_starts_before_kafka_and_postgresql_and_stops_at_once(topic_prefix: str) -> None:
    """W4: a stop while nothing answers has nothing to wait for."""
    projector = Projector(deployment("127.0.0.1:1", "postgresql://nobody@127.0.0.1:1/none", topic_prefix))
    await projector.start()

    async def waits() -> bool:
        return "PostgreSQL" in (projector.health().waiting or "")

    assert await eventually(waits)
    began = asyncio.get_running_loop().time()
    await projector.stop(DEADLINE_S)
    assert asyncio.get_running_loop().time() - began < 2


async def test_a_topic_made_anew_is_not_projected_over_the_old_rows(
    settings: Settings, log_writer: LogWriter, rows: Rows, start: StartProjector
) -> None:
    """KIP-516: same name, another topic."""
    log = AccountLog()
    await migrate(settings.POSTGRES_DSN.get_secret_value())
    projector = await start(settings)
    await log_writer.write(log.added(1, "m1"))
    await rows.until("SELECT count(*) FROM mail.places", 1)
    await projector.stop()
    await rows.connection.execute("UPDATE mail.positions SET topic_id = gen_random_uuid()")
    again = await start(settings)

    async def refused() -> bool:
        failed = again.health().failed
        return len(failed) == 12 and all(why.startswith("wrong_topic") for why in failed.values())

    assert await eventually(refused)
    assert not again.health().ok
