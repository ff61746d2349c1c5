"""OAuth2 end to end: a token endpoint, a token source, and XOAUTH2 or OAUTHBEARER on a real Dovecot (case 74)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from aiohttp import web

from streams.errors import CredentialsRefused
from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.credentials import Secret
from streams.imap.oauth import OAuthProvider, TokenSource
from streams.imap.session import ImapSession
from streams.imap.tls import client_tls_context
from streams.imap.values import Endpoint
from tests.fixtures.services import MailUser


class Issuer:
    """A token endpoint whose tokens a Dovecot takes once they are the user's."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens: list[str] = []  # handed out in order; the last one again and again
        self.refresh = "refresh-0"
        self.asked = 0
        self.revoked = False

    async def handle(self, request: web.Request) -> web.Response:
        form = await request.post()
        if self.revoked or form["refresh_token"] != self.refresh:
            return web.json_response({"error": "invalid_grant"}, status=400)
        token = self.tokens[min(self.asked, len(self.tokens) - 1)]
        self.asked += 1
        self.refresh = f"refresh-{self.asked}"  # each refresh token is good once
        return web.Response(
            body=json.dumps({"access_token": token, "expires_in": 3600, "refresh_token": self.refresh}),
            content_type="application/json",
        )


class Kept:
    """Where the refresh token is stored."""

    def __init__(self) -> None:
        self.token = "refresh-0"

    async def load(self) -> Secret | None:
        return Secret(self.token)

    async def save(self, token: Secret) -> None:
        self.token = token.reveal()


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    app = web.Application()
    app.router.add_post("/token", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    yield made
    await runner.cleanup()


async def dial(user: MailUser) -> ImapSession:
    return await connect(
        Endpoint("localhost", user.tls_port, "tls"),
        tls_context=client_tls_context(user.server.ca_file),
        address_policy=AddressPolicy(allow_private=True),
    )


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "OAUTHBEARER", None])
async def test_case_74_a_stale_token_is_renewed_and_a_revoked_one_refused(
    mail_user: MailUser, issuer: Issuer, mechanism: str | None
) -> None:
    issuer.tokens = ["stale", mail_user.password]
    provider = OAuthProvider("test", issuer.url, "our-id", mechanism=mechanism)  # type: ignore[arg-type]
    kept = Kept()
    async with httpx.AsyncClient() as client:
        tokens = TokenSource(provider, mail_user.name, kept, client)
        session = await dial(mail_user)
        await session.login(tokens)  # "stale" is refused, one forced refresh follows
        assert issuer.asked == 2
        assert kept.token == "refresh-2"
        assert (await session.examine(b"INBOX")).exists == 0
        await session.close()

        session = await dial(mail_user)
        await session.login(tokens)  # still good: nothing is asked
        assert issuer.asked == 2
        await session.close()

        issuer.revoked = True
        tokens = TokenSource(provider, mail_user.name, kept, client)
        session = await dial(mail_user)
        with pytest.raises(CredentialsRefused) as caught:
            await session.login(tokens)
        assert caught.value.code == "oauth_revoked"
        await session.close()
