"""Tries the login of an account that is not stored yet, and says in one sentence what is wrong with it.

Invariant: nothing in the mailbox is changed, and what is tried is exactly what a runner will do later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from streams.directory.accounts import AccountConnection, AccountStore
from streams.directory.credentials import CredentialBox
from streams.directory.sources import CredentialSources
from streams.errors import (
    AccountError,
    AddressRefused,
    ConnectionLost,
    CredentialsRefused,
    InsecureConnection,
    MailstreamsError,
    RetryLater,
)
from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.hosts import HostGate, HostPolicy, server_key
from streams.imap.oauth import OAuthProvider
from streams.imap.tls import client_tls_context
from streams.imap.values import Limits, Options
from streams.settings import Settings

SHOWN_CAPABILITIES: Final = ("IDLE", "CONDSTORE", "QRESYNC", "NOTIFY", "LIST-STATUS", "OBJECTID")

_NOT_THE_OWN: Final = "this provider wants an app password, or OAuth2, rather than the account's own password"
_SPOKE_PLAINLY: Final = "WRONG_VERSION_NUMBER"
"""How OpenSSL calls an answer that is no TLS."""
_NOBODY_LISTENS: Final = "ConnectionRefusedError"
_SAID_NOTHING: Final = "did not say in time what it is"
_HINTS: Final[Mapping[str, str]] = {
    "imap.gmail.com": _NOT_THE_OWN,
    "imap.mail.yahoo.com": _NOT_THE_OWN,
    "imap.mail.me.com": _NOT_THE_OWN,
    "imap.fastmail.com": _NOT_THE_OWN,
    "imap.aol.com": _NOT_THE_OWN,
    "outlook.office365.com": "this provider takes OAuth2 only: use --oauth-provider microsoft",
}


@dataclass(frozen=True, slots=True)
class Tried:
    """A login that worked. `connection` holds the credentials to store: a token may have been rotated by the trial."""

    connection: AccountConnection
    folders: int
    capabilities: tuple[str, ...]


class _Unstored:
    """Stands for the store while there is no row yet: what would be stored is kept."""

    def __init__(self, connection: AccountConnection) -> None:
        self.kept = connection

    async def connection(self, account_id: str) -> AccountConnection:
        return self.kept

    async def store_sealed(self, account_id: str, sealed: bytes, *, replacing: bytes | None = None) -> bool:
        self.kept = replace(self.kept, sealed=sealed)
        return True


class LoginTrial:
    """Tries logins. One for many accounts: it holds the TLS context, and keeps to the rate that a host allows."""

    def __init__(self, settings: Settings, box: CredentialBox, providers: Mapping[str, OAuthProvider]) -> None:
        self._settings = settings
        self._box = box
        self._providers = providers
        self._tls = client_tls_context(settings.IMAP_CA_FILE)
        self._gate = HostGate(HostPolicy(logins_per_s=settings.HOST_LOGINS_PER_S))
        self._policy = AddressPolicy(allow_private=settings.IMAP_ALLOW_PRIVATE)

    async def login(self, connection: AccountConnection) -> Tried:
        """Log in, list the folders, leave. Raises `MailstreamsError` whose text `sentence` makes one of."""
        unstored = _Unstored(connection)
        sources = CredentialSources(
            cast(AccountStore, unstored),
            self._box,
            credentials_dir=self._settings.CREDENTIALS_DIR,
            providers=self._providers,
        )
        if connection.tls == "plain" and not self._settings.IMAP_ALLOW_PLAINTEXT:
            raise InsecureConnection("accounts without TLS are only for servers where IMAP_ALLOW_PLAINTEXT is set")
        limits = Limits(
            connect_timeout_s=self._settings.IMAP_CONNECT_TIMEOUT_S,
            command_timeout_s=self._settings.IMAP_COMMAND_TIMEOUT_S,
        )
        try:
            async with self._gate.login(server_key(connection.host, connection.port)):
                session = await connect(
                    connection.endpoint,
                    limits=limits,
                    options=Options(),
                    tls_context=self._tls,
                    address_policy=self._policy,
                )
                try:
                    await session.login(sources.of(connection))
                    found = await session.list_mailboxes(with_status=False)
                    offered = tuple(name for name in SHOWN_CAPABILITIES if session.has(name))
                finally:
                    await session.close()
        finally:
            await sources.close()
        return Tried(unstored.kept, len(found.mailboxes), offered)


def _hint(error: MailstreamsError, text: str, host: str) -> str | None:
    """What is most often the cure."""
    match error:
        case CredentialsRefused():
            return _HINTS.get(host.lower())
        case AddressRefused():
            return (
                "check its spelling; addresses of private networks and of this machine are dialled only where"
                " IMAP_ALLOW_PRIVATE is set"
            )
        case InsecureConnection() if _SPOKE_PLAINLY in text:
            return "that port begins without TLS, try --tls starttls"
        case ConnectionLost() if _NOBODY_LISTENS in text:
            return "nothing listens there, check the host and its port"
        case RetryLater() if _SAID_NOTHING in text:
            return "that port may begin with TLS, try --tls tls"
    return None


def sentence(error: MailstreamsError, host: str) -> str:
    """What is wrong, in one sentence for the person who typed it."""
    text = " ".join(str(error).split()).rstrip(".")
    if (hint := _hint(error, text, host)) is not None:
        return f"{text}; {hint}."
    if isinstance(error, AccountError):
        return f"{text}."
    return f"{text}; nothing is wrong with the account as far as can be seen, try again later."
