"""Connecting, logging in, waiting and ending: cases 28, 59 to 61, 71 to 84, 100 to 104, P5."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trustme

from streams.errors import (
    CommandTimedOut,
    ConnectionLost,
    CredentialsRefused,
    HostBusy,
    InsecureConnection,
    MailstreamsError,
    NotAnImapServer,
    RetryLater,
)
from streams.imap.changes import kept_bytes
from streams.imap.connecting import connect
from streams.imap.connection import ImapProtocol
from streams.imap.credentials import Credential, OAuthToken, Password, Secret
from streams.imap.observer import SilentObserver
from streams.imap.protocol.responses import Response
from streams.imap.session import ImapSession
from streams.imap.tls import client_tls_context
from streams.imap.values import Endpoint, IdleOutcome, Limits, Options
from tests.scripted_imap.bending import Drop, Hang, Pause, Reset
from tests.scripted_imap.model import Account
from tests.scripted_imap.script import EXAMINE_DIALOGUE, LOGIN_DIALOGUE, ScriptedServer, StartTls, Step
from tests.scripted_imap.server import BARE, BASE, FULL, ImapServer, Profile
from tests.unit.imap.dialling import CREDENTIAL, LOOPBACK, PATIENT, QUICK, dial, fetch, logged_in

IDLE_DIALOGUE: tuple[Step, ...] = (*EXAMINE_DIALOGUE, "IDLE", b"+ idling\r\n")


def account(count: int = 3) -> Account:
    made = Account()
    for number in range(count):
        made.mailboxes["INBOX"].deliver(b"Subject: %d\r\n\r\n" % number)
    return made


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def client_tls(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    path = Path(tmp_path_factory.mktemp("tls")) / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return client_tls_context(path)


# --- greeting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "greeting",
    [
        b"* OK [mail.example.com] ready\r\n",
        b"* OK [ALERT] we move house\r\n",
        b"* OK [not a code at all\r\n",
        b"* OK\r\n",
        b"* ok [CAPABILITY] hm\r\n",
    ],
)
async def test_case_59_brackets_in_the_greeting(greeting: bytes) -> None:
    script = (greeting, "CAPABILITY", b"* CAPABILITY IMAP4rev1\r\n%T% OK x\r\n")
    if b"[CAPABILITY]" in greeting:
        with pytest.raises(NotAnImapServer):
            async with ScriptedServer(script) as server:
                await dial(server)
        return
    async with ScriptedServer(script) as server:
        session = await dial(server)
        assert session.capabilities == {"IMAP4REV1"}
        session.abort()


@pytest.mark.parametrize(
    "greeting",
    [
        b"+OK POP3 ready\r\n",
        b"220 smtp ready\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x15\x03\x01\r\n",
    ],
)
async def test_case_60_what_is_no_imap_server_is_called_so(greeting: bytes) -> None:
    async with ScriptedServer((greeting,)) as server:
        with pytest.raises(NotAnImapServer):
            await dial(server)


async def test_case_60_a_server_without_imap4_is_called_so() -> None:
    async with ScriptedServer((b"* OK [CAPABILITY IMAP2bis] old\r\n",)) as server:
        with pytest.raises(NotAnImapServer):
            await dial(server)


@pytest.mark.parametrize(
    ("greeting", "error"),
    [(b"* BYE try later\r\n", ConnectionLost), (b"* BYE Too many connections from your IP\r\n", HostBusy)],
)
async def test_p5_bye_as_greeting_is_told_at_once(greeting: bytes, error: type[MailstreamsError]) -> None:
    async with ScriptedServer((greeting, Drop())) as server:
        started = time.monotonic()
        with pytest.raises(error, match="refused the connection"):
            await dial(server)
        assert time.monotonic() - started < 10


async def test_a_host_that_says_nothing_meets_the_deadline() -> None:
    async with ScriptedServer((Hang(),)) as server:
        with pytest.raises(CommandTimedOut) as caught:
            await dial(server, Limits(connect_timeout_s=0.1))
        assert caught.value.code == "greeting_timed_out"


async def test_the_connect_timeout_bounds_all_steps_together() -> None:
    """A host that takes a little long for each step gets no deadline for each."""
    slow = (
        Pause(0.25),
        b"* OK ready\r\n",
        r"CAPABILITY",
        Pause(0.25),
        b"* CAPABILITY IMAP4rev1\r\n%T% OK done\r\n",
    )
    async with ScriptedServer(slow) as server:
        started = asyncio.get_running_loop().time()
        with pytest.raises(CommandTimedOut) as caught:
            await dial(server, Limits(connect_timeout_s=0.4))
        assert caught.value.code in ("greeting_timed_out", "connect_timed_out")
        assert asyncio.get_running_loop().time() - started < 10.0
    async with ScriptedServer(slow) as server:
        session = await dial(server, Limits(connect_timeout_s=20.0))
        session.abort()


async def test_a_host_that_hangs_up_at_once() -> None:
    async with ScriptedServer((Drop(),)) as server:
        with pytest.raises(ConnectionLost):
            await dial(server)


# --- TLS -----------------------------------------------------------------------------------------------------------


def starttls_script(answer: bytes, *rest: Step) -> tuple[Step, ...]:
    return (b"* OK ready\r\n", "STARTTLS", answer, *rest)


async def start_tls(server: ScriptedServer, context: ssl.SSLContext) -> ImapSession:
    return await connect(
        Endpoint("localhost", server.port, "starttls"), limits=PATIENT, tls_context=context, address_policy=LOOPBACK
    )


async def test_starttls_forgets_what_was_said_in_the_clear(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    script = (
        b"* OK [CAPABILITY IMAP4rev1 AUTH=EVIL] ready\r\n",
        "STARTTLS",
        b"%T% OK [CAPABILITY IMAP4rev1 AUTH=WORSE] go\r\n",
        StartTls(server_tls),
        "CAPABILITY",
        b"* CAPABILITY IMAP4rev1 AUTH=PLAIN\r\n%T% OK x\r\n",
    )
    async with ScriptedServer(script) as server:
        session = await start_tls(server, client_tls)
        assert session.capabilities == {"IMAP4REV1", "AUTH=PLAIN"}
        session.abort()


@pytest.mark.parametrize("extra", [b"* CAPABILITY IMAP4rev1 AUTH=EVIL\r\n", b"X1 OK forged\r\n", b"* OK half a li"])
async def test_case_100_bytes_behind_the_answer_to_starttls_abort(
    extra: bytes, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with ScriptedServer(starttls_script(b"%T% OK go\r\n" + extra, StartTls(server_tls))) as server:
        with pytest.raises(InsecureConnection) as caught:
            await start_tls(server, client_tls)
        assert caught.value.code == "injection"


@pytest.mark.parametrize("mode", ["starttls", "plain"])
async def test_case_101_preauth_without_tls_aborts(mode: Any, client_tls: ssl.SSLContext) -> None:
    async with ScriptedServer((b"* PREAUTH [CAPABILITY IMAP4rev1] you are in\r\n",)) as server:
        with pytest.raises(InsecureConnection, match="logged in already"):
            await connect(
                Endpoint("localhost", server.port, mode),
                tls_context=client_tls,
                address_policy=LOOPBACK,
                limits=PATIENT,
            )


async def test_preauth_inside_tls_is_a_login(server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    script = (
        b"* PREAUTH [CAPABILITY IMAP4rev1] you are in\r\n",
        "CAPABILITY|LIST",
        b'* LIST () "/" INBOX\r\n%T% OK x\r\n',
    )
    async with ScriptedServer(script, tls=server_tls) as server:
        session = await connect(
            Endpoint("localhost", server.port, "tls"), tls_context=client_tls, address_policy=LOOPBACK, limits=PATIENT
        )
        await session.login(CREDENTIAL)
        assert len((await session.list_mailboxes()).mailboxes) == 1
        session.abort()
        assert not any(b"LOGIN" in line or b"AUTH" in line for line in server.lines)


@pytest.mark.parametrize("answer", [b"%T% NO not today\r\n", b"%T% BAD what\r\n", b"X9 OK early\r\n%T% OK go\r\n"])
async def test_case_102_without_starttls_no_password_is_sent(answer: bytes, client_tls: ssl.SSLContext) -> None:
    async with ScriptedServer(starttls_script(answer)) as server:
        with pytest.raises(InsecureConnection):
            await start_tls(server, client_tls)
        assert server.lines == [server.lines[0]]
        assert b"STARTTLS" in server.lines[0]


async def test_a_server_that_does_not_begin_tls(client_tls: ssl.SSLContext) -> None:
    async with ScriptedServer(starttls_script(b"%T% OK go\r\n", Pause(0.05), b"* OK not TLS at all\r\n")) as server:
        with pytest.raises((InsecureConnection, ConnectionLost)):
            await start_tls(server, client_tls)


# --- login ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["code", "untagged", "none"])
async def test_case_61_capabilities_after_login_replace_the_old_ones(how: str) -> None:
    profile = Profile(
        FULL, greeting=b"* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN SASL-IR OLD] hi\r\n", capabilities_after_login=how
    )
    async with ImapServer([account()], profile) as server, logged_in(server) as session:
        assert session.has("IDLE")
        assert session.has("QRESYNC")
        assert not session.has("OLD")
        assert server.count("CAPABILITY") == (1 if how == "none" else 0)


@pytest.mark.parametrize(
    "capabilities",
    [
        BARE,
        BARE | {"AUTH=PLAIN"},
        BARE | {"AUTH=PLAIN", "SASL-IR"},
        BARE | {"AUTH=LOGIN"},
        BARE | {"AUTH=SCRAM-SHA-256"},
        BARE | {"AUTH=SCRAM-SHA-256", "AUTH=PLAIN", "SASL-IR"},
        BARE | {"LITERAL+"},
        BARE | {"LITERAL-"},
    ],
    ids=lambda names: "+".join(sorted(names)),
)
@pytest.mark.parametrize("password", ["secret", 'q"uo\\te', "pässwörd ✓", "%s{5}"])
async def test_each_way_to_log_in(capabilities: frozenset[str], password: str) -> None:
    made = Account("us er", password)
    async with ImapServer([made], Profile(capabilities, capabilities_after_login="none")) as server:
        session = await dial(server)
        await session.login(Password("us er", Secret(password)))
        assert server.logins["us er"] == 1
        session.abort()
        session = await dial(server)
        with pytest.raises(CredentialsRefused):
            await session.login(Password("us er", Secret(password + "x")))
        assert session.alive
        session.abort()


async def test_scram_is_preferred_without_tls() -> None:
    async with ImapServer([account()], BASE | {"AUTH=SCRAM-SHA-256"}) as server, logged_in(server):
        assert server.commands[1].startswith("AUTHENTICATE SCRAM-SHA-256")


async def test_a_server_that_cannot_prove_itself_by_scram_is_refused() -> None:
    async with ImapServer([account()], BARE | {"AUTH=SCRAM-SHA-256"}) as server:
        server.bend("AUTHENTICATE", lambda answer: [answer[-1].split(b" ")[0] + b" OK in\r\n"])
        session = await dial(server)
        with pytest.raises((InsecureConnection, CredentialsRefused)):
            await session.login(Password("user", Secret("what the server does not know")))
        session.abort()


@pytest.mark.parametrize("challenge", [b"r=x,s=eA==,i=999999999", b"nonsense", b"\xff"])
async def test_a_scram_challenge_that_is_no_good(challenge: bytes) -> None:
    script = (
        b"* OK [CAPABILITY IMAP4rev1 AUTH=SCRAM-SHA-256 SASL-IR] hi\r\n",
        "AUTHENTICATE",
        b"+ " + base64.b64encode(challenge) + b"\r\n",
        r"^\*",
        b"%T% BAD cancelled\r\n",
    )
    async with ScriptedServer(script) as server:
        session = await dial(server)
        with pytest.raises(InsecureConnection):
            await session.login(CREDENTIAL)
        session.abort()


async def test_logindisabled_is_obeyed() -> None:
    async with ScriptedServer((b"* OK [CAPABILITY IMAP4rev1 LOGINDISABLED] hi\r\n",)) as server:
        session = await dial(server)
        with pytest.raises(InsecureConnection):
            await session.login(CREDENTIAL)
        assert server.lines == []
        session.abort()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[UNAVAILABLE] later", RetryLater),
        ("[ALERT] Too many simultaneous connections", RetryLater),
        ("[AUTHENTICATIONFAILED] no", CredentialsRefused),
    ],
)
async def test_cases_71_72_at_login(text: str, error: type[MailstreamsError]) -> None:
    async with ImapServer([account()], Profile(FULL, login_no=text)) as server:
        session = await dial(server)
        with pytest.raises(error):
            await session.login(CREDENTIAL)
        session.abort()


class Rotating:
    """A source that remembers how it was asked."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = iter(tokens)
        self._last = ""
        self.asked: list[bool] = []

    async def current(self, *, force_refresh: bool = False) -> Credential:
        self.asked.append(force_refresh)
        self._last = next(self._tokens, self._last)
        return OAuthToken("user", Secret(self._last))


@pytest.mark.parametrize("capabilities", [BASE, BASE - {"SASL-IR"}, BASE - {"AUTH=OAUTHBEARER"}])
async def test_case_74_a_refused_token_is_refreshed_once_and_without_a_time_out(capabilities: frozenset[str]) -> None:
    made = Account("user", "fresh")
    async with ImapServer([made], capabilities) as server:
        session = await dial(server, QUICK)
        source = Rotating("stale", "fresh")
        await session.login(source)
        assert source.asked == [False, True]
        assert server.tokens == ["stale", "fresh"]
        session.abort()
        session = await dial(server, QUICK)
        source = Rotating("stale", "stale too", "never asked")
        with pytest.raises(CredentialsRefused) as caught:
            await session.login(source)
        assert source.asked == [False, True]
        assert "stale" not in str(caught.value)
        assert "400" in str(caught.value)
        session.abort()


async def test_case_11_a_token_goes_after_the_plus_where_sasl_ir_is_refused() -> None:
    made = Account("user", "token")
    refuses = {r"^AUTHENTICATE XOAUTH2 .": "BAD too many arguments"}
    async with ImapServer([made], Profile(BASE - {"AUTH=OAUTHBEARER"}, refuses=refuses)) as server:
        refused: set[str] = set()
        for _ in range(2):
            session = await dial(server, refused=refused)
            await session.login(OAuthToken("user", Secret("token")))
            session.abort()
        assert refused == {"SASL-IR"}
        assert len(server.refused) == 1
        assert server.tokens == ["token", "token"]


async def test_case_74_the_token_is_fresh_for_each_authenticate() -> None:
    made = Account("user", "one")
    async with ImapServer([made], BASE) as server:
        source = Rotating("one", "two")
        for token in ("one", "two"):
            made.token = token
            session = await dial(server)
            await session.login(source)
            session.abort()
        assert source.asked == [False, False]


CANARY = 'can"ary\\päss'


@pytest.mark.parametrize(
    "capabilities", [BARE, BARE | {"AUTH=PLAIN", "SASL-IR"}, BARE | {"AUTH=XOAUTH2"}, BARE | {"AUTH=SCRAM-SHA-256"}]
)
async def test_cases_103_104_no_secret_in_logs_or_errors(
    capabilities: frozenset[str], caplog: pytest.LogCaptureFixture
) -> None:
    """With every logger at DEBUG, a server that repeats the secret, a wrong tag, and a torn connection."""
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    echo = f"NO wrong: {CANARY} {base64.b64encode(CANARY.encode()).decode()}".encode()
    credential: Credential = Password("user", Secret(CANARY))
    if "AUTH=XOAUTH2" in capabilities:
        credential = OAuthToken("user", Secret(CANARY))
    seen: list[str] = []
    benders: list[Callable[[list[bytes]], list[Any]]] = [
        lambda answer: [answer[-1].split(b" ")[0] + b" " + echo + b"\r\n"],
        lambda answer: [b"WRONG1 " + echo + b"\r\n"],
        lambda answer: [b"* BYE " + echo + b"\r\n", Drop()],
        lambda answer: [Reset()],
    ]
    for bender in benders:
        async with ImapServer([Account("user", "other")], capabilities) as server:
            server.bend("LOGIN|AUTHENTICATE", bender)
            session = await dial(server, QUICK)
            with pytest.raises(MailstreamsError) as caught:
                await session.login(credential)
            seen += [str(caught.value), repr(caught.value), repr(session)]
            session.abort()
    seen += [
        record.getMessage() + repr(record.args) for record in caplog.records if record.name.split(".")[0] != "tests"
    ]
    whole = "\n".join(seen)
    for form in (
        CANARY,
        CANARY.replace("\\", "\\\\").replace('"', '\\"'),
        base64.b64encode(CANARY.encode()).decode()[:-2],
    ):
        assert form not in whole
    assert not logging.getLogger("aioimaplib.aioimaplib").isEnabledFor(logging.CRITICAL)


@pytest.mark.parametrize("user", ["user", "user1", "user12"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "XOAUTH2"])
async def test_case_104_a_server_that_repeats_what_was_sent_to_it(user: str, mechanism: str) -> None:
    """The secret stands in the middle of a message in base64, wherever in a group of three bytes it begins."""
    secret = "a long secret that nobody may read"
    credential = OAuthToken(user, Secret(secret)) if mechanism == "XOAUTH2" else Password(user, Secret(secret))
    async with ImapServer([Account("other", "x")], BARE | {f"AUTH={mechanism}", "SASL-IR"}) as server:

        def repeat(answer: list[bytes]) -> list[Any]:
            return [answer[-1].split(b" ")[0] + b" NO what is " + server.commands[-1].encode() + b"\r\n"]

        server.bend("AUTHENTICATE", repeat)
        session = await dial(server, QUICK)
        with pytest.raises(MailstreamsError) as caught:
            await session.login(credential)
        session.abort()
        sent = server.commands[-1].split()[-1]
    begins = base64.b64decode(sent).index(secret.encode())
    told = str(caught.value)
    assert "what is AUTHENTICATE" in told
    for at in range(begins * 8 // 6, (begins + len(secret)) * 8 // 6 - 4):
        assert sent[at : at + 4] not in told


@pytest.mark.parametrize("password", ["tab\there", "nul\x00here", "\u0627a"])
async def test_a_password_that_scram_forbids_is_refused_and_nothing_else_fails(password: str) -> None:
    async with ImapServer([account()], BARE | {"AUTH=SCRAM-SHA-256"}) as server:
        session = await dial(server, QUICK)
        with pytest.raises(CredentialsRefused) as caught:
            await session.login(Password("user", Secret(password)))
        assert caught.value.code == "credentials_malformed"
        assert password not in str(caught.value)
        session.abort()


async def test_a_refused_token_whose_challenge_is_nested_too_deeply() -> None:
    challenge = base64.b64encode(b"[" * 12_000)
    script = (
        b"* OK [CAPABILITY IMAP4rev1 AUTH=XOAUTH2 SASL-IR] hi\r\n",
        "AUTHENTICATE",
        b"+ " + challenge + b"\r\n",
        "",
        b"%T% NO [AUTHENTICATIONFAILED] no\r\n",
    )
    async with ScriptedServer(script) as server:
        session = await dial(server)
        with pytest.raises(CredentialsRefused):
            await session.login(OAuthToken("user", Secret("token")))
        session.abort()


# --- deadlines and ends --------------------------------------------------------------------------------------------


async def test_case_80_a_command_that_is_never_answered_costs_the_connection() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend("NOOP", lambda _: [Hang()])
        async with logged_in(server, limits=QUICK) as session:
            with pytest.raises(CommandTimedOut):
                await session.noop()
            assert not session.alive
            with pytest.raises(CommandTimedOut):  # at once, without another wait
                await session.list_mailboxes()


async def test_commands_in_flight_together_each_have_their_time() -> None:
    made = account()
    names = [f"box{number}" for number in range(8)]
    for name in names:
        made.create(name)
    async with ImapServer([made], FULL) as server, logged_in(server, limits=QUICK) as session:
        server.bend("STATUS", lambda answer: [Pause(0.15), *answer])  # 1.2 s in all, 0.5 s for each
        assert len(await session.statuses([name.encode() for name in names])) == 8


async def test_case_80_a_command_that_is_given_up_costs_the_connection() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend("NOOP", lambda _: [Hang()])
        async with logged_in(server) as session:
            waiting = asyncio.ensure_future(session.noop())
            async with asyncio.timeout(5):
                while not server.count("NOOP"):
                    await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not session.alive


@pytest.mark.parametrize("end", [Drop(), Reset()], ids=["fin", "rst"])
@pytest.mark.parametrize("command", ["noop", "fetch", "idle", "examine", "statuses"])
async def test_case_79_a_lost_connection_fails_what_waits_at_once(end: Any, command: str) -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("NOOP|UID FETCH|IDLE$|EXAMINE|STATUS", lambda answer: [*(answer if command == "idle" else []), end])
        calls: dict[str, Callable[[], Any]] = {
            "noop": session.noop,
            "fetch": lambda: fetch(session, "1:*", (b"FLAGS",)),
            "idle": session.idle,
            "examine": lambda: session.examine(b"INBOX"),
            "statuses": lambda: session.statuses([b"INBOX", b"a", b"b"]),
        }
        started = time.monotonic()
        with pytest.raises(ConnectionLost):
            await calls[command]()
        assert time.monotonic() - started < 5
        assert not session.alive


async def test_those_who_queue_behind_a_lost_command_fail_too() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("NOOP", lambda _: [Pause(0.05), Drop()])
        outcomes = await asyncio.gather(
            *(session.noop() for _ in range(5)), session.uid_search(), return_exceptions=True
        )
        assert all(isinstance(outcome, ConnectionLost) for outcome in outcomes)


async def test_case_75_bye_in_idle_ends_the_session_at_once() -> None:
    script = (*IDLE_DIALOGUE, b"* BYE Session invalidated - AccessTokenExpired\r\n", Hang())
    async with ScriptedServer(script) as server, logged_in(server, examine=b"INBOX") as session:
        with pytest.raises(ConnectionLost) as caught:
            await session.idle()
        assert caught.value.code == "session_expired"
        assert not session.alive


async def test_case_78_a_peer_gone_stale_is_found_by_the_deadline_on_done() -> None:
    script = (*IDLE_DIALOGUE, "DONE", Hang())
    async with ScriptedServer(script) as server, logged_in(server, limits=QUICK, examine=b"INBOX") as session:
        with pytest.raises(CommandTimedOut):
            await session.idle(timeout_s=0.05)


async def test_a_server_that_never_begins_idle() -> None:
    script = (*EXAMINE_DIALOGUE, "IDLE", Hang())
    async with ScriptedServer(script) as server, logged_in(server, limits=QUICK, examine=b"INBOX") as session:
        with pytest.raises(CommandTimedOut):
            await session.idle()


async def test_a_fin_instead_of_idling() -> None:
    script = (*EXAMINE_DIALOGUE, "IDLE", Drop())
    async with ScriptedServer(script) as server, logged_in(server, examine=b"INBOX") as session:
        with pytest.raises(ConnectionLost):
            await session.idle()


async def test_case_28_what_came_before_idle_began_ends_it_at_once() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("IDLE$", lambda answer: [b"* 4 EXISTS\r\n", *answer])
        assert await session.idle(timeout_s=30) is IdleOutcome.DATA
        assert session.take_changes().exists == 4

    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.accounts["user"].mailboxes["INBOX"].deliver(b"x")
        await session.noop()  # told here
        assert await session.idle(timeout_s=30) is IdleOutcome.DATA
        assert server.count("IDLE") == 0  # it was known already


async def test_an_exists_that_tells_nothing_new_wakes_nobody() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("IDLE$", lambda answer: [*answer, b"* 3 EXISTS\r\n* OK still here\r\n* 0 RECENT\r\n"])
        assert await session.idle(timeout_s=0.1) is IdleOutcome.RENEW


async def test_idle_that_the_server_ends_by_itself() -> None:
    script = (*IDLE_DIALOGUE, Pause(0.02), b"%T% OK enough\r\n", "NOOP", b"%T% OK x\r\n")
    async with ScriptedServer(script) as server, logged_in(server, examine=b"INBOX") as session:
        assert await session.idle(timeout_s=30) is IdleOutcome.RENEW
        await session.noop()


async def test_case_81_nonsense_ends_the_connection_and_says_nothing_of_credentials() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend("LOGIN|AUTHENTICATE", lambda _: [b"* 1 FETCH (BODY[] {99999999999}\r\n"])
        session = await dial(server)
        with pytest.raises(ConnectionLost) as caught:
            await session.login(CREDENTIAL)
        assert caught.value.code == "literal_too_long"


async def test_p4_a_line_without_end_is_cut_off() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend("NOOP", lambda _: [b"* OK " + b"x" * 200_000, Hang()])
        async with logged_in(server, limits=Limits(max_line_bytes=65536)) as session:
            with pytest.raises(ConnectionLost) as caught:
                await session.noop()
            assert caught.value.code == "line_too_long"


@pytest.mark.parametrize("behaviour", [[Hang()], [Drop()], [b"* BYE now\r\n", Drop()], [Reset()]])
async def test_close_never_raises_and_never_waits_long(behaviour: list[Any]) -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend("LOGOUT", lambda _: behaviour)
        session = await dial(server, QUICK)
        await session.login(CREDENTIAL)
        async with asyncio.timeout(3):
            await session.close()
        assert not session.alive
        await session.close()


async def test_close_in_the_middle_of_idle_does_not_wait_for_its_end() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, limits=QUICK, examine=b"INBOX") as session:
        idling = asyncio.ensure_future(session.idle(timeout_s=60))
        async with asyncio.timeout(5):
            while not server.count("IDLE"):
                await asyncio.sleep(0.001)
            await session.close()
            with pytest.raises(ConnectionLost):
                await idling


class Counting:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, str]] = []
        self.ignored: list[tuple[str, str]] = []
        self.ended: list[str] = []

    def command_finished(self, name: str, seconds: float, outcome: str) -> None:
        self.finished.append((name, outcome))

    def response_ignored(self, kind: str, reason: str) -> None:
        self.ignored.append((kind, reason))

    def session_ended(self, code: str) -> None:
        self.ended.append(code)


async def test_the_observer_is_told_everything() -> None:
    observer = Counting()
    async with ImapServer([account()], FULL) as server:
        server.bend("NOOP", lambda answer: [b"[COPYUID 1 2 3]\r\n* SEARCH x\r\n", *answer])
        async with logged_in(server, observer=observer) as session:
            await session.noop()
            with pytest.raises(MailstreamsError):
                await session.examine(b"nowhere")
        assert ("NOOP", "OK") in observer.finished
        assert ("EXAMINE", "NO") in observer.finished
        assert observer.ignored == [("unknown", "[COPYUID"), ("malformed", "SEARCH")]
        assert observer.ended == ["closed"]


# --- flow ----------------------------------------------------------------------------------------------------------


async def test_a_reader_that_is_slow_is_not_overrun() -> None:
    """Back-pressure: what is in memory is bounded by the chunk, not by the answer."""
    made = Account()
    for number in range(3000):
        made.mailboxes["INBOX"].deliver(b"Subject: %d\r\n\r\n" % number + b"x" * 20_000)
    limits = Limits(fetch_stall_timeout_s=0.3)
    async with ImapServer([made], FULL) as server, logged_in(server, limits=limits, examine=b"INBOX") as session:
        count = 0
        async with contextlib.aclosing(session.uid_fetch("1:*", (b"BODY.PEEK[]",), chunk=50)) as parts:
            async for part in parts:
                count += len(part.messages)
                if count in (50, 1000):
                    received = session.traffic.bytes_received
                    await asyncio.sleep(0.5)  # longer than the stall deadline: our time is not the server's
                    assert session.traffic.bytes_received - received < 3 << 20
        assert count == 3000


async def test_the_loop_is_not_held_by_a_long_answer() -> None:
    """One read of 256 KiB holds thousands of lines; they are handled in slices, and nothing is read meanwhile."""
    transport = mock.create_autospec(asyncio.Transport, instance=True)
    transport.is_closing.return_value = False
    protocol = ImapProtocol(asyncio.get_running_loop(), Limits(), SilentObserver())
    protocol.connection_made(transport)
    protocol.data_received(b"* OK ready\r\n")
    protocol.unhalt()
    transport.reset_mock()
    handled: list[Response] = []
    protocol.on_unasked = handled.append
    started = time.process_time()
    protocol.data_received(b"".join(b"* %d FETCH (UID %d FLAGS (\\Seen))\r\n" % (n, n) for n in range(1, 20_001)))
    held = time.process_time() - started
    assert 0 < len(handled) < 20_000
    assert held < 0.1
    transport.pause_reading.assert_called_once()
    transport.resume_reading.assert_not_called()
    async with asyncio.timeout(10):
        while len(handled) < 20_000:
            await asyncio.sleep(0)
    transport.resume_reading.assert_called_once()
    protocol.fail(ConnectionLost("over"))


async def test_memory_of_a_long_idle_answer_is_bounded() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend(
            "NOOP", lambda answer: [b"* OK [ALERT] fire\r\n" * 5000, b"* 1 FETCH (FLAGS ())\r\n" * 5000, *answer]
        )
        async with logged_in(server, examine=b"INBOX") as session:
            await session.noop()
            changes = session.take_changes()
            assert len(changes.alerts) == 10
            assert changes.unidentified == 5000


async def test_a_hostile_server_cannot_fill_memory_with_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.imap.changes.MAX_KEPT_BYTES", 200_000)
    big = b" ".join(b"K%d" % number for number in range(2000))  # 10 KB of flags in each line
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend(
            "NOOP", lambda answer: [b"* 1 FETCH (UID %d FLAGS (%b%d))\r\n" % (n, big, n) for n in range(1, 60)] + answer
        )
        await session.noop()
        changes = session.take_changes()
        assert changes.overflowed
        assert 0 < sum(kept_bytes(message) for message in changes.fetched.values()) <= 200_000
        server.bend("LIST", lambda answer: [b'* LIST () "/" "' + b"x" * 100_000 + b'"\r\n', *answer])
        assert (await session.list_mailboxes()).unreadable == 1


async def test_case_81_a_defect_of_ours_ends_only_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("NOOP", lambda answer: [b"* 4 EXISTS\r\n", *answer])
        monkeypatch.setattr("streams.imap.changes.ChangeCollector.add", lambda *_: 1 / 0)
        with pytest.raises(ConnectionLost) as caught:
            await session.noop()
        assert caught.value.code == "internal"


async def test_case_78_the_kernel_looks_for_dead_peers_too() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server) as session:
        sock = session._protocol.transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 300


async def test_options_hide_capabilities() -> None:
    options = Options(disabled=frozenset({"QRESYNC", "ID"}), send_id=True)
    async with ImapServer([account()], FULL) as server, logged_in(server, options=options) as session:
        assert not session.has("QRESYNC")
        assert session.enabled == {"CONDSTORE"}
        assert server.count("ID") == 0


async def test_login_dialogue_without_sasl() -> None:
    async with ScriptedServer((*LOGIN_DIALOGUE, "NOOP", b"%T% OK x\r\n")) as server, logged_in(server) as session:
        await session.noop()
