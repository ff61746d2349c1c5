"""The engine over real servers: Dovecot, pymap, and Cyrus where `bin/ensure-cyrus` could bring it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from imapclient import IMAPClient

from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.credentials import Password, Secret
from streams.imap.session import ImapSession
from streams.imap.values import Endpoint, Options
from streams.local.pymap_server import PymapServer
from tests.fixtures.engine import Engine, letter
from tests.fixtures.services import MailUser
from tests.integration.imap.cyrus import Cyrus, available
from tests.integration.sync.folding import server_view


@dataclass
class Real:
    """Where a server is, and who may log in."""

    kind: str
    host: str
    port: int
    username: str
    password: str

    @contextlib.contextmanager
    def client(self) -> Iterator[IMAPClient]:
        """An independent client."""
        client = IMAPClient(self.host, self.port, ssl=False, timeout=30)
        try:
            client.login(self.username, self.password)
            yield client
        finally:
            client.shutdown()


class RealEngine(Engine):
    """An engine that logs in to a real server."""

    def __init__(self, real: Real, **overrides: Any) -> None:
        super().__init__(None, **overrides)  # type: ignore[arg-type]
        self.real = real

    async def connect(self) -> ImapSession:
        """The session, opened when there is none (alive)."""
        if self.session is None or not self.session.alive:
            real = self.real
            self.session = await connect(
                Endpoint(real.host, real.port, "plain"),
                options=self.options or Options(),
                address_policy=AddressPolicy(allow_private=True),
            )
            await self.session.login(Password(real.username, Secret(real.password)))
        return self.session

    async def is_server(self) -> None:
        """Assert that the folded log is the server, as another client sees it."""

        def view() -> dict[str, dict[int, frozenset[str]]]:
            with self.real.client() as client:
                return server_view(client)

        wanted = await asyncio.to_thread(view)
        assert self.fold().by_name() == wanted


@pytest.fixture(params=["dovecot", "pymap", *(["cyrus"] if available() else [])])
async def real(request: pytest.FixtureRequest, mail_user: MailUser) -> AsyncIterator[Real]:
    if request.param == "dovecot":
        user = mail_user
        yield Real("dovecot", user.host, user.port, user.name, user.password)
        return
    with tempfile.TemporaryDirectory(prefix="ms-test-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        server: Cyrus | PymapServer
        if request.param == "cyrus":
            server = Cyrus(Path(directory) / "cyrus")
        else:
            server = PymapServer(Path(directory) / "pymap")
            server.add_user("joe", "secret")
        await server.start()
        yield Real(request.param, server.host, server.port, "joe", "secret")
        await server.stop()


@pytest.mark.parametrize("hidden", [frozenset(), frozenset({"CONDSTORE", "QRESYNC", "ESEARCH"})], ids=["all", "bare"])
async def test_s10_s17_log_is_server(real: Real, hidden: frozenset[str]) -> None:
    """History, arrivals, flags, removals, copies, moves, folders made, renamed and deleted."""
    engine = RealEngine(real, options=Options(disabled=hidden), FETCH_WINDOW=20, FETCH_CHUNK=10)

    def first(client: IMAPClient) -> None:
        client.select_folder("INBOX")
        for n in range(40):
            client.append("INBOX", letter(n), flags=[b"\\Seen"] if n % 3 else [])
        client.create_folder("Work")
        for n in range(100, 105):
            client.append("Work", letter(n))

    def second(client: IMAPClient) -> None:
        client.select_folder("INBOX")
        uids = client.search()
        client.add_flags(uids[:4], [b"\\Flagged", b"custom"])
        client.remove_flags(uids[1:2], [b"\\Seen"])
        client.copy(uids[5:7], "Work")
        client.copy(uids[7:9], "Work")
        client.delete_messages(uids[7:9])
        client.expunge()
        client.append("INBOX", letter(200))

    def third(client: IMAPClient) -> None:
        client.create_folder("Later")
        client.append("Later", letter(300))
        client.rename_folder("Work", "Done")
        client.select_folder("INBOX")
        uids = client.search()
        client.delete_messages(uids[-3:])
        client.expunge()

    def fourth(client: IMAPClient) -> None:
        client.delete_folder("Done")

    try:
        for script in (first, second, third, fourth):
            with real.client() as client:
                await asyncio.to_thread(script, client)
            if await engine.survive(engine.catch_up()) is not None:  # some end sessions whose mailbox was renamed
                await engine.catch_up()
            await engine.is_server()
            if script is first:
                engine.now += 60
                with engine.quiet():
                    await engine.look()
                    await engine.look(full=True)
        kinds = engine.kinds()
        assert kinds.count("message.moved") >= 2
        await engine.hang_up()
        engine.forget()
        with engine.quiet():
            await engine.look(full=True)
    finally:
        await engine.close()
