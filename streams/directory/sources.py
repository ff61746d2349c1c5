"""Credentials for a login, fresh each time, out of what is stored.

Invariants: between logins a password is in memory only as it was stored, encrypted; PostgreSQL being down stops no
account that was running (its sealed value is kept); a rotated refresh token never replaces what somebody stored
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx

from streams.directory.accounts import AccountConnection, AccountStore, UnknownAccount
from streams.directory.credentials import (
    CredentialBox,
    StoredCredential,
    StoredOAuth2,
    StoredPassword,
    read_secret_file,
)
from streams.directory.providers import load_providers
from streams.errors import CredentialsRefused, ServiceUnavailable
from streams.imap.credentials import Credential, CredentialSource, Password, Secret
from streams.imap.oauth import OAuthProvider, TokenSource
from streams.settings import Settings

_HTTP_CONNECTIONS: Final = 20
_SAVE_ATTEMPTS: Final = 5


class CredentialSources:
    """Makes the `CredentialSource` of an account. One per process: it holds the connections to token endpoints."""

    def __init__(
        self,
        store: AccountStore,
        box: CredentialBox,
        *,
        credentials_dir: Path | None = None,
        providers: Mapping[str, OAuthProvider] | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self._store = store
        self._box = box
        self._directory = credentials_dir
        self._providers = providers or {}
        self._client = client

    @classmethod
    def from_settings(cls, store: AccountStore, settings: Settings) -> CredentialSources:
        """Raises `ConfigurationError` for keys or providers that cannot be used."""
        return cls(
            store,
            CredentialBox.from_settings(settings),
            credentials_dir=settings.CREDENTIALS_DIR,
            providers=load_providers(settings.OAUTH_PROVIDERS_FILE),
        )

    def of(self, connection: AccountConnection) -> CredentialSource:
        """The source for the account as it was read; keep it for the account's life. Opens nothing, raises nothing."""
        return _AccountSource(self, connection)

    async def close(self) -> None:
        """Close the connections to token endpoints."""
        if self._client is not None:
            await self._client.aclose()

    def _tokens(self, account: _AccountSource, username: str, provider_name: str) -> TokenSource:
        provider = self._providers.get(provider_name)
        if provider is None:
            raise CredentialsRefused(
                f"OAuth2 provider {provider_name[:50]!r} is not in OAUTH_PROVIDERS_FILE", code="oauth_unconfigured"
            )
        if self._client is None:
            self._client = httpx.AsyncClient(limits=httpx.Limits(max_connections=_HTTP_CONNECTIONS))
        return TokenSource(provider, username, _RefreshToken(account), self._client)


class _AccountSource:
    """One account's credentials."""

    def __init__(self, shared: CredentialSources, connection: AccountConnection) -> None:
        self._shared = shared
        self._connection = connection
        self._tokens: TokenSource | None = None
        self._provider: str | None = None

    def __repr__(self) -> str:
        return f"<credentials of {self._connection.account_id}>"

    async def current(self, *, force_refresh: bool = False) -> Credential:
        """The credentials to log in with. Raises `CredentialsRefused`, and what `TokenSource.current` raises."""
        if force_refresh:
            await self.read_again()
        stored = await self.stored()
        if isinstance(stored, StoredPassword):
            return Password(self._connection.username, stored.password)
        if self._tokens is None or self._provider != stored.provider:
            self._tokens = self._shared._tokens(self, self._connection.username, stored.provider)
            self._provider = stored.provider
        return await self._tokens.current(force_refresh=force_refresh)

    async def stored(self) -> StoredCredential:
        """What we have of them, opened. Raises `CredentialsRefused`."""
        if self._connection.auth == "secret_ref":
            name = self._connection.secret_ref or ""
            return await asyncio.to_thread(read_secret_file, self._shared._directory, name)
        if self._connection.sealed is None:
            raise CredentialsRefused("no credentials are stored for the account", code="credentials_missing")
        return self._shared._box.open(self._connection.account_id, self._connection.sealed)

    async def read_again(self) -> None:
        """Somebody may have stored new credentials; when we cannot ask, what we have must do."""
        try:
            self._connection = await self._shared._store.connection(self._connection.account_id)
        except ServiceUnavailable:
            return
        except UnknownAccount:
            raise CredentialsRefused("the account does not exist any more", code="unknown_account") from None

    async def save(self, token: Secret) -> None:
        """Store a refresh token in place of the one we know. Raises `ServiceUnavailable`."""
        if self._connection.auth == "secret_ref":
            return  # a mounted secret is not ours to write; its owner rotates it
        account_id = self._connection.account_id
        known = await self.stored()
        for _ in range(_SAVE_ATTEMPTS):
            before = await self.stored()
            if not _same_token(before, known):
                return  # somebody stored other credentials meanwhile: the next refresh begins with those
            assert isinstance(before, StoredOAuth2)
            sealed = self._shared._box.seal(account_id, StoredOAuth2(before.provider, token))
            if await self._shared._store.store_sealed(account_id, sealed, replacing=self._connection.sealed):
                self._connection = replace(self._connection, sealed=sealed)
                return
            await self.read_again()  # perhaps only the key was rotated
        raise ServiceUnavailable("the rotated token could not be stored", code="oauth_store")


class _RefreshToken:
    """The refresh token of one account, as `TokenSource` wants it."""

    def __init__(self, account: _AccountSource) -> None:
        self._account = account

    async def load(self) -> Secret | None:
        await self._account.read_again()
        stored = await self._account.stored()
        return stored.refresh_token if isinstance(stored, StoredOAuth2) else None

    async def save(self, token: Secret) -> None:
        await self._account.save(token)


def _same_token(one: StoredCredential, other: StoredCredential) -> bool:
    return (
        isinstance(one, StoredOAuth2)
        and isinstance(other, StoredOAuth2)
        and one.provider == other.provider
        and one.refresh_token.reveal() == other.refresh_token.reveal()
    )
