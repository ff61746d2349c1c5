"""Credentials for a login, fresh each time, out of what is stored.

Invariants: between logins a secret is in memory only as it was stored, encrypted; PostgreSQL being down stops no account
that was running (its sealed value is kept); a rotated OAuth2 token is stored before it is used, and an older token never
replaces a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from streams.directory.accounts import AccountConnection, AccountStore, UnknownAccount
from streams.directory.credentials import (
    CredentialBox,
    StoredCredential,
    StoredOAuth2,
    StoredPassword,
    read_secret_file,
)
from streams.errors import CredentialsRefused, ServiceUnavailable
from streams.imap.credentials import Credential, CredentialSource, Password

SaveTokens = Callable[[StoredOAuth2], Awaitable[StoredOAuth2]]
"""Stores rotated tokens and returns the ones to use: ours, or newer ones that somebody stored meanwhile."""


class TokenSources(Protocol):
    """Makes the OAuth2 source of one account; `streams.imap.oauth` speaks to the providers."""

    def source(self, username: str, tokens: StoredOAuth2, save: SaveTokens) -> CredentialSource:
        """Raises `CredentialsRefused` for a provider that is not configured."""
        ...


class CredentialSources:
    """Makes the `CredentialSource` of an account."""

    def __init__(
        self,
        store: AccountStore,
        box: CredentialBox,
        *,
        credentials_dir: Path | None = None,
        tokens: TokenSources | None = None,
    ) -> None:
        self._store = store
        self._box = box
        self._directory = credentials_dir
        self._tokens = tokens

    def of(self, connection: AccountConnection) -> CredentialSource:
        """The source for the account as it was read. Opens nothing yet, so it raises nothing."""
        return _AccountSource(self._store, self._box, self._directory, self._tokens, connection)


class _AccountSource:
    """One account's credentials. Logins of one account may come at once: a refresh is done by one of them."""

    def __init__(
        self,
        store: AccountStore,
        box: CredentialBox,
        directory: Path | None,
        tokens: TokenSources | None,
        connection: AccountConnection,
    ) -> None:
        self._store = store
        self._box = box
        self._directory = directory
        self._tokens = tokens
        self._connection = connection
        self._lock = asyncio.Lock()

    async def current(self, *, force_refresh: bool = False) -> Credential:
        """The credentials to log in with. Raises `CredentialsRefused`, and `ServiceUnavailable` for a token endpoint."""
        async with self._lock:
            if force_refresh:
                await self._read_again()
            stored = await self._stored()
            match stored:
                case StoredPassword(password):
                    return Password(self._connection.username, password)
                case StoredOAuth2():
                    return await self._from_tokens(stored, force_refresh)

    async def _from_tokens(self, stored: StoredOAuth2, force_refresh: bool) -> Credential:
        if self._tokens is None:
            raise CredentialsRefused(
                "the account uses OAuth2, OAUTH_PROVIDERS_FILE is not set", code="oauth_unconfigured"
            )
        source = self._tokens.source(self._connection.username, stored, self._save)
        return await source.current(force_refresh=force_refresh)

    async def _stored(self) -> StoredCredential:
        if self._connection.auth == "secret_ref":
            name = self._connection.secret_ref or ""
            return await asyncio.to_thread(read_secret_file, self._directory, name)
        if self._connection.sealed is None:
            raise CredentialsRefused("no credentials are stored for the account", code="credentials_missing")
        return self._box.open(self._connection.account_id, self._connection.sealed)

    async def _read_again(self) -> None:
        """Somebody may have stored new credentials; when we cannot ask, what we have must do."""
        try:
            self._connection = await self._store.connection(self._connection.account_id)
        except ServiceUnavailable:
            return
        except UnknownAccount:
            raise CredentialsRefused("the account does not exist any more", code="unknown_account") from None

    async def _save(self, tokens: StoredOAuth2) -> StoredOAuth2:
        before = self._connection.sealed
        sealed = self._box.seal(self._connection.account_id, tokens)
        if await self._store.store_sealed(self._connection.account_id, sealed, replacing=before):
            self._connection = replace(self._connection, sealed=sealed)
            return tokens
        await self._read_again()
        stored = await self._stored()
        return stored if isinstance(stored, StoredOAuth2) else tokens
