"""IMAP sessions for accounts: address and credentials from the directory, logins through the host's gate.

What was read of an account is kept (credentials encrypted), so that PostgreSQL being down stops no running account. A
refused login reads it again once, in case new credentials were stored meanwhile.
"""

from __future__ import annotations

import ssl
from collections import Counter
from typing import Protocol
from weakref import WeakKeyDictionary

from streams.directory.accounts import AccountConnection, AccountStore, UnknownAccount
from streams.errors import AccountError, CredentialsRefused, HostBusy, InsecureConnection
from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.credentials import CredentialSource
from streams.imap.hosts import HostGate, HostPolicy, server_key
from streams.imap.pacing import Rates, Turn
from streams.imap.session import ImapSession
from streams.imap.values import Limits, Options
from streams.observer import RuntimeObserver
from streams.settings import Settings


class NotLive(AccountError):
    """The account is gone, or somebody switched it off: its runner ends (row S9)."""

    code = "not_live"


class Sources(Protocol):
    """Where credentials come from (`streams.directory.sources.CredentialSources`)."""

    def of(self, connection: AccountConnection) -> CredentialSource:
        """Source of one account's credentials; it keeps them encrypted."""
        ...


class AccountLink:
    """What is remembered about reaching one account."""

    __slots__ = ("account_id", "connection", "refused", "source")

    def __init__(self, account_id: str) -> None:
        self.account_id = account_id
        self.connection: AccountConnection | None = None
        self.source: CredentialSource | None = None
        self.refused: set[str] = set()
        """What its server offers and refuses (`ImapSession.refused`): not tried again with each connection."""

    def forget(self) -> None:
        """Something about the account changed: read it again before the next login."""
        self.connection = None
        self.source = None
        self.refused.clear()


def host_policy(settings: Settings) -> HostPolicy:
    """What the settings allow at each mail host, all workers together."""
    history = Rates(settings.HOST_BACKFILL_MESSAGES_PER_S, settings.HOST_BACKFILL_BYTES_PER_S)
    return HostPolicy(logins_per_s=settings.HOST_LOGINS_PER_S, history=history)


class SessionMeter:
    """Tells the worker's observer what one session does, as it goes: connections of hot accounts last for days."""

    __slots__ = ("_counted", "_observer", "server", "session")

    def __init__(self, observer: RuntimeObserver, server: str) -> None:
        self.server = server
        self._observer = observer
        self._counted = 0
        self.session: ImapSession | None = None

    def command_finished(self, name: str, seconds: float, outcome: str) -> None:
        """Count it, and the bytes that came since the last one."""
        self._observer.imap_command(name, outcome, seconds)
        self.count_bytes()

    def response_ignored(self, kind: str, reason: str) -> None:
        """Count it."""
        self._observer.imap_response_ignored(kind, reason)

    def session_ended(self, code: str) -> None:
        """`Connector.close` tells why."""

    def count_bytes(self) -> None:
        """What was received and not counted yet."""
        if self.session is not None:
            received = self.session.traffic.bytes_received
            self._observer.bytes_received(received - self._counted)
            self._counted = received


class Connector:
    """Opens sessions for all accounts of a process."""

    def __init__(
        self,
        settings: Settings,
        store: AccountStore,
        sources: Sources,
        gate: HostGate,
        tls_context: ssl.SSLContext,
        observer: RuntimeObserver,
    ) -> None:
        self._settings = settings
        self._store = store
        self._sources = sources
        self._gate = gate
        self._tls = tls_context
        self._observer = observer
        self._policy = AddressPolicy(allow_private=settings.IMAP_ALLOW_PRIVATE)
        self._limits = Limits(
            connect_timeout_s=settings.IMAP_CONNECT_TIMEOUT_S,
            command_timeout_s=settings.IMAP_COMMAND_TIMEOUT_S,
            idle_renew_s=settings.IMAP_IDLE_RENEW_S,
            max_literal_bytes=settings.IMAP_MAX_LITERAL_BYTES,
            max_line_bytes=settings.IMAP_MAX_LINE_BYTES,
        )
        self._options = Options(compress=settings.IMAP_COMPRESS)
        self._open: Counter[str] = Counter()
        self._meters: WeakKeyDictionary[ImapSession, SessionMeter] = WeakKeyDictionary()

    @property
    def store(self) -> AccountStore:
        """The directory."""
        return self._store

    async def open(self, link: AccountLink) -> ImapSession:
        """A session that is logged in. Close it with `close`.

        Raises `NotLive`, other `AccountError`s, or `RetryLater`.
        """
        fresh = link.connection is None
        connection = await self._connection(link)
        try:
            return await self._login(link, connection)
        except CredentialsRefused:
            if fresh:
                raise
            link.forget()
            again = await self._connection(link)
            if (again.version, again.sealed) == (connection.version, connection.sealed):
                raise
            return await self._login(link, again)

    async def _connection(self, link: AccountLink) -> AccountConnection:
        if link.connection is None:
            try:
                link.connection = await self._store.connection(link.account_id)
            except UnknownAccount:
                raise NotLive("the account does not exist any more") from None
        connection = link.connection
        if connection.state != "live":
            link.forget()
            raise NotLive(f"the account is {connection.state}")
        if link.source is None:
            link.source = self._sources.of(connection)
        return connection

    async def _login(self, link: AccountLink, connection: AccountConnection) -> ImapSession:
        if connection.tls == "plain" and not self._settings.IMAP_ALLOW_PLAINTEXT:
            raise InsecureConnection("the account is set to no TLS, and IMAP_ALLOW_PLAINTEXT is off")
        host = server_key(connection.host, connection.port)
        if self._open[host] >= self._settings.HOST_CONNECTIONS:
            raise HostBusy("HOST_CONNECTIONS are open already", code="host_connections")
        assert link.source is not None
        self._open[host] += 1
        meter = SessionMeter(self._observer, host)
        try:
            async with self._gate.login(host):
                session = await connect(
                    connection.endpoint,
                    limits=self._limits,
                    options=self._options,
                    tls_context=self._tls,
                    address_policy=self._policy,
                    refused=link.refused,
                    observer=meter,
                )
                meter.session = session
                try:
                    await session.login(link.source)
                except BaseException:
                    session.abort()
                    raise
        except BaseException:
            self._open[host] -= 1
            meter.count_bytes()
            raise
        self._observer.connection_opened()
        self._meters[session] = meter
        return session

    async def close(self, session: ImapSession, *, reason: str) -> None:
        """LOGOUT within its deadline and forget the session. Never raises on the network."""
        self._observer.connection_closed(reason)
        meter = self._meters.pop(session)
        self._open[meter.server] -= 1
        try:
            if session.alive and reason != "cancelled":
                await session.close()
            else:
                session.abort()
        finally:
            meter.count_bytes()
            meter.session = None

    def history_turn_now(self, host: str) -> Turn | None:
        """The same without waiting; None when it has to be waited for."""
        return self._gate.history_turn_now(host)

    async def history_turn(self, host: str, *, timeout_s: float = 600.0) -> Turn:
        """Wait until one more window of history may be read from the host. Raises `RetryLater`."""
        return await self._gate.history_turn(host, timeout_s=timeout_s)

    def share(self, workers: int) -> None:
        """How many workers there are: each takes its part of what `HOST_LOGINS_PER_S` and the like allow."""
        self._gate.set_workers(workers)

    def slow_down(self, host: str, retry_after_s: float | None) -> None:
        """A session was told to wait."""
        self._gate.slow_down(host, retry_after_s=retry_after_s)
