"""How these tests reach their scripted servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.credentials import Password, Secret
from streams.imap.session import ImapSession
from streams.imap.values import Endpoint, FetchChunk, FetchedMessage, Limits, Options
from tests.scripted_imap.script import ScriptedServer
from tests.scripted_imap.server import ImapServer

LOOPBACK = AddressPolicy(allow_private=True)
QUICK = Limits(
    connect_timeout_s=2.0,
    command_timeout_s=0.5,
    fetch_stall_timeout_s=0.5,
    fetch_timeout_s=5.0,
    login_timeout_s=2.0,
    logout_timeout_s=0.5,
    idle_renew_s=5.0,
    idle_answer_timeout_s=0.5,
)
PATIENT = Limits(command_timeout_s=10.0, connect_timeout_s=10.0, logout_timeout_s=1.0)
CREDENTIAL = Password("user", Secret("secret"))


async def dial(server: ScriptedServer | ImapServer, limits: Limits = PATIENT, **more: Any) -> ImapSession:
    """Connect over plain TCP."""
    return await connect(Endpoint("127.0.0.1", server.port, "plain"), limits=limits, address_policy=LOOPBACK, **more)


@contextlib.asynccontextmanager
async def logged_in(
    server: ScriptedServer | ImapServer,
    *,
    limits: Limits = PATIENT,
    options: Options | None = None,
    examine: bytes | None = None,
    observer: Any = None,
) -> AsyncIterator[ImapSession]:
    """A session that is logged in, with a mailbox open when one is named."""
    session = await dial(server, limits, options=options, observer=observer)
    try:
        await session.login(CREDENTIAL)
        if examine is not None:
            await session.examine(examine)
        yield session
    finally:
        session.abort()


async def fetch(session: ImapSession, uids: str, items: Sequence[bytes], **how: Any) -> list[FetchedMessage]:
    """All messages of a fetch."""
    return [message for chunk in await chunks(session, uids, items, **how) for message in chunk.messages]


async def chunks(session: ImapSession, uids: str, items: Sequence[bytes], **how: Any) -> list[FetchChunk]:
    """All chunks of a fetch."""
    async with contextlib.aclosing(session.uid_fetch(uids, items, **how)) as parts:
        return [part async for part in parts]
