"""The directory on real PostgreSQL: versions, compare-and-set, pages, and a database that is away or not right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from streams.contracts.account import AccountStateChanged
from streams.directory.accounts import AccountExists, AccountRow, AccountStore, NewAccount, UnknownAccount
from streams.directory.credentials import CredentialBox, StoredPassword, generate_key
from streams.directory.reconcile import reconcile_once
from streams.domain.ownership import AccountEntry
from streams.errors import ConfigurationError, ServiceUnavailable
from streams.imap.credentials import Secret
from streams.projection.migrations import head, migrate
from streams.settings import load_settings


@pytest.fixture
async def store(database: str) -> AsyncIterator[AccountStore]:
    """A directory without accounts."""
    await migrate(database)
    opened = await AccountStore.open(load_settings(POSTGRES_DSN=database))
    yield opened
    await opened.close()


def new(username: str = "ada", **more: str) -> NewAccount:
    return NewAccount(
        user_id=more.get("user_id", "u"),
        host=more.get("host", "imap.example.test"),
        port=993,
        tls="tls",
        username=username,
        auth="password",
        sealed=b"sealed",
    )


async def test_the_version_grows_with_what_matters_and_with_nothing_else(store: AccountStore, database: str) -> None:
    """The trigger, not the program, sees to it: other services write these rows too."""
    row = await store.add(new())
    connection = await asyncpg.connect(database)

    async def after(statement: str) -> int:
        await connection.execute(f"UPDATE mailstreams.accounts SET {statement}")
        found: int = await connection.fetchval("SELECT version FROM mailstreams.accounts")
        return found

    assert row.version == 1
    assert await after("state = 'disabled'") == 2
    assert await after("state = 'disabled'") == 2
    assert await after("reason = 'x'") == 2
    assert await after("version = 99") == 2
    assert await after("user_id = 'v'") == 3
    assert await after("host = 'other.example.test'") == 4
    assert await store.replace_credentials(row.account_id, "password", sealed=b"new") == 5
    assert await store.store_sealed(row.account_id, b"rotated")
    assert (await store.connection(row.account_id)).version == 5
    await connection.close()


async def test_a_late_verdict_loses_against_any_change(store: AccountStore) -> None:
    """S9: a runner sets `error` only for the account it has seen."""
    row = await store.add(new())
    await store.replace_credentials(row.account_id, "password", sealed=b"new")
    assert await store.set_state(row.account_id, "error", "credentials_refused", if_version=row.version) is None
    assert await store.set_state(row.account_id, "error", "x" * 9000, if_version=2) == 3
    account = await store.get(row.account_id)
    assert (account.state, len(account.reason or "")) == ("error", 500)


async def test_tokens_are_replaced_only_in_place_of_what_was_read(store: AccountStore) -> None:
    row = await store.add(new())
    assert not await store.store_sealed(row.account_id, b"late", replacing=b"other")
    assert await store.store_sealed(row.account_id, b"next", replacing=b"sealed")
    assert (await store.connection(row.account_id)).sealed == b"next"


async def test_one_mailbox_once_per_user(store: AccountStore) -> None:
    first = await store.add(new())
    with pytest.raises(AccountExists) as caught:
        await store.add(new(host="IMAP.example.test"))
    assert caught.value.account_id == first.account_id
    await store.add(new(user_id="v"))
    removed = await store.remove(first.account_id)
    assert (removed.state, removed.version) == ("deleted", 2)
    assert (await store.connection(first.account_id)).sealed is None
    again = await store.add(new())
    assert again.account_id != first.account_id


async def test_pages_cover_every_account_once_in_order(store: AccountStore) -> None:
    made = {(await store.add(new(f"user{n}"))).account_id for n in range(25)}
    seen: list[AccountRow] = []
    while page := await store.page(seen[-1].account_id if seen else None, 7):
        seen += page
    assert [row.account_id for row in seen] == sorted(made)
    some = [*list(made)[:3], "no uuid", "11111111-1111-4111-8111-111111111111"]
    assert set(await store.rows(some)) == set(some[:3])
    assert {a.account_id async for a in store.list_accounts(states=["live"])} == made
    assert [a async for a in store.list_accounts(user_id="nobody")] == []


async def test_unknown_accounts_are_named(store: AccountStore) -> None:
    for account_id in ("11111111-1111-4111-8111-111111111111", "nonsense", ""):
        for ask in (store.connection, store.get, store.remove):
            with pytest.raises(UnknownAccount):
                await ask(account_id)
    assert await store.set_state("11111111-1111-4111-8111-111111111111", "live") is None


async def test_a_row_copied_by_hand_does_not_open(store: AccountStore, database: str) -> None:
    """Whoever can write rows cannot give one account the credentials of another."""
    box = CredentialBox.from_keys([generate_key()])
    victim, thief = new("victim"), new("thief")
    await store.add(victim)
    await store.add(thief)
    await store.store_sealed(victim.account_id, box.seal(victim.account_id, StoredPassword(Secret("s3cret"))))
    connection = await asyncpg.connect(database)
    await connection.execute(
        "UPDATE mailstreams.credentials SET sealed = (SELECT sealed FROM mailstreams.credentials WHERE account_id = $1)"
        " WHERE account_id = $2",
        victim.account_id,
        thief.account_id,
    )
    await connection.close()
    stolen = (await store.connection(thief.account_id)).sealed
    assert stolen is not None
    with pytest.raises(Exception, match="another account"):
        box.open(thief.account_id, stolen)


async def test_s7_reconcile_against_postgresql(store: AccountStore) -> None:
    """One missing, one no longer live, one gone; the rest agrees."""
    rows = [await store.add(new(f"user{n}")) for n in range(12)]
    await store.set_state(rows[1].account_id, "disabled")
    known = [AccountEntry(row.account_id, row.user_id, "live", 1) for row in rows[1:]]
    known.append(AccountEntry("11111111-1111-4111-8111-111111111111", "u", "live", 4))
    said: list[AccountStateChanged] = []

    async def entries() -> AsyncIterator[AccountEntry]:
        for entry in known:
            yield entry

    async def publish(event: AccountStateChanged) -> None:
        said.append(event)

    report = await reconcile_once(store, entries(), publish, 5, [0], partition_count=1)
    assert {(e.account_id, e.state, e.version) for e in said} == {
        (rows[0].account_id, "live", 1),
        (rows[1].account_id, "disabled", 2),
        ("11111111-1111-4111-8111-111111111111", "deleted", None),
    }
    assert (report.rows, report.announced, report.absent) == (12, 2, 1)


async def test_many_start_at_once_and_one_migrates(database: str) -> None:
    assert sorted(await asyncio.gather(*(migrate(database) for _ in range(5)))) == [False] * 4 + [True]
    assert await migrate(database) is False


async def test_a_database_that_cannot_hold_every_text_is_refused(database: str) -> None:
    name = f"{database.rsplit('/', 1)[1]}_ascii"
    connection = await asyncpg.connect(database)
    await connection.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(ConfigurationError, match="UTF8"):
            await migrate(database.rsplit("/", 1)[0] + f"/{name}")
    finally:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.close()


async def test_a_newer_database_is_refused(database: str) -> None:
    await migrate(database)
    connection = await asyncpg.connect(database)
    await connection.execute("UPDATE mailstreams.schema_version SET version_num = '9999'")
    await connection.close()
    with pytest.raises(ConfigurationError, match="newer"):
        await migrate(database)
    assert head() != "9999"


async def asked(dsn: str) -> None:
    """A question to the database, with the settings that name it."""
    opened = await AccountStore.open(load_settings(POSTGRES_DSN=dsn))
    try:
        await opened.page(None, 1)
    finally:
        await opened.close()


async def test_what_is_wrong_with_the_database_is_named_without_its_password(database: str) -> None:
    wrong = {
        "postgresql://postgres:s3cret@127.0.0.1:1/none": ServiceUnavailable,
        "mysql://u:s3cret@127.0.0.1/x": ConfigurationError,
        "s3cret": ConfigurationError,
        database.rsplit("/", 1)[0] + "/s3cret": ConfigurationError,
    }
    for dsn, kind in wrong.items():
        with pytest.raises(kind) as caught:
            await migrate(dsn)
        assert "s3cret" not in str(caught.value)
        with pytest.raises(kind) as caught:
            await asked(dsn)
        assert "s3cret" not in str(caught.value)
    unmigrated = await AccountStore.open(load_settings(POSTGRES_DSN=database))
    with pytest.raises(ConfigurationError, match="not migrated"):
        await unmigrated.page(None, 1)
    await unmigrated.close()
