"""One compatibility run each against Cyrus IMAP and pymap: what holds with Dovecot holds with them.

Cyrus is there where `bin/ensure-cyrus` could bring it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from imapclient import IMAPClient

from streams.errors import MailboxError
from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.credentials import Password, Secret
from streams.imap.session import ImapSession
from streams.imap.values import Endpoint, IdleOutcome, Options
from streams.local.pymap_server import PymapServer
from tests.integration.imap.cyrus import Cyrus, available

USER, PASSWORD = "joe", "secret"
SERVERS = ["pymap", *(["cyrus"] if available() else [])]


@pytest.fixture(params=SERVERS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Cyrus | PymapServer]:
    with tempfile.TemporaryDirectory(prefix="ms-test-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        made: Cyrus | PymapServer
        if request.param == "cyrus":
            made = Cyrus(Path(directory) / "cyrus")
        else:
            made = PymapServer(Path(directory) / "pymap")
            made.add_user(USER, PASSWORD)
        await made.start()
        yield made
        await made.stop()


@contextlib.asynccontextmanager
async def session_with(server: Cyrus | PymapServer, options: Options | None = None) -> AsyncIterator[ImapSession]:
    session = await connect(
        Endpoint(server.host, server.port, "plain"),
        options=options,
        address_policy=AddressPolicy(allow_private=True),
    )
    try:
        await session.login(Password(USER, Secret(PASSWORD)))
        yield session
    finally:
        await session.close()


@contextlib.contextmanager
def client_of(server: Cyrus | PymapServer) -> Iterator[IMAPClient]:
    client = IMAPClient(server.host, server.port, ssl=False, timeout=20)
    try:
        client.login(USER, PASSWORD)
        yield client
    finally:
        client.shutdown()


def message(number: int) -> bytes:
    return b"From: a@example.test\r\nSubject: number %d\r\nMessage-ID: <m%d@x>\r\n\r\nbody\r\n" % (number, number)


@pytest.mark.parametrize("compress", [False, True])
async def test_everything_a_sync_needs(server: Cyrus | PymapServer, compress: bool) -> None:
    with client_of(server) as client:
        await check(server, client, Options(compress=compress))


async def check(server: Cyrus | PymapServer, client: IMAPClient, options: Options) -> None:
    await asyncio.to_thread(client.create_folder, "Projects é")
    await asyncio.to_thread(client.select_folder, "INBOX")  # pymap makes the mailbox then, with mail in it
    base = len(await asyncio.to_thread(client.search))
    for number in range(1, 31):
        await asyncio.to_thread(client.append, "INBOX", message(number))

    async with session_with(server, options) as session:
        listed = await session.list_mailboxes()
        names = {mailbox.display_name for mailbox in listed.mailboxes}
        assert {"INBOX", "Projects é"} <= names
        statuses = await session.statuses([mailbox.wire_name for mailbox in listed.mailboxes if mailbox.selectable])
        assert not [status for status in statuses.values() if isinstance(status, MailboxError)]

        selected = await session.examine(b"INBOX")
        assert selected.exists == base + 30
        assert selected.uidvalidity
        assert (selected.highestmodseq is not None) is session.has("CONDSTORE")
        if session.has("OBJECTID"):
            assert selected.mailbox_id

        found = await session.uid_search()
        assert len(found.uids) == base + 30
        assert found.stated
        items = [b"FLAGS", b"RFC822.SIZE", b"INTERNALDATE", b"BODY.PEEK[HEADER.FIELDS (SUBJECT MESSAGE-ID)]"]
        if session.has("CONDSTORE"):
            items.append(b"MODSEQ")
        if session.has("OBJECTID"):
            items.append(b"EMAILID")
        async with contextlib.aclosing(session.uid_fetch("1:*", items, chunk=7)) as chunks:
            messages = [got async for chunk in chunks for got in chunk.messages]
        assert {got.uid for got in messages} == set(found.uids)
        ours = [got for got in messages if b"<m" in got.sections[b"HEADER.FIELDS"]]
        assert len(ours) == 30
        for got in ours:
            assert got.size
            assert got.internal_date is not None
            assert got.damaged is None
            assert (got.modseq is not None) is session.has("CONDSTORE")
            assert (got.email_id is not None) is session.has("OBJECTID")
        uids = sorted(got.uid for got in ours)

        def change() -> None:
            client.select_folder("INBOX")
            client.add_flags(uids[2], [b"\\Flagged"])
            client.delete_messages(uids[:2])
            client.expunge()

        if session.has("IDLE"):
            idling = asyncio.ensure_future(session.idle(timeout_s=30))
            await asyncio.to_thread(change)
            async with asyncio.timeout(30):
                assert await idling is IdleOutcome.DATA
        else:
            await asyncio.to_thread(change)
        gone = 0
        async with asyncio.timeout(30):
            while gone < 2:
                await session.noop()
                changes = session.take_changes()
                gone += len(changes.vanished) + changes.expunged
        assert session.exists == base + 28
        assert not set(uids[:2]) & set((await session.uid_search()).uids)
        assert list((await session.uid_search(b"FLAGGED")).uids).count(uids[2]) == 1
        if session.has("QRESYNC") and selected.highestmodseq is not None:
            async with contextlib.aclosing(
                session.uid_fetch("1:*", (b"FLAGS",), changed_since=selected.highestmodseq, vanished=True)
            ) as chunks:
                parts = [chunk async for chunk in chunks]
            assert sorted(uid for part in parts for uid in part.vanished) == uids[:2]
            assert [got.uid for part in parts for got in part.messages] == [uids[2]]
        await session.namespace()
        if session.has("UNSELECT"):
            await session.unselect()
