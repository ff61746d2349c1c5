"""Access tokens for OAuth2 accounts: refreshed in time, one refresh at a time, rotated refresh tokens stored first.

Invariants: no token, secret or response body is in a log or an error; a refresh token that the endpoint replaced is
saved before the access token that came with it is used, and when saving fails it is kept and saved before anything
else; what the endpoint says decides who must act: `invalid_grant` the owner of the account, a refused client the
operator, everything else nobody.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import httpx

from streams.errors import AccessDenied, ConfigurationError, CredentialsRefused, ServiceUnavailable
from streams.imap.credentials import OAuthToken, Secret

_EARLY_S: Final = 300.0  # a token with less life left is refreshed before it is used
_DEFAULT_LIFE_S: Final = 3600.0  # where the endpoint names none (RFC 6749 section 5.1 only recommends it)
_MAX_ANSWER_BYTES: Final = 64 << 10
_MAX_RETRY_AFTER_S: Final = 3600.0
# RFC 6749 section 5.2; the second group is about our registration and not about the user.
_REVOKED: Final = frozenset({"invalid_grant", "interaction_required", "consent_required", "login_required"})
_CLIENT_REFUSED: Final = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"})
# The only words of an answer that are repeated: whatever else an endpoint says may hold anything.
_NAMES: Final = _REVOKED | _CLIENT_REFUSED | {"invalid_request", "temporarily_unavailable", "server_error", "slow_down"}


@dataclass(frozen=True, slots=True)
class OAuthProvider:
    """A token endpoint and our registration at it."""

    name: str
    token_endpoint: str
    client_id: str
    client_secret: Secret | None = None
    scopes: tuple[str, ...] = ()
    mechanism: Literal["XOAUTH2", "OAUTHBEARER"] | None = None
    client_authentication: Literal["post", "basic"] = "post"
    grant: Literal["refresh_token", "client_credentials"] = "refresh_token"
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        url = urlsplit(self.token_endpoint)
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in ("localhost", "127.0.0.1", "::1")):
            raise ConfigurationError(f"the token endpoint of {self.name} must be an https address")


@dataclass(frozen=True, slots=True)
class ProviderDefaults:
    """What is the same for everybody at a known provider."""

    token_endpoint: str
    scopes: tuple[str, ...]
    mechanism: Literal["XOAUTH2", "OAUTHBEARER"]
    imap_host: str


KNOWN_PROVIDERS: Final[Mapping[str, ProviderDefaults]] = {
    "google": ProviderDefaults(
        "https://oauth2.googleapis.com/token", ("https://mail.google.com/",), "XOAUTH2", "imap.gmail.com"
    ),
    "microsoft": ProviderDefaults(
        "https://login.microsoftonline.com/common/oauth2/v2.0/token",
        ("https://outlook.office.com/IMAP.AccessAsUser.All", "offline_access"),
        "XOAUTH2",
        "outlook.office365.com",
    ),
}


class RefreshTokens(Protocol):
    """Where an account's refresh token is kept."""

    async def load(self) -> Secret | None:
        """The token as stored now; another process may have replaced it. Raises `ServiceUnavailable`."""
        ...

    async def save(self, token: Secret) -> None:
        """Store a token that replaces the old one. Raises `ServiceUnavailable`."""
        ...


@dataclass(slots=True)
class _Access:
    token: Secret
    expires_at: float
    generation: int = field(default=0)


class TokenSource:
    """The `CredentialSource` of one account. Keep one for the account's life: it owns the lock and the cached token."""

    def __init__(
        self,
        provider: OAuthProvider,
        username: str,
        tokens: RefreshTokens,
        client: httpx.AsyncClient,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._username = username
        self._tokens = tokens
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._access: _Access | None = None
        self._generation = 0
        self._refresh: Secret | None = None
        self._unsaved = False

    def __repr__(self) -> str:
        return f"<TokenSource {self._provider.name}>"

    async def current(self, *, force_refresh: bool = False) -> OAuthToken:
        """A token that lives for a while. `force_refresh`: the last one was refused, whatever its age.

        Raises:
            CredentialsRefused: consent was withdrawn (`oauth_revoked`).
            AccessDenied: our registration is refused (`oauth_client_refused`).
            ServiceUnavailable: the endpoint or the store does not answer.
        """
        seen = self._generation
        async with self._lock:
            access = self._access
            renewed_meanwhile = access is not None and access.generation > seen
            fresh = access is not None and access.expires_at - self._clock() > _EARLY_S
            if access is None or not fresh or (force_refresh and not renewed_meanwhile):
                access = await self._renew()
            return OAuthToken(self._username, access.token, self._provider.mechanism)

    async def _renew(self) -> _Access:
        if self._unsaved:
            await self._save()
        form: dict[str, str] = {"grant_type": self._provider.grant, "client_id": self._provider.client_id}
        if self._provider.grant == "refresh_token":
            form["refresh_token"] = (await self._refresh_token()).reveal()
        if self._provider.scopes:
            form["scope"] = " ".join(self._provider.scopes)
        answer = await self._ask(form)
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise ServiceUnavailable("the token endpoint's answer holds no token", code="oauth_endpoint")
        life = answer.get("expires_in")
        try:
            life_s = float(life) if isinstance(life, int | float | str) else _DEFAULT_LIFE_S
        except (ValueError, OverflowError):
            life_s = _DEFAULT_LIFE_S
        rotated = answer.get("refresh_token")
        if isinstance(rotated, str) and rotated and self._refresh is not None and rotated != self._refresh.reveal():
            self._refresh = Secret(rotated)
            self._unsaved = True
            await self._save()
        self._generation += 1
        self._access = _Access(Secret(token), self._clock() + life_s, self._generation)
        return self._access

    async def _refresh_token(self) -> Secret:
        try:
            stored = await self._tokens.load()
        except ServiceUnavailable:
            stored = None  # a store that is down stops no account that runs
        self._refresh = stored if stored is not None else self._refresh
        if self._refresh is None:
            raise ServiceUnavailable("the refresh token cannot be read", code="oauth_store")
        return self._refresh

    async def _save(self) -> None:
        assert self._refresh is not None
        await self._tokens.save(self._refresh)
        self._unsaved = False

    async def _ask(self, form: dict[str, str]) -> dict[str, Any]:
        provider = self._provider
        auth: tuple[str, str] | None = None
        if provider.client_secret is not None:
            if provider.client_authentication == "basic":
                auth = (provider.client_id, provider.client_secret.reveal())
            else:
                form = {**form, "client_secret": provider.client_secret.reveal()}
        try:
            async with asyncio.timeout(provider.timeout_s):
                request = self._client.build_request(
                    "POST", provider.token_endpoint, data=form, headers={"Accept": "application/json"}
                )
                response = await self._client.send(
                    request,
                    auth=httpx.BasicAuth(*auth) if auth is not None else None,
                    stream=True,
                    follow_redirects=False,
                )
                try:
                    body = await _bounded_body(response)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise ServiceUnavailable(
                f"the token endpoint does not answer ({type(error).__name__})", code="oauth_endpoint"
            ) from None
        answer = _json_object(body)
        if response.status_code == 200:
            if answer is None:
                raise ServiceUnavailable("the token endpoint's answer is not JSON", code="oauth_endpoint")
            return answer
        raise _refusal(response.status_code, answer, response.headers.get("retry-after"))


async def _bounded_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _MAX_ANSWER_BYTES:
            raise ServiceUnavailable("the token endpoint's answer is too long", code="oauth_endpoint")
    return bytes(body)


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _refusal(
    status: int, answer: dict[str, Any] | None, retry_after: str | None
) -> CredentialsRefused | AccessDenied | ServiceUnavailable:
    """Who must act."""
    name = answer.get("error") if answer is not None else None
    error = name if isinstance(name, str) and name in _NAMES else ""
    if status in (400, 401, 403):
        if error in _REVOKED:
            return CredentialsRefused(f"the consent is gone: {error}; it has to be given anew", code="oauth_revoked")
        if error in _CLIENT_REFUSED:
            return AccessDenied(f"the token endpoint refuses our registration: {error}", code="oauth_client_refused")
    wait = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    return ServiceUnavailable(
        f"the token endpoint failed with status {status}" + (f" ({error})" if error else ""),
        code="oauth_endpoint",
        retry_after_s=min(wait, _MAX_RETRY_AFTER_S) if wait is not None else None,
    )
