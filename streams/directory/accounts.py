"""Accounts as PostgreSQL holds them: the truth about who is live and how to log in.

Invariants: `version` grows with every change of state, user, address or credentials (a trigger sees to it) and orders
what is announced; a write that states the version it has seen loses against any later change.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

import asyncpg

from streams.directory.credentials import AuthKind
from streams.directory.postgres import open_pool, translated
from streams.errors import MailstreamsError
from streams.imap.values import Endpoint, TlsMode
from streams.settings import Settings

ACCOUNT_STATES: Final = ("live", "disabled", "deleted", "error")
_READ_PAGE: Final = 1000


class UnknownAccount(MailstreamsError):
    """There is no such account (any more)."""

    code = "unknown_account"


class AccountExists(MailstreamsError):
    """The user has this mailbox already. `account_id` is the row's."""

    code = "account_exists"

    def __init__(self, account_id: str) -> None:
        super().__init__(f"this user already has the mailbox, as account {account_id}")
        self.account_id = account_id


@dataclass(frozen=True, slots=True)
class AccountRow:
    """What ownership and reconcile need to know."""

    account_id: str
    user_id: str
    state: str
    version: int


@dataclass(frozen=True, slots=True)
class NewAccount:
    """An account to be stored. `sealed` for `password` and `oauth2`, `secret_ref` (a file name) for `secret_ref`."""

    user_id: str
    host: str
    port: int
    tls: TlsMode
    username: str
    auth: AuthKind
    sealed: bytes | None = field(default=None, repr=False)
    secret_ref: str | None = None
    account_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = "live"


@dataclass(frozen=True, slots=True)
class AccountConnection:
    """Everything a login needs; the secret is still sealed."""

    account_id: str
    user_id: str
    state: str
    version: int
    host: str
    port: int
    tls: TlsMode
    username: str
    auth: AuthKind
    sealed: bytes | None = field(default=None, repr=False)
    secret_ref: str | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the account lives."""
        return Endpoint(self.host, self.port, self.tls)


@dataclass(frozen=True, slots=True)
class Account:
    """One account as people see it: no credentials."""

    account_id: str
    user_id: str
    state: str
    reason: str | None
    version: int
    host: str
    port: int
    tls: TlsMode
    username: str
    auth: AuthKind
    created_at: datetime
    updated_at: datetime


_COLUMNS: Final = (
    "account_id::text, user_id, state, reason, version, host, port, tls, username, auth, created_at, updated_at"
)
_PAGE: Final = """
SELECT account_id::text, user_id, state, version FROM mailstreams.accounts
WHERE account_id > $1::uuid ORDER BY accounts.account_id LIMIT $2
"""
_FIRST: Final = "00000000-0000-0000-0000-000000000000"
_SOME: Final = """
SELECT account_id::text, user_id, state, version FROM mailstreams.accounts WHERE account_id = ANY($1::uuid[])
"""
_CONNECTION: Final = """
SELECT a.account_id::text, a.user_id, a.state, a.version, a.host, a.port, a.tls, a.username, a.auth,
       c.sealed, a.secret_ref
FROM mailstreams.accounts a LEFT JOIN mailstreams.credentials c USING (account_id)
WHERE a.account_id = $1::uuid
"""
_SET_STATE: Final = """
UPDATE mailstreams.accounts SET state = $2, reason = $3
WHERE account_id = $1::uuid AND ($4::bigint IS NULL OR version = $4) RETURNING version
"""
_INSERT: Final = """
INSERT INTO mailstreams.accounts (account_id, user_id, state, host, port, tls, username, auth, secret_ref)
VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING version
"""
_UPSERT_SEALED: Final = """
INSERT INTO mailstreams.credentials (account_id, sealed) VALUES ($1::uuid, $2)
ON CONFLICT (account_id) DO UPDATE SET sealed = excluded.sealed, updated_at = now()
"""
_REPLACE_TOKENS: Final = """
UPDATE mailstreams.credentials SET sealed = $2, updated_at = now()
WHERE account_id = $1::uuid AND ($3::bytea IS NULL OR sealed = $3)
"""
_NEW_CREDENTIALS: Final = """
UPDATE mailstreams.accounts SET auth = $2, secret_ref = $3, credentials_epoch = credentials_epoch + 1
WHERE account_id = $1::uuid RETURNING version
"""
_FORGET: Final = "DELETE FROM mailstreams.credentials WHERE account_id = $1::uuid"
_DUPLICATE: Final = """
SELECT account_id::text FROM mailstreams.accounts
WHERE user_id = $1 AND lower(host) = lower($2) AND port = $3 AND username = $4 AND state <> 'deleted'
"""
_SEALED_PAGE: Final = """
SELECT account_id::text, sealed FROM mailstreams.credentials WHERE account_id > $1::uuid
ORDER BY credentials.account_id LIMIT $2
"""
_LIST: Final = f"""
SELECT {_COLUMNS} FROM mailstreams.accounts
WHERE account_id > $1::uuid AND ($2::text IS NULL OR user_id = $2) AND ($3::text[] IS NULL OR state = ANY($3))
ORDER BY accounts.account_id LIMIT $4
"""  # noqa: S608  (only our own column list is put in)
_GET: Final = f"SELECT {_COLUMNS} FROM mailstreams.accounts WHERE account_id = $1::uuid"  # noqa: S608


class AccountStore:
    """Reads and writes accounts. Its methods raise `ServiceUnavailable` while PostgreSQL is down."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """A store with a pool of its own (no connection is made yet); close it with `close`."""
        return cls(await open_pool(settings.POSTGRES_DSN.get_secret_value(), settings.POSTGRES_POOL_SIZE))

    async def close(self) -> None:
        """Close the pool; what it is running is given 5 s."""
        try:
            async with asyncio.timeout(5.0):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    # --- what workers read -----------------------------------------------------------------------------------------
    async def page(self, after: str | None, limit: int) -> list[AccountRow]:
        """Up to `limit` accounts of every state, in order of id, behind `after` (None: from the start)."""
        with translated("reading accounts"):
            return [AccountRow(*row) for row in await self._pool.fetch(_PAGE, after or _FIRST, limit)]

    async def rows(self, account_ids: Sequence[str]) -> dict[str, AccountRow]:
        """The rows of these accounts, read now; one that does not exist is missing."""
        known = [i for i in account_ids if _is_uuid(i)]
        with translated("reading accounts"):
            return {row[0]: AccountRow(*row) for row in await self._pool.fetch(_SOME, known)}

    async def connection(self, account_id: str) -> AccountConnection:
        """How to log in to the account, whatever its state. Raises `UnknownAccount`."""
        return AccountConnection(*await self._one(_CONNECTION, account_id))

    async def set_state(
        self, account_id: str, state: str, reason: str | None = None, *, if_version: int | None = None
    ) -> int | None:
        """Set the state; the row's version afterwards. None when the row is gone or its version is not `if_version`.

        Setting the state it has already keeps the version.
        """
        with translated("storing an account's state"):
            version: int | None = await self._pool.fetchval(
                _SET_STATE, account_id, state, reason[:500] if reason else None, if_version
            )
        return version

    async def store_sealed(self, account_id: str, sealed: bytes, *, replacing: bytes | None = None) -> bool:
        """Store credentials that were renewed by us (a rotated token, a new key); the version stays.

        With `replacing`, only when that is still what is stored. False when nothing was stored.
        """
        with translated("storing credentials"):
            status: str = await self._pool.execute(_REPLACE_TOKENS, account_id, sealed, replacing)
        return status.endswith(" 1")

    async def sealed_pages(self, page_size: int = _READ_PAGE) -> AsyncIterator[list[tuple[str, bytes]]]:
        """All sealed credentials, page by page, in order of account id."""
        after = _FIRST
        while True:
            with translated("reading credentials"):
                rows = await self._pool.fetch(_SEALED_PAGE, after, page_size)
            if not rows:
                return
            yield [(row[0], row[1]) for row in rows]
            after = rows[-1][0]

    # --- what the API and the command line write -------------------------------------------------------------------
    async def add(self, account: NewAccount) -> AccountRow:
        """Store a new account with its credentials. Raises `AccountExists`."""
        with translated("storing an account"):
            try:
                async with self._pool.acquire() as connection, connection.transaction():
                    version = await connection.fetchval(
                        _INSERT,
                        account.account_id,
                        account.user_id,
                        account.state,
                        account.host,
                        account.port,
                        account.tls,
                        account.username,
                        account.auth,
                        account.secret_ref,
                    )
                    if account.sealed is not None:
                        await connection.execute(_UPSERT_SEALED, account.account_id, account.sealed)
            except asyncpg.UniqueViolationError:
                found = await self._pool.fetchval(
                    _DUPLICATE, account.user_id, account.host, account.port, account.username
                )
                raise AccountExists(found or account.account_id) from None
        return AccountRow(account.account_id, account.user_id, account.state, version)

    async def replace_credentials(
        self, account_id: str, auth: AuthKind, *, sealed: bytes | None = None, secret_ref: str | None = None
    ) -> int:
        """New credentials from a person: the version grows, so a refusal of the old ones cannot win. Returns it.

        Raises `UnknownAccount`.
        """
        with translated("storing credentials"):
            async with self._pool.acquire() as connection, connection.transaction():
                version: int | None = await connection.fetchval(_NEW_CREDENTIALS, account_id, auth, secret_ref)
                if version is None:
                    raise UnknownAccount(f"there is no account {account_id}")
                if sealed is None:
                    await connection.execute(_FORGET, account_id)
                else:
                    await connection.execute(_UPSERT_SEALED, account_id, sealed)
        return version

    async def get(self, account_id: str) -> Account:
        """One account. Raises `UnknownAccount`."""
        return Account(*await self._one(_GET, account_id))

    async def _one(self, query: str, account_id: str) -> asyncpg.Record:
        if not _is_uuid(account_id):
            raise UnknownAccount(f"there is no account {account_id[:64]!r}")
        with translated("reading an account"):
            row = await self._pool.fetchrow(query, account_id)
        if row is None:
            raise UnknownAccount(f"there is no account {account_id}")
        return row

    async def list_accounts(
        self, *, user_id: str | None = None, states: Iterable[str] | None = None
    ) -> AsyncIterator[Account]:
        """Accounts in order of id, read page by page; `states` None is all but `deleted`."""
        wanted = list(states) if states is not None else [s for s in ACCOUNT_STATES if s != "deleted"]
        after = _FIRST
        while True:
            with translated("reading accounts"):
                rows = await self._pool.fetch(_LIST, after, user_id, wanted, _READ_PAGE)
            for row in rows:
                yield Account(*row)
            if len(rows) < _READ_PAGE:
                return
            after = rows[-1][0]

    async def remove(self, account_id: str) -> AccountRow:
        """State `deleted`, credentials gone for good. The row stays: its version must outlive late events.

        Raises `UnknownAccount`.
        """
        if not _is_uuid(account_id):
            raise UnknownAccount(f"there is no account {account_id[:64]!r}")
        with translated("removing an account"):
            async with self._pool.acquire() as connection, connection.transaction():
                row = await connection.fetchrow(_REMOVE, account_id)
                if row is None:
                    raise UnknownAccount(f"there is no account {account_id}")
                await connection.execute(_FORGET, account_id)
        return AccountRow(*row)


_REMOVE: Final = """
UPDATE mailstreams.accounts SET state = 'deleted', reason = NULL WHERE account_id = $1::uuid
RETURNING account_id::text, user_id, state, version
"""


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
