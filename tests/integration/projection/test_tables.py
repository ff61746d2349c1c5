"""Batches into PostgreSQL: against a model that reads the log event by event, and against what goes wrong."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.contracts.mailbox import MessageHeaders
from streams.errors import ConfigurationError
from streams.projection import tables as tables_module
from streams.projection.batch import Outcome, Position, Slice, Source
from streams.projection.decoding import Decoded
from streams.projection.queries import LOCK_POSITIONS
from streams.projection.tables import Tables, open_projection_pool
from tests.fixtures.mail_events import AccountLog, place
from tests.fixtures.mail_model import Model, Walker
from tests.integration.projection.log import Rows

TOPIC_ID = uuid.uuid4()


class Partition:
    """A partition of which slices are written one after the other."""

    def __init__(self, tables: Tables, number: int) -> None:
        self.tables = tables
        self.source = Source("mailbox.changes", number)
        self.offset = 0

    async def open(self) -> Partition:
        await self.tables.start_at(self.source, Position(TOPIC_ID, 0))
        return self

    def slice(self, events: Sequence[Any], *, start: int | None = None) -> Slice:
        begin = self.offset if start is None else start
        return Slice(
            self.source,
            TOPIC_ID,
            begin,
            begin + len(events),
            changes=[Decoded(event) for event in events],
            offsets=list(range(begin, begin + len(events))),
        )

    async def write(self, *events: Any) -> Outcome:
        outcome = await self.tables.write([self.slice(events)])
        if not outcome.moved and not outcome.failed:
            self.offset += len(events)
        return outcome


@pytest.fixture
async def tables(rows: Rows, database: str) -> AsyncIterator[Tables]:
    """Tables of an empty projection."""
    pool = await open_projection_pool(database, 2)
    yield Tables(pool)
    pool.terminate()


@pytest.fixture
async def partition(tables: Tables) -> Partition:
    return await Partition(tables, 0).open()


async def stored(rows: Rows, account_id: str) -> Model:
    """What the database holds of an account, as a model."""
    model = Model()
    for row in await rows.all("SELECT * FROM mail.mailboxes WHERE account_id = $1::uuid", account_id):
        model.mailboxes[row["mailbox_id"]] = {"name": row["name"], "uidvalidity": row["uidvalidity"]}
    for row in await rows.all("SELECT * FROM mail.places WHERE account_id = $1::uuid", account_id):
        key = (row["mailbox_id"], row["uidvalidity"], row["uid"])
        model.places[key] = {"message": row["message_id"], "flags": row["flags"]}
    for row in await rows.all("SELECT * FROM mail.messages WHERE account_id = $1::uuid", account_id):
        model.subjects[row["message_id"]] = row["subject"]
    for row in await rows.all("SELECT * FROM mail.unreadable WHERE account_id = $1::uuid", account_id):
        model.unreadable.add((row["mailbox_id"], row["uidvalidity"], row["uid"]))
    return model


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
async def test_any_history_in_any_batches_gives_what_it_adds_up_to(seed: int, tables: Tables, rows: Rows) -> None:
    """The fold of the log and the database agree, mailbox by mailbox, UID by UID, flag by flag."""
    chance = random.Random(seed)
    walker, model = Walker(chance, AccountLog()), Model()
    partition = await Partition(tables, chance.randrange(10**9)).open()
    events = list(walker.events(chance.randrange(5, 120)))
    at = 0
    while at < len(events):
        size = chance.choice([1, 2, 5, 20, 100])
        batch = events[at : at + size]
        outcome = await partition.write(*batch)
        assert (outcome.events, outcome.odd, outcome.stubs) == (len(batch), 0, 0)
        at += len(batch)
        for event in batch:
            model.apply(event)
        assert await stored(rows, walker.log.account_id) == model


async def test_s3_a_zombie_writes_nothing(partition: Partition, rows: Rows) -> None:
    """Who reads on from where it was, while another has written, finds the row moved."""
    log = AccountLog()
    first, second, other = log.added(1, "m1"), log.added(2, "m2"), log.added(3, "m3")
    await partition.write(first)
    late = partition.slice([second])
    await partition.write(second, other)
    outcome = await partition.tables.write([late])
    assert outcome.moved == {partition.source: Position(TOPIC_ID, 3)}
    assert outcome.events == 0
    ahead = await partition.tables.write([partition.slice([log.added(4, "m4")], start=17)])
    assert partition.source in ahead.moved
    assert await rows.value("SELECT count(*) FROM mail.places") == 3


async def test_s3_a_sleeper_in_mid_transaction_does_not_hold_its_successor(
    partition: Partition, rows: Rows, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP between two statements: PostgreSQL ends the session, the locks are free, its commit fails."""
    monkeypatch.setitem(tables_module._SESSION, "idle_in_transaction_session_timeout", "500")
    pool = await open_projection_pool(database, 1)
    sleeper = await pool.acquire()
    transaction = sleeper.transaction()
    await transaction.start()
    await sleeper.fetch(LOCK_POSITIONS, [partition.source.topic], [partition.source.partition])
    log = AccountLog()
    outcome = await asyncio.wait_for(partition.write(log.added(1, "m1")), 10)
    assert outcome.events == 1
    with pytest.raises((asyncpg.InterfaceError, asyncpg.PostgresError)):
        await transaction.commit()
    pool.terminate()


async def test_two_partitions_are_written_at_once_and_one_gap_stops_one(tables: Tables, rows: Rows) -> None:
    left, right = await Partition(tables, 1).open(), await Partition(tables, 2).open()
    good, broken = AccountLog(), AccountLog()
    first = broken.added(1, "m1")
    broken.sequence += 1
    outcome = await tables.write(
        [left.slice([good.added(1, "m1"), good.added(2, "m2")]), right.slice([first, broken.added(3, "m3")])]
    )
    assert list(outcome.failed) == [right.source]
    assert "1 are missing" in str(outcome.failed[right.source])
    assert (await tables.positions("mailbox.changes"))[1].next_offset == 2
    assert (await tables.positions("mailbox.changes"))[2].next_offset == 1
    assert await rows.value("SELECT count(*) FROM mail.places") == 3


async def test_case_85_what_postgresql_refuses_costs_only_the_message(partition: Partition, rows: Rows) -> None:
    """A value that nobody foresaw: that message becomes a stub that says so, its neighbours are whole."""
    await rows.connection.execute("ALTER TABLE mail.messages ADD CHECK (subject <> 'refused')")
    log = AccountLog()
    outcome = await partition.write(
        log.added(1, "m1"),
        log.added(2, "m2", headers=MessageHeaders(subject="refused"), flags=("\\Seen",)),
        log.added(3, "m3"),
    )
    assert (outcome.events, outcome.stubs) == (3, 1)
    assert await rows.all("SELECT message_id, subject, defects, truncated FROM mail.messages ORDER BY 1") == [
        {"message_id": "m1", "subject": "about m1", "defects": [], "truncated": False},
        {"message_id": "m2", "subject": None, "defects": ["unprojectable"], "truncated": True},
        {"message_id": "m3", "subject": "about m3", "defects": [], "truncated": False},
    ]
    assert await rows.value("SELECT flags FROM mail.places WHERE uid = 2") == ["\\Seen"]


async def test_a_stub_does_not_replace_what_is_known_and_gives_way_to_it(partition: Partition, rows: Rows) -> None:
    """Case 33: absent items never overwrite."""
    log = AccountLog()
    stub: dict[str, Any] = {"headers": MessageHeaders(), "truncated": True, "size": None}
    await partition.write(log.discovered("A"), log.added(1, "m1", preview="hello"))
    await partition.write(log.added(2, "m1", **stub))
    assert await rows.all("SELECT subject, preview, size FROM mail.messages") == [
        {"subject": "about m1", "preview": "hello", "size": 1001}
    ]
    await partition.write(log.added(3, "m2", **stub))
    await partition.write(log.added(4, "m2"))
    assert await rows.value("SELECT subject FROM mail.messages WHERE message_id = 'm2'") == "about m2"


async def test_a_place_that_is_given_to_another_message_leaves_no_orphan(partition: Partition, rows: Rows) -> None:
    log = AccountLog()
    await partition.write(log.added(1, "m1"))
    await partition.write(log.added(1, "m2"))
    assert await rows.value("SELECT array_agg(message_id) FROM mail.messages") == ["m2"]
    await partition.write(log.removed(1, "m1"))  # late word about the one that is not there any more
    assert await rows.value("SELECT message_id FROM mail.places") == "m2"


async def test_huge_and_hostile_values_are_stored(partition: Partition, rows: Rows) -> None:
    """Whatever a sender chooses fits: index entries are bounded, numbers too."""
    log = AccountLog()
    long = "a" * 100_000 + "@example.test"
    outcome = await partition.write(
        log.added(
            1,
            "m1",
            headers=MessageHeaders(
                subject="s" * 200_000, message_id=f"<{long}>", references=("r" * 50_000, 'qu"o\\te', "{,}")
            ),
            thread_id="t" * 10_000,
            size=2**80,
            modseq="9" * 19,
            labels=("a (b", "", "NULL", "\\Inbox"),
        )
    )
    assert (outcome.events, outcome.stubs) == (1, 0)
    assert await rows.value('SELECT "references" FROM mail.messages') == ["r" * 50_000, 'qu"o\\te', "{,}"]
    assert await rows.value("SELECT labels FROM mail.places") == ["a (b", "", "NULL", "\\Inbox"]
    assert await rows.value("SELECT modseq FROM mail.places") == 2**63 - 1
    assert await rows.value("SELECT size FROM mail.messages") is None


async def test_a_move_keeps_the_place_in_the_order_of_the_mailbox(partition: Partition, rows: Rows) -> None:
    log = AccountLog()
    added = log.added(1, "m1")
    await partition.write(added)
    await partition.write(log.moved("m1", place(1), place(9, mailbox="Other")))
    assert await rows.value("SELECT sort_at FROM mail.places") == added.internal_date


async def test_an_unmigrated_database_is_named(database: str) -> None:
    pool = await open_projection_pool(database, 1)
    with pytest.raises(ConfigurationError, match="not migrated"):
        await Tables(pool).positions("mailbox.changes")
    pool.terminate()
