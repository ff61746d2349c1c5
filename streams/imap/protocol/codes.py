"""What a refusal means: one table from response codes and well-known texts to the error that says who must act.

Sources: RFC 5530, RFC 3501 section 7.1, RFC 9051, RFC 7162, Gmail's and Exchange's documented and seen texts.
Invariants: the first row that matches decides; a code outranks a text except where hosts are known to send both and
mean the text; a server that says "later" in any way never counts as one that refuses credentials (cases 71 and 72).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from streams.errors import (
    AccessDenied,
    ConnectionLost,
    CredentialsRefused,
    HostBusy,
    InsecureConnection,
    MailboxGone,
    MailboxUnusable,
    MailstreamsError,
    RetryLater,
)
from streams.imap.errors import CommandRejected
from streams.imap.protocol.responses import Code, Condition


class During(Enum):
    """What was going on when the server refused."""

    GREETING = "greeting"
    LOGIN = "login"
    MAILBOX = "mailbox"  # SELECT, EXAMINE, STATUS: a NO is about that mailbox
    COMMAND = "command"  # anything else after login
    BYE = "bye"


ANY: Final = frozenset(During)
_START: Final = frozenset({During.GREETING, During.LOGIN})
_LOGIN: Final = frozenset({During.LOGIN})
_LATER: Final = frozenset({During.MAILBOX, During.COMMAND})
_GONE: Final = frozenset({During.GREETING, During.BYE})


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: it matches by any of `codes`, or by `text` (searched, case ignored), during one of `during`."""

    error: Callable[..., MailstreamsError]
    code: str
    codes: frozenset[str] = frozenset()
    text: re.Pattern[str] | None = None
    during: frozenset[During] = ANY
    retry_after_s: float | None = None

    def matches(self, during: During, name: str, text: str) -> bool:
        """Whether this row decides."""
        if during not in self.during:
            return False
        return name in self.codes or (self.text is not None and self.text.search(text) is not None)


def _codes(*names: str) -> frozenset[str]:
    return frozenset(names)


def _text(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


RULES: Final[tuple[Rule, ...]] = (
    # --- Slow down. Texts first: they come with [ALERT], [UNAVAILABLE], [AUTHENTICATIONFAILED] or no code at all (72).
    Rule(
        HostBusy,
        "rate_limited",
        text=_text(
            r"too many (?:login|auth\w*|failed|command)\w* ?(?:attempts|requests)?",
            r"too many (?:simultaneous )?connections? (?:from|for) (?:your|this|the same|one) (?:ip|host|address)",
            r"(?:login|connection) rate (?:limit|exceeded)",
            r"rate.?limit",
            r"try again later.*(?:blocked|locked)",
            r"temporarily (?:blocked|locked|banned)",
        ),
    ),
    Rule(
        RetryLater,
        "too_many_connections",
        text=_text(
            r"too many (?:simultaneous|concurrent|open|imap)? ?(?:connections|sessions)",
            r"maximum (?:number of )?(?:connections|sessions)",
            r"connection (?:limit|count) (?:exceeded|reached)",
            r"connections? (?:per user )?(?:exceeded|limit reached)",
        ),
        retry_after_s=60.0,
    ),
    Rule(
        RetryLater,
        "throttled",
        codes=_codes("THROTTLED"),
        text=_text(
            r"throttl", r"suggested backoff time", r"command or bandwidth limits", r"bandwidth (?:limit|exceeded)"
        ),
        retry_after_s=300.0,
    ),
    Rule(
        RetryLater,
        "quota",
        codes=_codes("OVERQUOTA"),
        during=_START | {During.BYE, During.COMMAND},
        retry_after_s=900.0,
    ),
    Rule(MailboxUnusable, "quota", codes=_codes("OVERQUOTA"), during=frozenset({During.MAILBOX}), retry_after_s=900.0),
    Rule(HostBusy, "limit", codes=_codes("LIMIT"), during=_GONE | _LOGIN),
    # --- Sessions that ended for a reason of their own.
    Rule(
        ConnectionLost,
        "session_expired",
        text=_text(r"access ?token ?expired", r"session (?:invalidated|expired)", r"token (?:has )?expired"),
        during=frozenset({During.BYE, During.COMMAND, During.MAILBOX}),
    ),
    # --- Authenticated, but there is nothing to be had (73). BAD in Exchange.
    Rule(
        AccessDenied,
        "access_denied",
        text=_text(
            r"authenticated but not connected",
            r"imap (?:access |use |service )?(?:is |has been )?(?:disabled|not enabled|not allowed|not permitted)",
            r"not enabled for imap",
            r"disabled for imap",
            r"unsafe login",
        ),
    ),
    Rule(
        AccessDenied,
        "web_login_required",
        codes=_codes("WEBALERT"),
        text=_text(r"log ?in via (?:your )?web", r"web login required"),
        during=_START,
    ),
    # --- RFC 5530 at login.
    Rule(
        RetryLater,
        "temporary",
        codes=_codes("UNAVAILABLE", "SERVERBUG", "CORRUPTION", "INUSE"),
        text=_text(
            r"temporar(?:y|ily)",
            r"try again",
            r"server (?:is )?(?:unavailable|busy|shutting down)",
            r"service (?:is )?(?:unavailable|not available)",
            r"internal (?:server )?error",
            r"system error",
            r"lookup failed",
            r"backend (?:error|unavailable)",
            r"timed? ?out",
        ),
        during=_START,
    ),
    Rule(
        CredentialsRefused,
        "app_password_required",
        text=_text(r"application.specific password", r"app(?:lication)? password (?:is )?required"),
        during=_LOGIN,
    ),
    Rule(CredentialsRefused, "credentials_expired", codes=_codes("EXPIRED"), during=_LOGIN),
    Rule(AccessDenied, "access_denied", codes=_codes("AUTHORIZATIONFAILED", "NOPERM", "CONTACTADMIN"), during=_START),
    Rule(InsecureConnection, "tls_required", codes=_codes("PRIVACYREQUIRED"), during=_START),
    Rule(
        CredentialsRefused,
        "credentials_refused",
        codes=_codes("AUTHENTICATIONFAILED"),
        text=_text(
            r"invalid (?:credentials|login|user|password)",
            r"(?:login|authenticat\w*) (?:failed|failure|rejected|denied|unsuccessful)",
            r"(?:wrong|incorrect|bad) (?:user ?name|password|credentials|login)",
        ),
        during=_LOGIN,
    ),
    # --- One mailbox.
    Rule(
        MailboxGone,
        "mailbox_gone",
        codes=_codes("NONEXISTENT", "TRYCREATE"),
        text=_text(
            r"(?:mailbox|folder) (?:\S+ )?(?:does(?:n't| not) exist|not found|is not found|unknown)",
            r"(?:unknown|no such|non-?existent|nonexistent) (?:mailbox|folder)",
            r"can't open (?:mailbox|folder).*no such",
        ),
        during=frozenset({During.MAILBOX}),
    ),
    Rule(
        MailboxUnusable,
        "mailbox_permission",
        codes=_codes("NOPERM", "AUTHORIZATIONFAILED", "CONTACTADMIN"),
        text=_text(r"permission denied", r"access denied", r"not permitted", r"not authori[sz]ed"),
        during=frozenset({During.MAILBOX}),
    ),
    Rule(
        MailboxUnusable,
        "mailbox_busy",
        codes=_codes("INUSE", "EXPUNGEISSUED"),
        text=_text(r"(?:mailbox|folder) (?:is )?(?:locked|in use|busy)"),
        during=frozenset({During.MAILBOX}),
        retry_after_s=60.0,
    ),
    Rule(
        MailboxUnusable,
        "mailbox_damaged",  # the server has it, and cannot read it now
        codes=_codes("CORRUPTION", "SERVERBUG"),
        during=frozenset({During.MAILBOX}),
    ),
    Rule(MailboxUnusable, "mailbox_unusable", codes=_codes("CANNOT"), during=frozenset({During.MAILBOX})),
    Rule(
        MailboxUnusable,
        "mailbox_not_selectable",
        text=_text(r"not selectable", r"noselect", r"is not a mailbox"),
        during=frozenset({During.MAILBOX}),
    ),
    # --- After login.
    Rule(CommandRejected, "limit", codes=_codes("LIMIT"), during=_LATER),
    Rule(
        RetryLater,
        "temporary",
        codes=_codes("UNAVAILABLE", "INUSE", "EXPUNGEISSUED"),
        text=_text(r"temporar(?:y|ily)", r"try again", r"server (?:is )?(?:unavailable|busy)", r"system error"),
        during=_LATER | {During.BYE},
    ),
    Rule(AccessDenied, "access_denied", codes=_codes("AUTHORIZATIONFAILED"), during=frozenset({During.COMMAND})),
    Rule(
        CommandRejected,
        "command_rejected",
        codes=_codes("CLIENTBUG", "SERVERBUG", "CORRUPTION", "CANNOT", "NOPERM", "CONTACTADMIN"),
        during=frozenset({During.COMMAND}),
    ),
)

# What a NO or BAD means that no row knows.
_DEFAULT_NO: Final[dict[During, tuple[Callable[..., MailstreamsError], str]]] = {
    During.GREETING: (ConnectionLost, "refused_at_greeting"),
    During.LOGIN: (CredentialsRefused, "credentials_refused"),
    During.MAILBOX: (MailboxUnusable, "mailbox_unusable"),
    During.COMMAND: (CommandRejected, "command_rejected"),
    During.BYE: (ConnectionLost, "connection_lost"),
}
_DEFAULT_BAD: Final[dict[During, tuple[Callable[..., MailstreamsError], str]]] = {
    **_DEFAULT_NO,
    During.LOGIN: (RetryLater, "login_rejected"),  # a syntax the server does not like says nothing about the password
    During.MAILBOX: (CommandRejected, "command_rejected"),
}

_BACKOFF = re.compile(r"backoff time[: ]+(\d{1,9}) ?(milliseconds|ms|seconds|s)?", re.IGNORECASE)
_RETRY_IN = re.compile(r"(?:retry|again) (?:in|after) (\d{1,6}) ?(seconds?|s|minutes?|min|m)\b", re.IGNORECASE)
_MAX_HINT_S: Final = 3600.0  # a server's wish beyond this is taken as this
_MAX_TEXT: Final = 160


def clean_text(raw: bytes | str, *, limit: int = _MAX_TEXT) -> str:
    """Server text fit for a message or a log: printable, one line, short."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    text = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def retry_hint_s(text: str) -> float | None:
    """Seconds that the server asks us to wait; Exchange gives milliseconds ("Suggested Backoff Time")."""
    match = _BACKOFF.search(text)
    if match is not None:
        unit = (match[2] or "milliseconds").lower()
        seconds = int(match[1]) / (1000 if unit in ("milliseconds", "ms") else 1)
        return min(seconds, _MAX_HINT_S)
    match = _RETRY_IN.search(text)
    if match is not None:
        return min(int(match[1]) * (60.0 if match[2].lower().startswith("m") else 1.0), _MAX_HINT_S)
    return None


def classify(during: During, condition: Condition, code: Code | None, text: bytes | str) -> MailstreamsError:
    """The error that a refusal stands for. `text` must not hold a secret: it becomes part of the message."""
    words = clean_text(text, limit=1000)
    name = code.name if code is not None else ""
    hint = retry_hint_s(words)
    message = _message(during, condition, name, clean_text(words))
    for rule in RULES:
        if rule.matches(during, name, words):
            return rule.error(message, code=rule.code, retry_after_s=hint if hint is not None else rule.retry_after_s)
    error, default_code = (_DEFAULT_BAD if condition == "BAD" else _DEFAULT_NO)[during]
    return error(message, code=default_code, retry_after_s=hint)


_WHAT: Final = {
    During.GREETING: "the server refused the connection",
    During.LOGIN: "the server refused the login",
    During.MAILBOX: "the server refused the mailbox",
    During.COMMAND: "the server refused a command",
    During.BYE: "the server ended the session",
}


def _message(during: During, condition: Condition, name: str, words: str) -> str:
    label = f" [{clean_text(name, limit=40)}]" if name else ""
    return f"{_WHAT[during]}: {condition}{label} {words}".rstrip()
