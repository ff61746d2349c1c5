"""Sessions as the connector opens them: what the worker's metrics see of them, and when."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from streams.errors import ConnectionLost, CredentialsRefused
from streams.imap.hosts import HostGate, HostPolicy
from streams.imap.tls import client_tls_context
from streams.local.ports import free_port
from streams.observer import NoopObserver
from streams.sync.connections import AccountLink, Connector
from tests.fixtures.runner import Running
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import FULL, ImapServer


class Counting(NoopObserver):
    """Counts what sessions do."""

    def __init__(self) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self.ignored: Counter[tuple[str, str]] = Counter()
        self.received = 0
        self.connections = 0

    def imap_command(self, name: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.commands[name, outcome] += 1

    def imap_response_ignored(self, kind: str, reason: str) -> None:
        self.ignored[kind, reason] += 1

    def bytes_received(self, count: int) -> None:
        assert count >= 0
        self.received += count

    def connection_opened(self) -> None:
        self.connections += 1

    def connection_closed(self, reason: str) -> None:
        self.connections -= 1


def connector(running: Running, observer: Counting) -> Connector:
    gate = HostGate(HostPolicy(logins_per_s=1000))
    directory: Any = running.directory
    return Connector(running.settings, directory, running.sources, gate, client_tls_context(), observer)


async def test_w10_commands_and_bytes_are_counted_while_the_session_lives() -> None:
    observer = Counting()
    async with ImapServer([Account("user", "secret")], FULL) as server:
        server.bend("^LIST", lambda lines: [b"* MYSTERY 1\r\n", *lines])
        running = Running(server)
        opener, link = connector(running, observer), AccountLink(running.account_id)
        session = await opener.open(link)
        assert observer.commands["AUTHENTICATE", "OK"] + observer.commands["LOGIN", "OK"] == 1
        before = observer.received
        await session.list_mailboxes()
        assert observer.commands["LIST", "OK"] == 1
        assert observer.received > before
        assert sum(observer.ignored.values()) == 1
        assert observer.received == session.traffic.bytes_received
        await opener.close(session, reason="poll")
        assert observer.commands["LOGOUT", "OK"] == 1
        assert observer.received == session.traffic.bytes_received
        assert observer.connections == 0


async def test_w10_a_refused_login_is_seen_too() -> None:
    observer = Counting()
    async with ImapServer([Account("user", "another")], FULL) as server:
        running = Running(server)
        with pytest.raises(CredentialsRefused):
            await connector(running, observer).open(AccountLink(running.account_id))
        assert observer.commands["AUTHENTICATE", "NO"] + observer.commands["LOGIN", "NO"] >= 1
        assert observer.received > 0
        assert observer.connections == 0


async def test_s16_an_account_whose_port_is_wrong_holds_nobody_back() -> None:
    """Nothing answers at its port: that says nothing about the server that the others of the host use."""
    async with ImapServer([Account("user", "secret")], FULL) as server:
        running = Running(server)
        opener = connector(running, Counting())
        right = running.directory.row
        assert right is not None
        running.directory.row = replace(right, port=free_port())
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await opener.open(AccountLink(running.account_id))
        running.directory.row = right
        session = await opener.open(AccountLink(running.account_id))
        await opener.close(session, reason="poll")
        assert [state.failures for state in opener._gate.states()] == [2]  # they have nothing to do with each other
