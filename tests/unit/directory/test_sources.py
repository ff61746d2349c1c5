"""Where a login gets its credentials: fresh each time, and without PostgreSQL when that is away."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import httpx
import pytest

from streams.directory.accounts import AccountConnection, AccountStore, UnknownAccount
from streams.directory.credentials import CredentialBox, StoredOAuth2, StoredPassword, generate_key
from streams.directory.providers import load_providers
from streams.directory.sources import CredentialSources
from streams.errors import ConfigurationError, CredentialsRefused, ServiceUnavailable
from streams.imap.credentials import OAuthToken, Password, Secret
from streams.imap.oauth import OAuthProvider

ME = "11111111-1111-4111-8111-111111111111"
BOX = CredentialBox.from_keys([generate_key()])


class Directory:
    """One account, and a PostgreSQL that can go away."""

    def __init__(self, connection: AccountConnection) -> None:
        self.row: AccountConnection | None = connection
        self.away = False

    async def connection(self, account_id: str) -> AccountConnection:
        if self.away:
            raise ServiceUnavailable("PostgreSQL is away")
        if self.row is None:
            raise UnknownAccount("gone")
        return self.row

    async def store_sealed(self, account_id: str, sealed: bytes, *, replacing: bytes | None = None) -> bool:
        if self.away:
            raise ServiceUnavailable("PostgreSQL is away")
        assert self.row is not None
        if replacing is not None and self.row.sealed != replacing:
            return False
        self.row = replace(self.row, sealed=sealed)
        return True


def account(**more: object) -> AccountConnection:
    base = AccountConnection(ME, "u", "live", 1, "mail.example.test", 993, "tls", "ada", "password")
    return replace(base, **more)  # type: ignore[arg-type]


def with_password(text: str) -> AccountConnection:
    return account(sealed=BOX.seal(ME, StoredPassword(Secret(text))))


def with_token(text: str) -> AccountConnection:
    return account(auth="oauth2", sealed=BOX.seal(ME, StoredOAuth2("corp", Secret(text))))


def sources(directory: Directory, endpoint: Endpoint | None = None, secrets: Path | None = None) -> CredentialSources:
    client = httpx.AsyncClient(transport=httpx.MockTransport(endpoint)) if endpoint else None
    providers = {"corp": OAuthProvider("corp", "https://login.example.test/token", "client")} if endpoint else {}
    return CredentialSources(
        cast(AccountStore, directory), BOX, credentials_dir=secrets, providers=providers, client=client
    )


class Endpoint:
    """A token endpoint that gives another refresh token each time, and takes each only once."""

    def __init__(self, first: str) -> None:
        self.good = first
        self.count = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        form = dict(part.split("=") for part in request.content.decode().split("&"))
        if form["refresh_token"] != self.good:
            return httpx.Response(400, json={"error": "invalid_grant"})
        self.count += 1
        self.good = f"r{self.count}"
        return httpx.Response(200, json={"access_token": f"a{self.count}", "refresh_token": self.good})


async def test_a_password_while_postgresql_is_away() -> None:
    directory = Directory(with_password("old"))
    source = sources(directory).of(with_password("old"))
    directory.away = True
    for force in (False, True):
        found = await source.current(force_refresh=force)
        assert isinstance(found, Password)
        assert (found.username, found.password.reveal()) == ("ada", "old")


async def test_a_refused_password_is_read_again() -> None:
    directory = Directory(with_password("new"))
    source = sources(directory).of(with_password("old"))
    found = await source.current(force_refresh=True)
    assert isinstance(found, Password)
    assert found.password.reveal() == "new"


async def test_an_account_that_is_gone_is_refused() -> None:
    directory = Directory(with_password("old"))
    directory.row = None
    with pytest.raises(CredentialsRefused, match="does not exist"):
        await sources(directory).of(with_password("old")).current(force_refresh=True)


async def test_a_mounted_secret_is_read_at_each_login(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("one")
    source = sources(Directory(account()), secrets=tmp_path).of(account(auth="secret_ref", secret_ref="s"))
    first = await source.current()
    (tmp_path / "s").write_text("two")
    second = await source.current()
    assert isinstance(first, Password)
    assert isinstance(second, Password)
    assert (first.password.reveal(), second.password.reveal()) == ("one", "two")


async def test_rotated_tokens_are_stored_before_they_are_used() -> None:
    directory = Directory(with_token("r0"))
    source = sources(directory, Endpoint("r0")).of(with_token("r0"))
    first = await source.current()
    assert isinstance(first, OAuthToken)
    assert first.token.reveal() == "a1"
    assert stored_token(directory) == "r1"
    again = await source.current(force_refresh=True)
    assert isinstance(again, OAuthToken)
    assert again.token.reveal() == "a2"
    assert stored_token(directory) == "r2"


async def test_a_token_that_somebody_else_stored_is_kept() -> None:
    """Two processes hold one account for a moment: the later one goes on with what the earlier one stored."""
    directory = Directory(with_token("r0"))
    endpoint = Endpoint("r0")
    one, two = (sources(directory, endpoint).of(with_token("r0")) for _ in range(2))
    await one.current()
    await two.current()
    assert stored_token(directory) == endpoint.good


async def test_with_postgresql_away_a_rotated_token_is_not_lost() -> None:
    directory = Directory(with_token("r0"))
    endpoint = Endpoint("r0")
    source = sources(directory, endpoint).of(with_token("r0"))
    directory.away = True
    with pytest.raises(ServiceUnavailable):
        await source.current()
    directory.away = False
    assert isinstance(await source.current(), OAuthToken)
    assert stored_token(directory) == endpoint.good


async def test_a_provider_that_is_not_configured_is_named() -> None:
    with pytest.raises(CredentialsRefused, match="corp") as caught:
        await sources(Directory(with_token("r0"))).of(with_token("r0")).current()
    assert caught.value.code == "oauth_unconfigured"


def stored_token(directory: Directory) -> str:
    assert directory.row is not None
    assert directory.row.sealed is not None
    opened = BOX.open(ME, directory.row.sealed)
    assert isinstance(opened, StoredOAuth2)
    return opened.refresh_token.reveal()


def test_providers_out_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "client").write_text("s3cret\n")
    path = tmp_path / "providers.json"
    path.write_text(
        json.dumps(
            {
                "google": {"client_id": "c", "client_secret_file": str(tmp_path / "client")},
                "corp": {"client_id": "c", "token_endpoint": "https://login.example.test/token", "scopes": ["x"]},
            }
        )
    )
    found = load_providers(path)
    assert found["google"].token_endpoint.startswith("https://")
    assert found["google"].mechanism == "XOAUTH2"
    assert found["google"].client_secret is not None
    assert found["google"].client_secret.reveal() == "s3cret"
    assert found["corp"].scopes == ("x",)
    assert load_providers(None) == {}


@pytest.mark.parametrize(
    "text",
    [
        "nonsense s3cret",
        '{"corp": {"client_id": "c"}}',
        '{"corp": {"client_id": 5, "client_secret": "s3cret"}}',
        '{"corp": {"client_id": "c", "secret": "s3cret", "token_endpoint": "https://x/"}}',
        '{"corp": {"client_id": "c", "token_endpoint": "http://x/", "client_secret": "s3cret"}}',
    ],
)
def test_w1_a_bad_file_of_providers_is_named_and_not_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "providers.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_providers(path)
    assert "s3cret" not in str(caught.value)
