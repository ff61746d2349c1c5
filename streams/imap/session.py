"""The commands that reading mail needs, over one connection.

Invariants: mailboxes are opened by EXAMINE and bodies fetched by PEEK, so that reading changes nothing; one operation
at a time; each capability is used only when offered, and its failing ends no session; an answer counts only with its
tagged OK; whatever came unasked waits in `take_changes`. An operation that is cancelled or left half-read takes the
connection with it, since the rest of its answer could be taken for the next one's.

The operations themselves are in `authenticating`, `listing`, `selecting`, `fetching`, `searching` and `waiting`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Literal

from streams.errors import ConnectionLost, MailboxError, MailstreamsError
from streams.imap import authenticating, listing, searching, selecting, waiting
from streams.imap.channel import Channel
from streams.imap.connection import ImapProtocol
from streams.imap.credentials import Credential, CredentialSource
from streams.imap.errors import CommandRejected
from streams.imap.fetching import MODSEQ_USE, FetchStream, fetch_command, without_modseq
from streams.imap.protocol.codes import During
from streams.imap.protocol.commands import Command
from streams.imap.protocol.responses import Namespaces
from streams.imap.values import (
    Changes,
    Endpoint,
    FetchChunk,
    IdleOutcome,
    ListAnswer,
    MailboxStatus,
    Options,
    QResync,
    SearchAnswer,
    Selected,
    TrafficCounters,
)


class ImapSession:
    """A session as `connecting.connect` makes it: the greeting is read, TLS is up, `login` comes next."""

    def __init__(
        self,
        protocol: ImapProtocol,
        endpoint: Endpoint,
        options: Options,
        capabilities: frozenset[str],
        *,
        authenticated: bool,
        refused: set[str] | None = None,
    ) -> None:
        self._protocol = protocol
        self._channel = Channel(protocol, endpoint, options, capabilities, authenticated=authenticated, refused=refused)

    def __repr__(self) -> str:
        return f"<ImapSession {'alive' if self.alive else 'ended'}>"

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server offers now, in upper case, without what `Options.disabled` hides or the server refused."""
        return self._channel.capabilities

    def has(self, capability: str) -> bool:
        """Whether the server offers it."""
        return self._channel.has(capability)

    @property
    def enabled(self) -> frozenset[str]:
        """What ENABLE switched on."""
        return self._channel.enabled

    @property
    def refused(self) -> frozenset[str]:
        """What was offered and did not work, and is done without: capabilities, or uses such as `STATUS=MAILBOXID`."""
        return frozenset(self._channel.refused)

    @property
    def alive(self) -> bool:
        """Whether the connection can still be used."""
        return self._channel.alive

    @property
    def failure(self) -> MailstreamsError | None:
        """Why it can not."""
        return self._protocol.failure

    @property
    def selected(self) -> bytes | None:
        """Wire name of the mailbox that is open."""
        return self._channel.selected

    @property
    def opened_as(self) -> tuple[int | None, str | None]:
        """UIDVALIDITY and MAILBOXID of the mailbox that is open, as they were told when it was opened."""
        return self._channel.opened_as

    @property
    def exists(self) -> int | None:
        """Messages in the open mailbox, as last told."""
        return self._channel.changes.exists

    @property
    def traffic(self) -> TrafficCounters:
        """What was moved so far."""
        return self._protocol.traffic

    @property
    def pending_changes(self) -> bool:
        """Whether `take_changes` would tell of anything."""
        return self._channel.has_changes()

    def take_changes(self) -> Changes:
        """Everything that came unasked since the last call."""
        self._channel.stirred.clear()
        return self._channel.changes.take()

    # --- login and mailboxes --------------------------------------------------------------------------------------

    async def login(self, source: CredentialSource | Credential) -> None:
        """Authenticate, ask anew for the capabilities, and switch on what we use.

        A source is asked for its credentials now, and once more for fresh ones when a token is refused (case 74).

        Raises:
            CredentialsRefused, AccessDenied, InsecureConnection: somebody has to act.
            RetryLater: the server said "later", in whatever words.
        """
        async with self._channel.exclusive():
            await authenticating.log_in(self._channel, source)

    async def list_mailboxes(self, *, with_status: bool = True) -> ListAnswer:
        """All mailboxes, one for each canonical name (case 4); with their STATUS in the same round trip where offered.

        Raises:
            RetryLater, MailboxError: the list could not be had.
        """
        async with self._channel.exclusive():
            return await listing.list_mailboxes(self._channel, with_status=with_status)

    async def status(self, wire_name: bytes) -> MailboxStatus:
        """STATUS of one mailbox.

        Raises:
            MailboxError: the server refuses it, or its answer lacks the mailbox.
        """
        answer = (await self.statuses([wire_name]))[wire_name]
        if isinstance(answer, MailboxError):
            raise answer
        return answer

    async def statuses(self, wire_names: Sequence[bytes]) -> dict[bytes, MailboxStatus | MailboxError]:
        """STATUS of many mailboxes, many commands in flight at once. One that is refused costs only itself."""
        async with self._channel.exclusive():
            return await listing.statuses(self._channel, wire_names)

    async def namespace(self) -> Namespaces | None:
        """NAMESPACE (RFC 2342); None where it is not offered or was refused."""
        async with self._channel.exclusive():
            return await listing.namespace(self._channel)

    async def examine(self, wire_name: bytes, *, qresync: QResync | None = None) -> Selected:
        """Open a mailbox read-only (EXAMINE). What was collected about another one before is dropped.

        `qresync` asks for what changed since (RFC 7162 section 3.2.5) and needs QRESYNC to be offered.

        Raises:
            MailboxError: the server refuses it; then no mailbox is open.
        """
        async with self._channel.exclusive():
            return await selecting.examine(self._channel, wire_name, qresync)

    async def unselect(self) -> None:
        """Leave the mailbox where the server has UNSELECT (RFC 3691); a read-only CLOSE expunges nothing either."""
        async with self._channel.exclusive():
            await selecting.unselect(self._channel)

    # --- messages -------------------------------------------------------------------------------------------------

    async def uid_fetch(
        self,
        uids: str,
        items: Sequence[bytes],
        *,
        changed_since: int | None = None,
        vanished: bool = False,
        chunk: int = 500,
    ) -> AsyncGenerator[FetchChunk, None]:
        """FETCH by UID, in chunks of at most `chunk` messages while the answer runs in. UID need not be among `items`.

        Memory is bounded by a few chunks: when the reader falls behind, the socket is not read. Only UIDs that were
        asked for come out; data about others waits in `take_changes`. The generator's normal end means that the
        tagged OK was seen. Close it (`contextlib.aclosing`): one that is left early takes the connection with it.

        `changed_since` needs CONDSTORE, `vanished` needs QRESYNC (RFC 7162 sections 3.1.4.1 and 3.2.6).

        Raises:
            MailboxError: refused. RetryLater: the connection ended, or the server wants us to wait.
        """
        channel = self._channel
        async with channel.exclusive():
            if MODSEQ_USE in channel.refused and changed_since is None:
                items = without_modseq(items)
            stream = FetchStream(self._protocol, channel.changes, uids, items, chunk, earlier=vanished)
            answered = False
            async with aclosing(stream.run(fetch_command(uids, items, changed_since, vanished=vanished))) as parts:
                async for part in parts:
                    answered = True
                    yield part
            try:
                channel.accept(stream.tagged, During.COMMAND)
            except CommandRejected as error:
                fewer = without_modseq(items)
                known = answered or MODSEQ_USE in channel.proven
                if known or changed_since is not None or len(fewer) == len(items):
                    raise
                refusal = error
            else:
                if b"MODSEQ" in items:
                    channel.proven.add(MODSEQ_USE)
                return
            stream = FetchStream(self._protocol, channel.changes, uids, fewer, chunk, earlier=vanished)
            async with aclosing(stream.run(fetch_command(uids, fewer, None, vanished=vanished))) as parts:
                async for part in parts:
                    yield part
            channel.accept(stream.tagged, During.COMMAND)
            channel.refuse(MODSEQ_USE, error=refusal)

    async def uid_search(self, criteria: bytes = b"ALL", *, returns: Literal["all", "bounds"] = "all") -> SearchAnswer:
        """UIDs that match. By ESEARCH (RFC 4731) where offered, which answers in ranges; by SEARCH where it is refused.

        `returns="bounds"` asks for minimum, maximum and count alone; without ESEARCH they are taken from the full
        answer.

        Raises:
            MalformedAnswer: a result line did not parse: nothing may be concluded (case 24).
        """
        async with self._channel.exclusive():
            return await searching.uid_search(self._channel, criteria, returns)

    # --- waiting and ending ---------------------------------------------------------------------------------------

    async def noop(self) -> None:
        """Let the server tell what it has (NOOP)."""
        async with self._channel.exclusive():
            await self._channel.run(Command("NOOP"))

    async def idle(self, *, timeout_s: float | None = None, wake: asyncio.Event | None = None) -> IdleOutcome:
        """IDLE (RFC 2177) until something comes, `wake` is set, or it is time to begin anew (`Limits.idle_renew_s`).

        Returns at once when something is waiting already: what came between the last answer and the "+" counts (case
        28). The session is always out of IDLE afterwards, or ended.

        Raises:
            ConnectionLost, CommandTimedOut: the peer is gone, or silent where it owes an answer (case 78).
        """
        async with self._channel.exclusive():
            return await waiting.idle(self._channel, timeout_s, wake)

    async def notify(self, *, selected_items: Sequence[bytes] = ()) -> bool:
        """NOTIFY (RFC 5465) for all personal mailboxes: from then on they show in `Changes.statuses` and `listed`.

        `selected_items` are fetched by the server with each new message of the open mailbox. False: not offered,
        refused.
        """
        async with self._channel.exclusive():
            return await waiting.notify(self._channel, selected_items)

    async def close(self) -> None:
        """Leave politely (LOGOUT), within `Limits.logout_timeout_s`, then without manners. Never raises."""
        protocol, limit_s = self._protocol, self._protocol.limits.logout_timeout_s
        if protocol.failure is None:
            protocol.expect_end()
            try:
                async with asyncio.timeout(limit_s), self._channel.turn:
                    await protocol.execute(Command("LOGOUT"), timeout_s=limit_s)
            except (MailstreamsError, TimeoutError):
                pass  # it ends now in any case
            finally:
                self.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await asyncio.shield(protocol.closed)

    def abort(self) -> None:
        """Drop the connection now."""
        self._protocol.expect_end()
        self._protocol.fail(ConnectionLost("the connection was closed", code="closed"))
