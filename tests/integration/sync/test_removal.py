"""A removed account (S8): its mail leaves log, mirror and database; neither others nor its own return are harmed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from streams.directory.credentials import StoredPassword
from streams.domain.ownership import AccountEntry
from streams.imap.credentials import Secret
from streams.projection.projector import Projector
from streams.projection.rebuild import rebuild
from tests.fixtures.services import MailUser
from tests.integration.sync.conftest import Plane, eventually
from tests.integration.sync.folding import LogReader
from tests.integration.sync.test_host import agrees, letter

TABLES = ("messages", "places", "mailboxes", "unreadable", "sync_status", "tiers")


class Database:
    """What the projection holds of an account."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def counts(self, account_id: str) -> dict[str, int]:
        return {
            table: await self._connection.fetchval(
                f"SELECT count(*) FROM mail.{table} WHERE account_id = $1::uuid",
                account_id,
            )
            for table in TABLES
        }

    async def empty(self, account_id: str) -> bool:
        return not any((await self.counts(account_id)).values())

    async def sequence(self, account_id: str) -> int:
        found: int = await self._connection.fetchval(
            "SELECT sequence FROM mail.accounts WHERE account_id = $1::uuid", account_id
        )
        return found


@pytest.fixture
async def projected(plane: Plane) -> AsyncIterator[Database]:
    """The database with a projector at work."""
    projector = Projector(plane.settings)
    await projector.start()
    connection = await asyncpg.connect(plane.settings.POSTGRES_DSN.get_secret_value())
    yield Database(connection)
    await connection.close()
    await projector.stop()


def fill(user: MailUser, count: int = 12) -> None:
    with user.client() as client:
        for n in range(count):
            client.append("INBOX", letter(n))
        client.create_folder("Work")
        client.append("Work", letter(100))


async def said(plane: Plane, account: str, state: str) -> AccountEntry:
    """The account's state changes in the directory; returns what the control plane would tell."""
    if state == "deleted":
        row = await plane.store.remove(account)
        version = row.version
    else:
        found = await plane.store.set_state(account, state)
        assert found is not None
        version = found
    entry = plane.entries[account] = replace(plane.entries[account], state=state, version=version)
    return entry


async def come_back(plane: Plane, account: str, user: MailUser) -> AccountEntry:
    """The same id lives again."""
    sealed = plane.box.seal(account, StoredPassword(Secret(user.password)))
    await plane.store.replace_credentials(account, "password", sealed=sealed)
    return await said(plane, account, "live")


async def whole(projected: Database, account: str, messages: int) -> bool:
    counts = await projected.counts(account)
    return counts["places"] == messages and counts["sync_status"] == counts["tiers"] == 1


async def test_s8_nothing_of_a_removed_account_stays_and_it_may_come_back(
    plane: Plane, reader: LogReader, mail_user: MailUser, plain_mail_user: MailUser, projected: Database
) -> None:
    fill(mail_user)
    fill(plain_mail_user, 3)
    account, other = await plane.add(mail_user), await plane.add(plain_mail_user)
    host = await plane.host()
    await eventually(lambda: agrees(reader, account, mail_user), what="backfill")
    await eventually(lambda: whole(projected, account, 13), what="rows")
    await eventually(lambda: whole(projected, other, 4), what="rows of the other")
    partition = plane.partition(account)
    host.account_changed(partition, await said(plane, account, "deleted"))
    await eventually(lambda: projected.empty(account), what="removal")

    async def nothing_left() -> bool:
        await reader.read()
        return not reader.folds[account].names

    await eventually(nothing_left, what="the log's reader is where the projection is")
    fold = reader.folds[account]
    assert fold.places == {}
    assert await projected.sequence(account) == fold.sequence
    shard = host.shard(partition)
    assert shard is not None
    assert shard.log is not None
    assert [key for key, _ in shard.log.scan(account)] == [f"{account}/account"]
    assert host.runner(account) is None
    assert await whole(projected, other, 4)
    # said again, as reconcile does: nothing more is written
    host.account_changed(partition, plane.entries[account])
    before = fold.sequence
    # a rebuild comes to the same, with events of its mail in the log
    await rebuild(plane.settings)
    assert await projected.empty(account)
    assert await projected.sequence(account) == before
    await eventually(lambda: whole(projected, other, 4), what="the other after the rebuild")
    # it comes back under the same id: told anew from the start, its sequence goes on
    host.account_changed(partition, await come_back(plane, account, mail_user))
    await eventually(lambda: agrees(reader, account, mail_user), what="return")
    await eventually(lambda: whole(projected, account, 13), what="rows after the return")
    assert reader.folds[account].kinds.count("account.caught_up") == 2
    assert reader.folds[account].events[before]["sequence"] == before + 1


async def test_s8_removed_and_back_at_once_ends_in_the_servers_state(
    plane: Plane, reader: LogReader, mail_user: MailUser, projected: Database
) -> None:
    """The second event comes while the first one is at work; one runner at a time writes."""
    fill(mail_user)
    account = await plane.add(mail_user)
    host = await plane.host()
    await eventually(lambda: agrees(reader, account, mail_user), what="backfill")
    partition = plane.partition(account)
    host.account_changed(partition, await said(plane, account, "disabled"))
    host.account_changed(partition, await said(plane, account, "deleted"))
    host.account_changed(partition, await come_back(plane, account, mail_user))

    async def again() -> bool:
        await reader.read()
        return reader.folds[account].kinds.count("account.caught_up") == 2

    await eventually(again, what="return")
    await eventually(lambda: agrees(reader, account, mail_user), what="server")
    await eventually(lambda: whole(projected, account, 13), what="rows")


async def test_s8_a_removal_that_was_cut_short_is_ended_by_the_next_owner(
    plane: Plane, reader: LogReader, mail_user: MailUser, plain_mail_user: MailUser, projected: Database
) -> None:
    """Said while no worker ran; and a tombstone that nobody remembers, which counts when the database agrees."""
    fill(mail_user, 3)
    fill(plain_mail_user, 3)
    said_deleted, unheard = await plane.add(mail_user), await plane.add(plain_mail_user)
    lost = await plane.add(replace(mail_user, name=mail_user.name.upper()), password=mail_user.password)
    host = await plane.host("w1")
    for account, user in ((said_deleted, mail_user), (unheard, plain_mail_user)):
        await eventually(lambda account=account, user=user: agrees(reader, account, user), what="backfill")
        await eventually(lambda account=account: whole(projected, account, 4), what="rows")
    await eventually(lambda: whole(projected, lost, 4), what="rows of the account whose table entry is lost")
    await host.stop(3.0)
    plane.hosts.remove(host)
    await said(plane, said_deleted, "deleted")
    await said(plane, unheard, "deleted")
    del plane.entries[unheard], plane.entries[lost]
    await plane.host("w2")
    await eventually(lambda: projected.empty(said_deleted), what="removal that was said")
    await eventually(lambda: projected.empty(unheard), what="removal of which nothing is left but the mail")
    assert await whole(projected, lost, 4), "the database has it: a table that lost it removes nothing"
