"""The session against a real Dovecot 2.3: every command we send, and what changes under us."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest
from imapclient import IMAPClient

from streams.errors import CredentialsRefused, InsecureConnection, MailboxError, MailboxGone, MailboxUnusable
from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.credentials import OAuthToken, Password, Secret
from streams.imap.session import ImapSession
from streams.imap.tls import client_tls_context
from streams.imap.values import Endpoint, IdleOutcome, Limits, Options, QResync, TlsMode
from streams.local.dovecot import Dovecot, DovecotOptions
from tests.fixtures.services import MailUser

LOOPBACK = AddressPolicy(allow_private=True)
LABELLED = frozenset({b"$Label"})
ITEMS = (b"FLAGS", b"RFC822.SIZE", b"INTERNALDATE", b"BODY.PEEK[HEADER.FIELDS (FROM SUBJECT MESSAGE-ID)]")


def message(number: int, body: str = "Hello") -> bytes:
    return (
        f"From: a@example.test\r\nSubject: number {number}\r\nMessage-ID: <m{number}@example.test>\r\n\r\n{body}\r\n"
    ).encode()


def fill(client: IMAPClient, folder: str, count: int, *, first: int = 1) -> None:
    if count < 3:
        for number in range(first, first + count):
            client.append(folder, message(number), (), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    else:
        client.multiappend(folder, [message(number) for number in range(first, first + count)])


def endpoint(user: MailUser, mode: TlsMode = "tls") -> Endpoint:
    return Endpoint("localhost", user.tls_port if mode == "tls" else user.port, mode)


async def dial(
    user: MailUser, mode: TlsMode = "tls", *, limits: Limits | None = None, options: Options | None = None
) -> ImapSession:
    return await connect(
        endpoint(user, mode),
        limits=limits,
        options=options,
        tls_context=client_tls_context(user.server.ca_file),
        address_policy=LOOPBACK,
    )


@contextlib.asynccontextmanager
async def logged_in(
    user: MailUser, mode: TlsMode = "tls", *, limits: Limits | None = None, options: Options | None = None
) -> AsyncIterator[ImapSession]:
    session = await dial(user, mode, limits=limits, options=options)
    try:
        await session.login(Password(user.name, Secret(user.password)))
        yield session
    finally:
        await session.close()


@pytest.mark.parametrize("mode", ["tls", "starttls", "plain"])
async def test_logs_in_over_each_tls_mode(mail_user: MailUser, mode: TlsMode) -> None:
    async with logged_in(mail_user, mode) as session:
        assert session.has("QRESYNC")
        assert "QRESYNC" in session.enabled
        assert session.alive
    assert not session.alive


async def test_case_102_the_tls_mode_is_the_configured_one(mail_user: MailUser) -> None:
    with pytest.raises(InsecureConnection):
        await connect(
            Endpoint("localhost", mail_user.port, "tls"),
            tls_context=client_tls_context(mail_user.server.ca_file),
            address_policy=LOOPBACK,
        )


async def test_an_untrusted_certificate_is_refused(mail_user: MailUser) -> None:
    with pytest.raises(InsecureConnection, match="not trusted"):
        await connect(endpoint(mail_user), address_policy=LOOPBACK)


@pytest.mark.parametrize("mode", ["tls", "starttls"])
async def test_a_certificate_for_another_name_is_refused(mail_user: MailUser, mode: TlsMode) -> None:
    port = mail_user.tls_port if mode == "tls" else mail_user.port
    with pytest.raises(InsecureConnection, match="not trusted"):
        await connect(
            Endpoint("127.1", port, mode),
            tls_context=client_tls_context(mail_user.server.ca_file),
            address_policy=LOOPBACK,
        )


async def test_a_wrong_password_is_told_apart(mail_user: MailUser) -> None:
    session = await dial(mail_user)
    with pytest.raises(CredentialsRefused) as caught:
        await session.login(Password(mail_user.name, Secret("not-the-password")))
    assert caught.value.code == "credentials_refused"
    assert "not-the-password" not in str(caught.value)
    session.abort()


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "OAUTHBEARER"])
async def test_bearer_tokens(mail_user: MailUser, mechanism: str) -> None:
    session = await dial(mail_user)
    await session.login(OAuthToken(mail_user.name, Secret(mail_user.password), mechanism))  # type: ignore[arg-type]
    assert (await session.list_mailboxes()).mailboxes
    await session.close()


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "OAUTHBEARER"])
async def test_case_74_a_refused_token_is_an_answer_and_no_time_out(mail_user: MailUser, mechanism: str) -> None:
    session = await dial(mail_user, limits=Limits(login_timeout_s=5))
    with pytest.raises(CredentialsRefused) as caught:
        await session.login(OAuthToken(mail_user.name, Secret("stale-token"), mechanism))  # type: ignore[arg-type]
    assert "stale-token" not in str(caught.value)
    assert session.alive
    await session.close()


async def test_lists_mailboxes_with_their_status_in_one_round_trip(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        client.create_folder("Archive/2026 é")
        fill(client, "INBOX", 2)
    async with logged_in(mail_user) as session:
        before = session.traffic.round_trips
        answer = await session.list_mailboxes()
        assert session.traffic.round_trips == before + 1
    by_name = {mailbox.display_name: mailbox for mailbox in answer.mailboxes}
    assert answer.with_status
    assert by_name["INBOX"].special_use == "\\inbox"
    assert by_name["Sent"].special_use == "\\sent"
    assert by_name["Archive/2026 é"].wire_name == b"Archive/2026 &AOk-"
    status = by_name["INBOX"].status
    assert status is not None
    assert (status.messages, status.uidnext) == (2, 3)
    assert status.uidvalidity
    assert status.highestmodseq


async def test_statuses_are_pipelined_and_refused_one_by_one(mail_user: MailUser) -> None:
    async with logged_in(mail_user) as session:
        before = session.traffic
        answers = await session.statuses([b"INBOX", b"No such", b"Sent", b"bad\r\nname"])
        assert session.traffic.commands_sent == before.commands_sent + 3
        assert session.traffic.round_trips == before.round_trips + 1
        inbox = answers[b"INBOX"]
        assert not isinstance(inbox, MailboxError)
        assert inbox.messages == 0
        assert isinstance(answers[b"No such"], MailboxGone)
        assert isinstance(answers[b"bad\r\nname"], MailboxUnusable)
        with pytest.raises(MailboxGone):
            await session.status(b"No such")


async def test_examine_tells_the_mailbox_and_changes_nothing(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        fill(client, "INBOX", 3)
    async with logged_in(mail_user) as session:
        selected = await session.examine(b"INBOX")
        assert (selected.exists, selected.uidnext, selected.read_only) == (3, 4, True)
        assert selected.uidvalidity
        assert selected.highestmodseq
        async with contextlib.aclosing(session.uid_fetch("1:*", (*ITEMS, b"BODY.PEEK[]"))) as chunks:
            messages = [found async for chunk in chunks for found in chunk.messages]
        assert [found.uid for found in messages] == [1, 2, 3]
        assert all(b"Hello" in found.sections[b""] for found in messages)
        with pytest.raises(MailboxGone):
            await session.examine(b"No such")
        assert session.selected is None
        assert (await session.examine(b"Sent")).exists == 0
    with mail_user.client() as client:
        client.select_folder("INBOX", readonly=True)
        assert not client.search(["SEEN"])


async def test_fetch_streams_in_chunks(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        fill(client, "INBOX", 2500)
    async with logged_in(mail_user) as session:
        await session.examine(b"INBOX")
        seen: list[int] = []
        async with contextlib.aclosing(session.uid_fetch("1:*", (*ITEMS, b"MODSEQ"), chunk=400)) as chunks:
            async for chunk in chunks:
                assert len(chunk.messages) <= 400
                for found in chunk.messages:
                    assert found.flags is not None
                    assert found.internal_date is not None
                    assert found.modseq
                    assert found.size
                    assert b"number %d\r\n" % found.uid in found.sections[b"HEADER.FIELDS"]
                seen += [found.uid for found in chunk.messages]
        assert seen == list(range(1, 2501))
        assert not session.take_changes()


async def test_a_fetch_that_is_left_early_takes_the_connection_with_it(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        fill(client, "INBOX", 1500)
    async with logged_in(mail_user) as session:
        await session.examine(b"INBOX")
        async with contextlib.aclosing(session.uid_fetch("1:*", ITEMS, chunk=10)) as chunks:
            async for _ in chunks:
                break
        assert not session.alive


async def test_search_by_esearch_and_without(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        fill(client, "INBOX", 10)
        client.select_folder("INBOX")
        client.add_flags([2, 5], [b"\\Flagged"])
        client.delete_messages([10])
        client.expunge()
    for hidden in (frozenset[str](), frozenset({"ESEARCH"})):
        async with logged_in(mail_user, options=Options(disabled=hidden)) as session:
            await session.examine(b"INBOX")
            everything = await session.uid_search()
            assert list(everything.uids) == list(range(1, 10))
            assert everything.stated
            assert list((await session.uid_search(b"FLAGGED")).uids) == [2, 5]
            nothing = await session.uid_search(b"UID 100:200 ANSWERED")
            assert not nothing.uids
            assert nothing.stated
            bounds = await session.uid_search(returns="bounds")
            assert (bounds.minimum, bounds.maximum, bounds.count) == (1, 9, 9)


async def test_changes_since_by_qresync_and_by_changedsince(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        fill(client, "INBOX", 6)
    async with logged_in(mail_user) as session:
        before = await session.examine(b"INBOX")
        assert before.highestmodseq is not None
        assert before.uidvalidity is not None
        with mail_user.client() as client:
            client.select_folder("INBOX")
            client.add_flags([3], [b"$Label"])
            client.delete_messages([1, 2])
            client.expunge()
        await session.noop()
        changes = session.take_changes()
        assert list(changes.vanished) == [1, 2]
        assert changes.exists == 4
        assert changes.fetched[3].flags == LABELLED

        async with contextlib.aclosing(
            session.uid_fetch("1:*", (b"FLAGS",), changed_since=before.highestmodseq, vanished=True)
        ) as chunks:
            parts = [chunk async for chunk in chunks]
        assert [uid for part in parts for uid in part.vanished] == [1, 2]
        assert [(m.uid, m.flags) for part in parts for m in part.messages] == [(3, LABELLED)]

        again = await session.examine(b"INBOX", qresync=QResync(before.uidvalidity, before.highestmodseq, "1:6"))
        assert list(again.vanished) == [1, 2]
        assert [(m.uid, m.flags) for m in again.fetched] == [(3, LABELLED)]
        assert not again.fetched_overflowed


async def test_idle_wakes_for_anything(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        fill(client, "INBOX", 3)
    async with logged_in(mail_user) as session:
        await session.examine(b"INBOX")
        with mail_user.client() as client:
            client.select_folder("INBOX")
            for change, check in (
                (lambda: fill(client, "INBOX", 1, first=4), lambda told: told.exists == 4),
                (lambda: client.add_flags([1], [b"\\Seen"]), lambda told: b"\\Seen" in told.fetched[1].flags),
                (lambda: (client.delete_messages([2]), client.expunge()), lambda told: 2 in told.vanished),
            ):
                idling = asyncio.ensure_future(session.idle(timeout_s=20))
                await asyncio.to_thread(change)
                async with asyncio.timeout(20):
                    while True:
                        assert await idling is IdleOutcome.DATA
                        if check(session.take_changes()):
                            break
                        idling = asyncio.ensure_future(session.idle(timeout_s=20))


async def test_idle_ends_by_wake_and_by_time(mail_user: MailUser) -> None:
    async with logged_in(mail_user) as session:
        await session.examine(b"INBOX")
        assert await session.idle(timeout_s=0.05) is IdleOutcome.RENEW
        wake = asyncio.Event()
        idling = asyncio.ensure_future(session.idle(timeout_s=30, wake=wake))
        asyncio.get_running_loop().call_later(0.05, wake.set)
        async with asyncio.timeout(10):
            assert await idling is IdleOutcome.WAKE
        assert (await session.uid_search()).stated


async def test_notify_watches_all_mailboxes_over_one_connection(mail_user: MailUser) -> None:
    async with logged_in(mail_user) as session:
        await session.examine(b"INBOX")
        assert await session.notify()
        session.take_changes()
        with mail_user.client() as client:
            await asyncio.to_thread(fill, client, "Sent", 1)
            await asyncio.to_thread(client.create_folder, "Born")
        statuses: set[bytes] = set()
        listed: set[bytes] = set()
        async with asyncio.timeout(20):
            while not (b"Sent" in statuses and b"Born" in listed):
                await session.idle(timeout_s=5)
                changes = session.take_changes()
                statuses |= set(changes.statuses)
                listed |= {mailbox.wire_name for mailbox in changes.listed}


async def test_compression_is_transparent(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        fill(client, "INBOX", 300)
    received = {}
    for compress in (False, True):
        async with logged_in(mail_user, options=Options(compress=compress)) as session:
            await session.examine(b"INBOX")
            async with contextlib.aclosing(session.uid_fetch("1:*", ITEMS)) as chunks:
                uids = [found.uid async for chunk in chunks for found in chunk.messages]
            assert uids == list(range(1, 301))
            received[compress] = session.traffic.bytes_received
    assert received[True] * 3 < received[False]


async def test_a_server_without_condstore(plain_mail_user: MailUser) -> None:
    with plain_mail_user.client() as client:
        fill(client, "INBOX", 3)
    async with logged_in(plain_mail_user) as session:
        assert not session.has("CONDSTORE")
        selected = await session.examine(b"INBOX")
        assert selected.highestmodseq is None  # case 9: the capability decides, not the response
        async with contextlib.aclosing(session.uid_fetch("1:*", (b"FLAGS",))) as chunks:
            assert [found.uid async for chunk in chunks for found in chunk.messages] == [1, 2, 3]


@pytest.mark.parametrize(
    "name", ['a "quoted" \\ name', "5* hotels", "per%cent", "R&D", "日本", "(paren) {3}", "x" * 200]
)
async def test_case_57_62_p3_names_survive_the_wire(mail_user: MailUser, name: str) -> None:
    with mail_user.client() as client:
        client.create_folder(name)
        fill(client, name, 1)
    async with logged_in(mail_user) as session:
        (mailbox,) = [found for found in (await session.list_mailboxes()).mailboxes if found.display_name == name]
        assert mailbox.status is not None
        assert mailbox.status.messages == 1
        assert (await session.examine(mailbox.wire_name)).exists == 1


async def test_a_dead_peer_fails_every_wait(private_dovecot: Callable[[DovecotOptions], Awaitable[Dovecot]]) -> None:
    server = await private_dovecot(DovecotOptions())
    server.add_user("dead@example.test", "pw")
    user = MailUser("dead@example.test", "pw", server)
    async with logged_in(user) as session:
        await session.examine(b"INBOX")
        idling = asyncio.ensure_future(session.idle(timeout_s=60))
        await asyncio.sleep(0)
        await server.kill()
        async with asyncio.timeout(10):
            with pytest.raises(Exception) as caught:
                await idling
        assert caught.value is session.failure
