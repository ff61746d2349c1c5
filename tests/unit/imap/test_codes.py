"""The table of refusals: cases 67, 71, 72, 73, 75, 76 and RFC 5530."""

from __future__ import annotations

import pytest

from streams.errors import (
    AccessDenied,
    AccountError,
    ConnectionLost,
    CredentialsRefused,
    HostBusy,
    InsecureConnection,
    MailboxError,
    MailboxGone,
    MailboxUnusable,
    MailstreamsError,
    RetryLater,
)
from streams.imap.errors import CommandRejected
from streams.imap.protocol.codes import RULES, During, classify, clean_text, retry_hint_s
from streams.imap.protocol.framing import Raw
from streams.imap.protocol.parser import parse
from streams.imap.protocol.responses import Tagged, Untagged

LOGIN, MAILBOX, COMMAND = During.LOGIN, During.MAILBOX, During.COMMAND


def refusal(during: During, line: bytes) -> MailstreamsError:
    response = parse(Raw(line, ()))
    assert isinstance(response, Tagged | Untagged)
    return classify(during, response.condition, response.code, response.text)


@pytest.mark.parametrize(
    ("during", "line", "error", "code"),
    [
        # case 71: temporary, state unchanged, in NO and in BAD
        (LOGIN, b"A NO [UNAVAILABLE] Temporary authentication failure.", RetryLater, "temporary"),
        (LOGIN, b"A BAD [UNAVAILABLE] User is authenticated but ...", RetryLater, "temporary"),
        (LOGIN, b"A NO [SERVERBUG] Internal error occurred.", RetryLater, "temporary"),
        (LOGIN, b"A NO [INUSE] locked by another session", RetryLater, "temporary"),
        (LOGIN, b"A NO Server Unavailable. 15", RetryLater, "temporary"),
        (LOGIN, b"A NO [ALERT] Temporary System Error", RetryLater, "temporary"),
        (LOGIN, b"A NO Lookup failed abc", RetryLater, "temporary"),
        # case 72: connections, not credentials
        (LOGIN, b"A NO [ALERT] Too many simultaneous connections. (Failure)", RetryLater, "too_many_connections"),
        (
            LOGIN,
            b"A NO [UNAVAILABLE] Maximum number of connections from user+IP exceeded",
            RetryLater,
            "too_many_connections",
        ),
        (LOGIN, b"A NO [AUTHENTICATIONFAILED] Too many simultaneous connections", RetryLater, "too_many_connections"),
        (LOGIN, b"A NO [AUTHENTICATIONFAILED] too many auth attempts", HostBusy, "rate_limited"),
        (LOGIN, b"A NO Too many login attempts, please try again later", HostBusy, "rate_limited"),
        (LOGIN, b"A NO [LIMIT] enough", HostBusy, "limit"),
        (During.GREETING, b"* BYE Too many connections from your IP", HostBusy, "rate_limited"),
        (During.GREETING, b"* BYE Connection rate limit exceeded", HostBusy, "rate_limited"),
        (During.GREETING, b"* BYE [UNAVAILABLE] down for maintenance", RetryLater, "temporary"),
        (During.GREETING, b"* BYE go away", ConnectionLost, "refused_at_greeting"),
        # case 76: slow down, account-wide
        (LOGIN, b"A NO [OVERQUOTA] Account exceeded bandwidth", RetryLater, "quota"),
        (LOGIN, b"A NO Account exceeded command or bandwidth limits. (Failure)", RetryLater, "throttled"),
        (COMMAND, b"A NO [THROTTLED] slow", RetryLater, "throttled"),
        (COMMAND, b"A BAD Request is throttled. Suggested Backoff Time: 120000 milliseconds", RetryLater, "throttled"),
        (COMMAND, b"A NO [OVERQUOTA] x", RetryLater, "quota"),
        # case 73: permission, not credentials
        (COMMAND, b"A BAD User is authenticated but not connected.", AccessDenied, "access_denied"),
        (MAILBOX, b"A BAD User is authenticated but not connected.", AccessDenied, "access_denied"),
        (LOGIN, b"A NO [AUTHORIZATIONFAILED] no", AccessDenied, "access_denied"),
        (LOGIN, b"A NO IMAP access is disabled for your account.", AccessDenied, "access_denied"),
        (LOGIN, b"A NO [WEBALERT https://x] Web login required.", AccessDenied, "web_login_required"),
        (MAILBOX, b"A NO EXAMINE Unsafe Login. Please contact us", AccessDenied, "access_denied"),
        # credentials
        (LOGIN, b"A NO [AUTHENTICATIONFAILED] Authentication failed.", CredentialsRefused, "credentials_refused"),
        (LOGIN, b"A NO LOGIN failed.", CredentialsRefused, "credentials_refused"),
        (LOGIN, b"A NO nope", CredentialsRefused, "credentials_refused"),
        (LOGIN, b"A NO [EXPIRED] change it", CredentialsRefused, "credentials_expired"),
        (
            LOGIN,
            b"A NO [ALERT] Application-specific password required",
            CredentialsRefused,
            "app_password_required",
        ),
        (LOGIN, b"A NO [PRIVACYREQUIRED] use TLS", InsecureConnection, "tls_required"),
        (LOGIN, b"A BAD Error in IMAP command", RetryLater, "login_rejected"),
        # case 75
        (During.BYE, b"* BYE Session invalidated - AccessTokenExpired", ConnectionLost, "session_expired"),
        (During.BYE, b"* BYE idle for too long", ConnectionLost, "connection_lost"),
        # case 67: a mailbox for good, for now
        (MAILBOX, b"A NO [NONEXISTENT] x", MailboxGone, "mailbox_gone"),
        (MAILBOX, b"A NO Mailbox doesn't exist: x", MailboxGone, "mailbox_gone"),
        (MAILBOX, b"A NO Unknown Mailbox: x (Failure)", MailboxGone, "mailbox_gone"),
        (MAILBOX, b"A NO [NOPERM] x", MailboxUnusable, "mailbox_permission"),
        (MAILBOX, b"A NO Permission denied", MailboxUnusable, "mailbox_permission"),
        (MAILBOX, b"A NO [INUSE] x", MailboxUnusable, "mailbox_busy"),
        (MAILBOX, b"A NO [CANNOT] x", MailboxUnusable, "mailbox_unusable"),
        (MAILBOX, b"A NO Mailbox is not selectable", MailboxUnusable, "mailbox_not_selectable"),
        (MAILBOX, b"A NO whatever", MailboxUnusable, "mailbox_unusable"),
        (MAILBOX, b"A BAD whatever", CommandRejected, "command_rejected"),
        (MAILBOX, b"A NO [UNAVAILABLE] backend", RetryLater, "temporary"),
        (COMMAND, b"A BAD what", CommandRejected, "command_rejected"),
        (COMMAND, b"A NO [LIMIT] too long a set", CommandRejected, "limit"),
        (COMMAND, b"A NO [UNAVAILABLE] x", RetryLater, "temporary"),
    ],
)
def test_each_refusal_says_who_must_act(during: During, line: bytes, error: type[MailstreamsError], code: str) -> None:
    found = refusal(during, line)
    assert type(found) is error
    assert found.code == code


@pytest.mark.parametrize("code", ["UNAVAILABLE", "LIMIT", "OVERQUOTA", "THROTTLED", "SERVERBUG", "INUSE"])
@pytest.mark.parametrize("text", [b"", b"Invalid credentials", b"login failed"])
def test_later_is_never_taken_for_wrong_credentials(code: str, text: bytes) -> None:
    assert not isinstance(refusal(LOGIN, b"A NO [%b] %b" % (code.encode(), text)), AccountError)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b"A NO [THROTTLED] Suggested Backoff Time: 299999 milliseconds", 299.999),
        (b"A NO Request is throttled. Suggested Backoff Time: 7", 0.007),
        (b"A NO too many login attempts, retry in 30 seconds", 30.0),
        (b"A NO too many login attempts, try again after 2 minutes", 120.0),
        (b"A NO [THROTTLED] Suggested Backoff Time: 999999999 milliseconds", 3600.0),
    ],
)
def test_hints_are_honoured_and_capped(line: bytes, seconds: float) -> None:
    assert refusal(LOGIN, line).retry_after_s == pytest.approx(seconds)


def test_no_hint_is_none() -> None:
    assert retry_hint_s("no time is named") is None


def test_a_refused_mailbox_never_stops_the_account() -> None:
    for rule in RULES:
        if rule.during == frozenset({During.MAILBOX}):
            assert isinstance(rule.error("x"), MailboxError)


def test_server_text_is_fit_for_a_log() -> None:
    text = clean_text(b"a\r\n2026 ERROR forged\x1b[31m \xe2\x80\xae x" + b"y" * 10_000)
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) == 160
    assert "\x1b" not in str(refusal(LOGIN, b"A NO \x1b[31mred"))
