"""Tokens against a local token endpoint: refresh, rotation, refusals; case 74."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from aiohttp import web

from streams.errors import AccessDenied, ConfigurationError, CredentialsRefused, MailstreamsError, ServiceUnavailable
from streams.imap.credentials import Secret
from streams.imap.oauth import KNOWN_PROVIDERS, OAuthProvider, TokenSource

Answer = tuple[int, Any, dict[str, str]]


class Endpoint:
    """A token endpoint that answers as told."""

    def __init__(self) -> None:
        self.url = ""
        self.forms: list[dict[str, str]] = []
        self.authorization: list[str | None] = []
        self.answer: Callable[[int], Answer] = lambda number: (
            200,
            {"access_token": f"access-{number}", "expires_in": 3600},
            {},
        )
        self.delay_s = 0.0

    async def handle(self, request: web.Request) -> web.Response:
        self.forms.append({key: str(value) for key, value in (await request.post()).items()})
        self.authorization.append(request.headers.get("Authorization"))
        await asyncio.sleep(self.delay_s)
        status, body, headers = self.answer(len(self.forms))
        if isinstance(body, dict):
            return web.json_response(body, status=status, headers=headers)
        return web.Response(body=body, status=status, headers=headers)


class Store:
    """Refresh tokens in memory."""

    def __init__(self, token: str = "refresh-0") -> None:
        self.token = token
        self.down = False
        self.saved: list[str] = []

    async def load(self) -> Secret | None:
        if self.down:
            raise ServiceUnavailable("down")
        return Secret(self.token)

    async def save(self, token: Secret) -> None:
        if self.down:
            raise ServiceUnavailable("down")
        self.token = token.reveal()
        self.saved.append(self.token)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    app = web.Application()
    app.router.add_post("/token", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    yield made
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as made:
        yield made


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def source(
    endpoint: Endpoint, client: httpx.AsyncClient, store: Store, clock: Clock | None = None, **more: Any
) -> TokenSource:
    provider = OAuthProvider("test", endpoint.url, "our-id", **more)
    return TokenSource(provider, "user@example.test", store, client, clock=clock or Clock())


async def test_a_token_is_kept_while_it_lives_and_renewed_in_time(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    clock = Clock()
    tokens = source(endpoint, client, Store(), clock, scopes=("mail", "offline"), mechanism="XOAUTH2")
    first = await tokens.current()
    assert (first.username, first.token.reveal(), first.mechanism) == ("user@example.test", "access-1", "XOAUTH2")
    clock.now += 3000
    assert (await tokens.current()).token.reveal() == "access-1"
    clock.now += 400
    assert (await tokens.current()).token.reveal() == "access-2"
    assert endpoint.forms[0] == {
        "grant_type": "refresh_token",
        "client_id": "our-id",
        "refresh_token": "refresh-0",
        "scope": "mail offline",
    }


async def test_many_at_once_cause_one_refresh(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    endpoint.delay_s = 0.02
    tokens = source(endpoint, client, Store())
    assert {(await found).token.reveal() for found in [asyncio.ensure_future(tokens.current()) for _ in range(5)]} == {
        "access-1"
    }
    forced = await asyncio.gather(*(tokens.current(force_refresh=True) for _ in range(5)))
    assert {token.token.reveal() for token in forced} == {"access-2"}
    assert len(endpoint.forms) == 2


@pytest.mark.parametrize("life", ["9" * 400, 10**400, "soon", None, [], -1, "nan"])
async def test_an_odd_life_costs_a_refresh_at_most(life: Any, endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    endpoint.answer = lambda n: (200, {"access_token": f"access-{n}", "expires_in": life}, {})
    assert (await source(endpoint, client, Store()).current()).token.reveal() == "access-1"


@pytest.mark.parametrize("wait", ["\u00b2", "-1", "soon", "9" * 400])
async def test_an_odd_retry_after_is_no_failure_of_ours(
    wait: str, endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    endpoint.answer = lambda _: (503, b"", {"Retry-After": wait})
    with pytest.raises(ServiceUnavailable):
        await source(endpoint, client, Store()).current()


async def test_a_rotated_refresh_token_is_stored_before_use(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    endpoint.answer = lambda n: (200, {"access_token": f"access-{n}", "refresh_token": f"refresh-{n}"}, {})
    store = Store()
    tokens = source(endpoint, client, store)
    await tokens.current()
    assert store.saved == ["refresh-1"]
    await tokens.current(force_refresh=True)
    assert endpoint.forms[1]["refresh_token"] == "refresh-1"


async def test_a_rotated_token_that_could_not_be_stored_is_stored_first(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    endpoint.answer = lambda n: (200, {"access_token": f"access-{n}", "refresh_token": f"refresh-{n}"}, {})
    store = Store()
    tokens = source(endpoint, client, store)
    await tokens.current()
    store.down = True
    with pytest.raises(ServiceUnavailable):
        await tokens.current(force_refresh=True)
    with pytest.raises(ServiceUnavailable):
        await tokens.current(force_refresh=True)
    assert len(endpoint.forms) == 2  # no further refresh while the new token is not safe
    store.down = False
    assert (await tokens.current(force_refresh=True)).token.reveal() == "access-3"
    assert store.saved == ["refresh-1", "refresh-2", "refresh-3"]
    assert endpoint.forms[2]["refresh_token"] == "refresh-2"


async def test_a_store_that_is_down_stops_no_account_that_runs(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    store = Store()
    tokens = source(endpoint, client, store)
    await tokens.current()
    store.down = True
    assert (await tokens.current(force_refresh=True)).token.reveal() == "access-2"
    fresh = source(endpoint, client, store)
    with pytest.raises(ServiceUnavailable):
        await fresh.current()


@pytest.mark.parametrize(
    ("status", "body", "error", "code"),
    [
        (
            400,
            {"error": "invalid_grant", "error_description": "Token has been expired or revoked."},
            CredentialsRefused,
            "oauth_revoked",
        ),
        (400, {"error": "interaction_required"}, CredentialsRefused, "oauth_revoked"),
        (401, {"error": "invalid_client"}, AccessDenied, "oauth_client_refused"),
        (400, {"error": "unauthorized_client"}, AccessDenied, "oauth_client_refused"),
        (400, {"error": "temporarily_unavailable"}, ServiceUnavailable, "oauth_endpoint"),
        (400, b"not json", ServiceUnavailable, "oauth_endpoint"),
        (429, {"error": "slow_down"}, ServiceUnavailable, "oauth_endpoint"),
        (500, b"<html>", ServiceUnavailable, "oauth_endpoint"),
        (302, b"", ServiceUnavailable, "oauth_endpoint"),
        (200, b"[]", ServiceUnavailable, "oauth_endpoint"),
        (200, {"token_type": "bearer"}, ServiceUnavailable, "oauth_endpoint"),
        (200, b"x" * 200_000, ServiceUnavailable, "oauth_endpoint"),
        (200, b"[" * 60_000, ServiceUnavailable, "oauth_endpoint"),
        (400, {"error": ["invalid_grant"]}, ServiceUnavailable, "oauth_endpoint"),
    ],
)
async def test_each_failure_says_who_must_act(
    endpoint: Endpoint, client: httpx.AsyncClient, status: int, body: Any, error: type[MailstreamsError], code: str
) -> None:
    endpoint.answer = lambda _: (status, body, {"Location": "http://127.0.0.1:1/"} if status == 302 else {})
    with pytest.raises(error) as caught:
        await source(endpoint, client, Store()).current()
    assert caught.value.code == code


async def test_retry_after_is_passed_on(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    endpoint.answer = lambda _: (503, b"", {"Retry-After": "77"})
    with pytest.raises(ServiceUnavailable) as caught:
        await source(endpoint, client, Store()).current()
    assert caught.value.retry_after_s == 77


async def test_an_endpoint_that_hangs_or_is_gone(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    endpoint.delay_s = 5
    with pytest.raises(ServiceUnavailable):
        await source(endpoint, client, Store(), timeout_s=0.05).current()
    endpoint.url = "http://127.0.0.1:1/token"
    with pytest.raises(ServiceUnavailable):
        await source(endpoint, client, Store()).current()


async def test_client_authentication_by_form_and_by_header(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    await source(endpoint, client, Store(), client_secret=Secret("hush")).current()
    assert endpoint.forms[0]["client_secret"] == "hush"
    await source(endpoint, client, Store(), client_secret=Secret("hush"), client_authentication="basic").current()
    assert "client_secret" not in endpoint.forms[1]
    assert endpoint.authorization[1] is not None


async def test_client_credentials_need_no_refresh_token(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    store = Store()
    store.down = True
    tokens = source(endpoint, client, store, grant="client_credentials", client_secret=Secret("hush"))
    assert (await tokens.current()).token.reveal() == "access-1"
    assert "refresh_token" not in endpoint.forms[0]


async def test_no_secret_in_logs_or_errors(
    endpoint: Endpoint, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint.answer = lambda _: (
        400,
        {"error": "canary-refresh canary-secret", "error_description": "canary-refresh"},
        {},
    )
    tokens = source(endpoint, client, Store("canary-refresh"), client_secret=Secret("canary-secret"))
    with pytest.raises(ServiceUnavailable) as caught:
        await tokens.current()
    texts = [str(caught.value), repr(tokens), *(record.getMessage() for record in caplog.records)]
    assert "canary" not in "\n".join(texts)


@pytest.mark.parametrize("url", ["http://login.example.com/token", "ftp://x/", "", "http://127.0.0.1.evil.test/"])
def test_tokens_are_asked_for_over_https_only(url: str) -> None:
    with pytest.raises(ConfigurationError):
        OAuthProvider("x", url, "id")


def test_known_providers_are_usable() -> None:
    for name, known in KNOWN_PROVIDERS.items():
        OAuthProvider(name, known.token_endpoint, "id", scopes=known.scopes, mechanism=known.mechanism)
