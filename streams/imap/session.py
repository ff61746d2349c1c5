"""The commands that reading mail needs, over one connection.

Invariants: mailboxes are opened by EXAMINE and bodies fetched by PEEK, so that reading changes nothing; one operation
at a time; each capability is used only when offered, and its failing ends no session; an answer counts only with its
tagged OK; whatever came unasked waits in `take_changes`. An operation that is cancelled or left half-read takes the
connection with it, since the rest of its answer could be taken for the next one's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final, Literal

from pyroaring import BitMap

from streams.errors import (
    ConnectionLost,
    CredentialsRefused,
    InsecureConnection,
    MailboxError,
    MailboxUnusable,
    MailstreamsError,
    MalformedAnswer,
)
from streams.imap.changes import ChangeCollector
from streams.imap.connection import Exchange, ImapProtocol
from streams.imap.credentials import Credential, CredentialSource, OAuthToken, Password
from streams.imap.fetching import FetchStream
from streams.imap.protocol.codes import During, classify
from streams.imap.protocol.commands import (
    Command,
    LiteralMode,
    UnsafeArgument,
    astring,
    fetch_item,
    quoted,
    sequence_set,
)
from streams.imap.protocol.parser import canonical_name, capability_names
from streams.imap.protocol.responses import (
    Capability,
    Found,
    FoundExtended,
    Listed,
    Malformed,
    Namespaces,
    Response,
    ServerId,
    StatusTold,
    Tagged,
    Untagged,
)
from streams.imap.sasl import Dialogue, Mechanism, encoded, mechanisms
from streams.imap.selecting import SelectCollector
from streams.imap.values import (
    Changes,
    Endpoint,
    FetchChunk,
    IdleOutcome,
    ListAnswer,
    ListedMailbox,
    MailboxStatus,
    Options,
    QResync,
    SearchAnswer,
    Selected,
    TrafficCounters,
)

# Cyrus 3.6.1 (Debian 12) tells stray memory as MAILBOXID in STATUS, at times one that looks like an id.
_STRAY_STATUS_IDS: Final = re.compile(r"Cyrus\b.* (?:[12]\.|3\.[0-7]\b)", re.IGNORECASE)
_PIPELINED: Final = 50  # STATUS commands in flight at once
_ID_FIELD_BYTES: Final = 1024  # RFC 2971 section 3.3


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
    ) -> None:
        self._protocol = protocol
        self._endpoint = endpoint
        self._options = options
        self._limits = protocol.limits
        self._changes = ChangeCollector(protocol.limits.max_unasked_fetches)
        self._turn = asyncio.Lock()
        self._selected: bytes | None = None
        self._enabled: frozenset[str] = frozenset()
        self._authenticated = authenticated
        self._status_ids = True  # MAILBOXID in STATUS can be believed
        self._capabilities: frozenset[str] = frozenset()
        self._capabilities_told = False
        self._stirred = asyncio.Event()  # something came unasked, or the connection ended
        self._set_capabilities(capabilities)
        protocol.on_unasked = self._take_unasked
        protocol.on_failure = lambda _: self._stirred.set()

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server offers now, in upper case, without what `Options.disabled` hides."""
        return self._capabilities

    def has(self, capability: str) -> bool:
        """Whether the server offers it."""
        return capability in self._capabilities

    @property
    def enabled(self) -> frozenset[str]:
        """What ENABLE switched on."""
        return self._enabled

    @property
    def alive(self) -> bool:
        """Whether the connection can still be used."""
        return self._protocol.failure is None

    @property
    def failure(self) -> MailstreamsError | None:
        """Why it can not."""
        return self._protocol.failure

    @property
    def selected(self) -> bytes | None:
        """Wire name of the mailbox that is open."""
        return self._selected

    @property
    def exists(self) -> int | None:
        """Messages in the open mailbox, as last told."""
        return self._changes.exists

    @property
    def traffic(self) -> TrafficCounters:
        """What was moved so far."""
        return self._protocol.traffic

    @property
    def pending_changes(self) -> bool:
        """Whether `take_changes` would tell of anything."""
        return self._changes.pending

    def take_changes(self) -> Changes:
        """Everything that came unasked since the last call."""
        self._stirred.clear()
        return self._changes.take()

    def __repr__(self) -> str:
        return f"<ImapSession {'alive' if self.alive else 'ended'}>"

    def _set_capabilities(self, names: frozenset[str]) -> None:
        self._capabilities = names - self._options.disabled
        self._capabilities_told = True
        if self.has("LITERAL+"):
            self._protocol.literal_mode = LiteralMode.PLUS
        elif self.has("LITERAL-"):
            self._protocol.literal_mode = LiteralMode.MINUS
        else:
            self._protocol.literal_mode = LiteralMode.SYNCHRONISING

    def _take_unasked(self, response: Response) -> None:
        if isinstance(response, Capability):
            self._set_capabilities(response.names)
            return
        self._changes.add(response)
        if self._changes.pending:
            self._stirred.set()

    # --- how commands run -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _exclusive(self) -> AsyncGenerator[None, None]:
        async with self._turn:
            if self._protocol.failure is not None:
                raise self._protocol.failure
            yield

    async def _run(
        self,
        command: Command,
        on_untagged: Callable[[Response], bool] | None = None,
        *,
        during: During = During.COMMAND,
        timeout_s: float | None = None,
    ) -> Tagged:
        """A command that answers briefly. Raises what its refusal stands for."""
        tagged = await self._protocol.execute(
            command,
            on_untagged=on_untagged,
            timeout_s=self._limits.command_timeout_s if timeout_s is None else timeout_s,
        )
        return self._accept(tagged, during)

    def _accept(self, tagged: Tagged, during: During) -> Tagged:
        if tagged.condition != "OK":
            raise classify(during, tagged.condition, tagged.code, tagged.text)
        if tagged.code is not None:
            if tagged.code.name == "CAPABILITY":
                self._set_capabilities(capability_names(tagged.code.arguments))
            elif tagged.code.name in ("THROTTLED", "ALERT"):
                self._changes.add_condition(Untagged("OK", tagged.code, tagged.text))
        return tagged

    # --- login ----------------------------------------------------------------------------------------------------

    async def login(self, source: CredentialSource | Credential) -> None:
        """Authenticate, ask anew for the capabilities, and switch on what we use.

        A source is asked for its credentials now, and once more for fresh ones when a token is refused (case 74).

        Raises:
            CredentialsRefused, AccessDenied, InsecureConnection: somebody has to act.
            RetryLater: the server said "later", in whatever words.
        """
        async with self._exclusive():
            if not self._authenticated:
                if isinstance(source, Password | OAuthToken):
                    await self._authenticate(source)
                else:
                    await self._authenticate_from(source)
            self._protocol.state = "AUTH"
            if not self._capabilities_told:
                await self._ask_capabilities()
            await self._introduce()
            await self._enable()
            if self._options.compress and self.has("COMPRESS=DEFLATE"):
                await self._compress()

    async def _authenticate_from(self, source: CredentialSource) -> None:
        credential = await source.current()
        try:
            await self._authenticate(credential)
        except CredentialsRefused:
            if not isinstance(credential, OAuthToken) or not self.alive:
                raise
        else:
            return
        await self._authenticate(await source.current(force_refresh=True))

    async def _authenticate(self, credential: Credential) -> None:
        self._capabilities_told = False  # whatever was told before counts no more (case 61)
        self._protocol.redact = partial(scrubbed, credential)
        try:
            await self._offer(credential)
        finally:
            self._protocol.redact = None

    async def _offer(self, credential: Credential) -> None:
        encrypted = self._endpoint.tls != "plain"
        offers = mechanisms(
            credential, self._capabilities, encrypted=encrypted, host=self._endpoint.host, port=self._endpoint.port
        )
        tagged: Tagged | None = None
        detail = ""
        for mechanism in offers:
            tagged = await self._try_mechanism(mechanism)
            detail = mechanism.refusal
            if tagged.condition != "BAD":  # BAD: offered, but not understood; another way may work
                break
        if isinstance(credential, Password) and (tagged is None or tagged.condition == "BAD"):
            tagged = await self._login_command(credential)
        assert tagged is not None  # a token always has a mechanism to try
        if tagged.condition != "OK":
            text = scrubbed(credential, tagged.text) + (f" ({detail})".encode() if detail else b"")
            raise classify(During.LOGIN, tagged.condition, tagged.code, text)
        self._authenticated = True
        self._accept(tagged, During.LOGIN)

    async def _try_mechanism(self, mechanism: Mechanism) -> Tagged:
        initial = mechanism.initial()
        parts: tuple[bytes, ...] = (mechanism.name.encode(),)
        at_once = initial is not None and self.has("SASL-IR")
        if at_once and initial is not None:
            parts += (encoded(initial) or b"=",)  # RFC 4959 section 3
        dialogue = Dialogue(mechanism, initial, sent=at_once)
        tagged = await self._protocol.execute(
            Command("AUTHENTICATE", parts), on_continuation=dialogue.answer, timeout_s=self._limits.login_timeout_s
        )
        if dialogue.error is not None:
            raise dialogue.error
        if tagged.condition == "OK" and not mechanism.satisfied:
            raise InsecureConnection("the server accepted the login without proving that it knows the password")
        return tagged

    async def _login_command(self, credential: Password) -> Tagged:
        if self.has("LOGINDISABLED"):  # RFC 3501 section 7.2.1
            raise InsecureConnection("the server takes no password on this connection", code="login_disabled")
        try:
            command = Command(
                "LOGIN", (astring(credential.username.encode()), astring(credential.password.reveal().encode()))
            )
        except UnsafeArgument:
            raise CredentialsRefused(
                "a user name or password with control characters", code="credentials_malformed"
            ) from None
        return await self._protocol.execute(command, timeout_s=self._limits.login_timeout_s)

    async def _ask_capabilities(self) -> None:
        self._capabilities_told = False
        await self._run(Command("CAPABILITY"))
        if not self._capabilities_told:
            raise MalformedAnswer("the server told no capabilities")

    async def _introduce(self) -> None:
        """ID (RFC 2971): some hosts open no mailbox for a client that does not say its name."""
        if not self._options.send_id or not self.has("ID"):
            return
        told: dict[str, str] = {}

        def take(response: Response) -> bool:
            if isinstance(response, ServerId):
                told.update(response.fields)
                return True
            return False

        name = quoted(self._options.client_name.encode("ascii", "replace")[:_ID_FIELD_BYTES])
        await self._protocol.execute(
            Command("ID", (b'("name" ' + name + b")",)), on_untagged=take, timeout_s=self._limits.command_timeout_s
        )
        self._status_ids = not _STRAY_STATUS_IDS.match(f"{told.get('name', '')} {told.get('version', '')}")

    async def _enable(self) -> None:
        """ENABLE before the first mailbox is opened (case 12). What it confirms is not relied on."""
        if not self.has("ENABLE"):
            return
        wanted = [name for name in ("CONDSTORE", "QRESYNC") if self.has(name)]
        if self._options.utf8 and self.has("UTF8=ACCEPT"):
            wanted.append("UTF8=ACCEPT")
        if wanted and await self._tolerant(Command("ENABLE", tuple(name.encode() for name in wanted))):
            self._enabled = frozenset(wanted)

    async def _compress(self) -> None:
        tagged = await self._protocol.execute(
            Command("COMPRESS", (b"DEFLATE",)), timeout_s=self._limits.command_timeout_s, pauses=True
        )
        if tagged.condition == "OK":
            self._protocol.start_compression()
        self._protocol.unhalt()

    async def _tolerant(self, command: Command) -> bool:
        """A command whose refusal costs us a convenience only."""
        tagged = await self._protocol.execute(command, timeout_s=self._limits.command_timeout_s)
        return tagged.condition == "OK"

    # --- mailboxes ------------------------------------------------------------------------------------------------

    async def list_mailboxes(self, *, with_status: bool = True) -> ListAnswer:
        """All mailboxes, one for each canonical name (case 4); with their STATUS in the same round trip where offered.

        Raises:
            RetryLater, MailboxError: the list could not be had.
        """
        async with self._exclusive():
            returns: list[bytes] = []
            if self.has("SPECIAL-USE") and self.has("LIST-EXTENDED"):
                returns.append(b"SPECIAL-USE")
            status = with_status and self.has("LIST-STATUS")
            if status:
                returns.append(b"STATUS (" + b" ".join(self._status_items()) + b")")
            if returns:
                try:
                    return await self._list((b'""', b'"*"', b"RETURN", b"(" + b" ".join(returns) + b")"), status=status)
                except MailboxError:  # offered, and refused: the plain list must do
                    if not self.alive:
                        raise
            return await self._list((b'""', b'"*"'), status=False)

    async def _list(self, arguments: tuple[bytes, ...], *, status: bool) -> ListAnswer:
        found: dict[bytes, ListedMailbox] = {}
        statuses: dict[bytes, MailboxStatus] = {}
        unreadable = 0

        def take(response: Response) -> bool:
            nonlocal unreadable
            match response:
                case Listed(mailbox=mailbox):
                    if len(found) >= self._limits.max_list_entries and mailbox.wire_name not in found:
                        unreadable += 1
                    else:
                        known = found.get(mailbox.wire_name)
                        found[mailbox.wire_name] = mailbox if known is None else _merged(known, mailbox)
                case StatusTold(wire_name=wire_name, status=told) if status:
                    statuses[wire_name] = told
                case Malformed(kind="LIST" | "XLIST" | "LSUB"):
                    unreadable += 1
                case _:
                    return False
            return True

        await self._run(Command("LIST", arguments), take)
        mailboxes = tuple(_with_status(mailbox, statuses.get(name)) for name, mailbox in found.items())
        return ListAnswer(mailboxes, with_status=status, unreadable=unreadable)

    def _status_items(self) -> list[bytes]:
        items = [b"MESSAGES", b"UIDNEXT", b"UIDVALIDITY"]
        if self.has("CONDSTORE") or self.has("QRESYNC"):
            items.append(b"HIGHESTMODSEQ")
        if self.has("OBJECTID") and self._status_ids:
            items.append(b"MAILBOXID")  # last: see `parser`
        return items

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
        answers: dict[bytes, MailboxStatus | MailboxError] = {}
        async with self._exclusive():
            for at in range(0, len(wire_names), _PIPELINED):
                batch = wire_names[at : at + _PIPELINED]
                await self._status_batch(batch, answers)
        return answers

    async def _status_batch(self, batch: Sequence[bytes], answers: dict[bytes, MailboxStatus | MailboxError]) -> None:
        told: dict[bytes, MailboxStatus] = {}
        wanted = {canonical_name(name) for name in batch}

        def take(response: Response) -> bool:
            if isinstance(response, StatusTold) and response.wire_name in wanted:
                told[response.wire_name] = response.status
                return True
            return False

        items = b"(" + b" ".join(self._status_items()) + b")"
        flying: list[tuple[bytes, Exchange]] = []
        for name in batch:
            try:
                command = Command("STATUS", (astring(name), items))
            except UnsafeArgument:
                answers[name] = MailboxUnusable("the mailbox's name cannot be sent", code="mailbox_name_unsafe")
                continue
            flying.append(
                (name, self._protocol.start(command, on_untagged=take, timeout_s=self._limits.command_timeout_s))
            )
        for name, exchange in flying:
            try:
                self._accept(await self._protocol.finish(exchange), During.MAILBOX)
            except MailboxError as error:
                answers[name] = error
                continue
            status = told.get(canonical_name(name))
            answers[name] = MalformedAnswer("STATUS was not told") if status is None else status

    async def examine(self, wire_name: bytes, *, qresync: QResync | None = None) -> Selected:
        """Open a mailbox read-only (EXAMINE). What was collected about another one before is dropped.

        `qresync` asks for what changed since (RFC 7162 section 3.2.5) and needs QRESYNC to be offered.

        Raises:
            MailboxError: the server refuses it; then no mailbox is open.
        """
        async with self._exclusive():
            try:
                parts: tuple[Any, ...] = (astring(wire_name),)
            except UnsafeArgument:
                raise MailboxUnusable("the mailbox's name cannot be sent", code="mailbox_name_unsafe") from None
            if qresync is not None and "QRESYNC" in self._enabled:
                known = b"" if qresync.known is None else b" " + sequence_set(qresync.known)
                parts += (b"(QRESYNC (%d %d%s))" % (qresync.uidvalidity, qresync.modseq, known),)
            elif self.has("CONDSTORE") and not self._enabled & {"CONDSTORE", "QRESYNC"}:
                parts += (b"(CONDSTORE)",)
            self._selected = None
            collector = SelectCollector(wire_name, self._limits.max_unasked_fetches)
            try:
                # The tagged line pauses the stream: what follows it tells of the mailbox that is open by then, and must
                # not be taken until what was collected about the one before has been dropped.
                tagged = await self._protocol.execute(
                    Command("EXAMINE", parts),
                    on_untagged=collector.take,
                    timeout_s=self._limits.fetch_timeout_s if qresync is not None else self._limits.command_timeout_s,
                    pauses=True,
                )
                try:
                    self._accept(tagged, During.MAILBOX)
                except MailboxError:
                    if self.alive:
                        self._protocol.state = "AUTH"  # RFC 3501 section 6.3.1: a failed SELECT leaves none selected
                    raise
                self._protocol.state = "SELECTED"
                answer = collector.answer(tagged, modseqs=self.has("CONDSTORE") or self.has("QRESYNC"))
                self._changes.select(answer.exists)
                self._selected = wire_name
                return answer
            finally:
                self._protocol.unhalt()

    async def unselect(self) -> None:
        """Leave the mailbox where the server has UNSELECT (RFC 3691); a read-only CLOSE expunges nothing either."""
        async with self._exclusive():
            if self._selected is None:
                return
            await self._run(Command("UNSELECT" if self.has("UNSELECT") else "CLOSE"))
            self._selected = None
            self._protocol.state = "AUTH"

    async def namespace(self) -> Namespaces | None:
        """NAMESPACE (RFC 2342); None where it is not offered or was refused."""
        async with self._exclusive():
            if not self.has("NAMESPACE"):
                return None
            told: list[Namespaces] = []

            def take(response: Response) -> bool:
                if isinstance(response, Namespaces):
                    told.append(response)
                    return True
                return False

            tagged = await self._protocol.execute(
                Command("NAMESPACE"), on_untagged=take, timeout_s=self._limits.command_timeout_s
            )
            return told[-1] if told and tagged.condition == "OK" else None

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
        async with self._exclusive():
            command = _fetch_command(uids, items, changed_since, vanished=vanished)
            stream = FetchStream(self._protocol, self._changes, uids, items, chunk, earlier=vanished)
            async with aclosing(stream.run(command)) as parts:
                async for part in parts:
                    yield part
            self._accept(stream.tagged, During.COMMAND)

    async def uid_search(self, criteria: bytes = b"ALL", *, returns: Literal["all", "bounds"] = "all") -> SearchAnswer:
        """UIDs that match. By ESEARCH (RFC 4731) where offered, which answers in ranges.

        `returns="bounds"` asks for minimum, maximum and count alone; without ESEARCH they are taken from the full
        answer.

        Raises:
            MalformedAnswer: a result line did not parse: nothing may be concluded (case 24).
        """
        async with self._exclusive():
            if not self.has("ESEARCH"):
                return await self._plain_search(criteria)
            options = b"(ALL)" if returns == "all" else b"(MIN MAX COUNT)"
            answer: list[FoundExtended] = []
            malformed = False

            def take(response: Response) -> bool:
                nonlocal malformed
                match response:
                    case FoundExtended(tag=tag) if tag is None or tag == exchange.tag:
                        answer.append(response)
                    case Malformed(kind="ESEARCH" | "SEARCH"):
                        malformed = True
                    case Found():  # asked for ESEARCH, told otherwise
                        malformed = True
                    case _:
                        return False
                return True

            exchange = self._protocol.start(
                Command("UID SEARCH", (b"RETURN", options, criteria)),
                on_untagged=take,
                timeout_s=self._limits.command_timeout_s,
            )
            self._accept(await self._protocol.finish(exchange), During.COMMAND)
            if malformed or len(answer) > 1 or not all(found.uid for found in answer):
                raise MalformedAnswer("a search result that does not parse")
            if not answer:
                return SearchAnswer(BitMap(), stated=False)
            found = answer[0]
            uids = found.numbers if found.numbers is not None else BitMap()
            if found.count is not None and returns == "all" and found.count != len(uids):
                raise MalformedAnswer("a search result whose count is not that of its numbers")
            return SearchAnswer(
                uids, stated=True, modseq=found.modseq, minimum=found.minimum, maximum=found.maximum, count=found.count
            )

    async def _plain_search(self, criteria: bytes) -> SearchAnswer:
        uids = BitMap()
        stated = malformed = False
        modseq: int | None = None

        def take(response: Response) -> bool:
            nonlocal stated, malformed, modseq, uids
            match response:
                case Found(numbers=numbers, modseq=told):
                    stated = True
                    uids |= numbers
                    modseq = told if told is not None else modseq
                case Malformed(kind="SEARCH"):
                    malformed = True
                case _:
                    return False
            return True

        await self._run(Command("UID SEARCH", (criteria,)), take)
        if malformed:
            raise MalformedAnswer("a search result that does not parse")
        return SearchAnswer(
            uids,
            stated=stated,
            modseq=modseq,
            minimum=uids.min() if uids else None,
            maximum=uids.max() if uids else None,
            count=len(uids),
        )

    # --- waiting --------------------------------------------------------------------------------------------------

    async def noop(self) -> None:
        """Let the server tell what it has (NOOP)."""
        async with self._exclusive():
            await self._run(Command("NOOP"))

    async def idle(self, *, timeout_s: float | None = None, wake: asyncio.Event | None = None) -> IdleOutcome:
        """IDLE (RFC 2177) until something comes, `wake` is set, or it is time to begin anew (`Limits.idle_renew_s`).

        Returns at once when something is waiting already: what came between the last answer and the "+" counts (case
        28). The session is always out of IDLE afterwards, or ended.

        Raises:
            ConnectionLost, CommandTimedOut: the peer is gone, or silent where it owes an answer (case 78).
        """
        async with self._exclusive():
            if self._changes.pending:
                return IdleOutcome.DATA
            self._stirred.clear()
            begun: asyncio.Future[None] = self._protocol.loop.create_future()

            def on_continuation(_: bytes) -> bytes | None:
                if not begun.done():
                    begun.set_result(None)
                return None

            exchange = self._protocol.start(
                Command("IDLE"), on_continuation=on_continuation, timeout_s=self._limits.idle_answer_timeout_s
            )
            try:
                waits: set[asyncio.Future[Any]] = {begun, exchange.done}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if exchange.done.done():  # refused, or the connection ended
                    self._accept(exchange.done.result(), During.COMMAND)
                    raise MalformedAnswer("IDLE ended without having begun")
                exchange.deadline = None
                self._protocol.arm()
                renew_s = self._limits.idle_renew_s if timeout_s is None else min(timeout_s, self._limits.idle_renew_s)
                await self._first_of(exchange, wake, renew_s)
                exchange.deadline = self._protocol.loop.time() + self._limits.idle_answer_timeout_s
                self._protocol.arm()
                if not exchange.done.done():
                    self._protocol.send(b"DONE\r\n")
                self._accept(await exchange.done, During.COMMAND)
            except asyncio.CancelledError:
                self._protocol.fail(ConnectionLost("IDLE was given up", code="cancelled"))
                raise
            if self.pending_changes:
                return IdleOutcome.DATA
            return IdleOutcome.WAKE if wake is not None and wake.is_set() else IdleOutcome.RENEW

    async def _first_of(self, exchange: Exchange, wake: asyncio.Event | None, renew_s: float) -> None:
        """Wait for data, the caller's event, the end of IDLE, or the time."""
        tasks = [asyncio.ensure_future(self._stirred.wait())]
        if wake is not None:
            tasks.append(asyncio.ensure_future(wake.wait()))
        waits: list[asyncio.Future[Any]] = [exchange.done, *tasks]
        try:
            await asyncio.wait(waits, timeout=renew_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def notify(self, *, selected_items: Sequence[bytes] = ()) -> bool:
        """NOTIFY (RFC 5465) for all personal mailboxes: from then on they show in `Changes.statuses` and `listed`.

        `selected_items` are fetched by the server with each new message of the open mailbox. False: not offered,
        refused.
        """
        async with self._exclusive():
            if not self.has("NOTIFY"):
                return False
            items = b" (" + b" ".join(fetch_item(item) for item in (b"UID", *selected_items)) + b")"
            new = b"MessageNew" + (items if selected_items else b"")
            return await self._tolerant(
                Command(
                    "NOTIFY",
                    (
                        b"SET STATUS",
                        b"(selected (" + new + b" MessageExpunge FlagChange))",
                        b"(personal (MessageNew MessageExpunge FlagChange MailboxName))",
                    ),
                )
            )

    # --- the end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leave politely (LOGOUT), within `Limits.logout_timeout_s`, then without manners. Never raises."""
        protocol = self._protocol
        if protocol.failure is None:
            protocol.expect_end()
            try:
                async with asyncio.timeout(self._limits.logout_timeout_s):
                    async with self._turn:
                        await protocol.execute(Command("LOGOUT"), timeout_s=self._limits.logout_timeout_s)
            except (MailstreamsError, TimeoutError):
                pass  # it ends now in any case
            finally:
                self.abort()
        async with asyncio.timeout(self._limits.logout_timeout_s):
            await asyncio.shield(protocol.closed)

    def abort(self) -> None:
        """Drop the connection now."""
        self._protocol.expect_end()
        self._protocol.fail(ConnectionLost("the connection was closed", code="closed"))


def _fetch_command(uids: str, items: Sequence[bytes], changed_since: int | None, *, vanished: bool) -> Command:
    names = [fetch_item(item) for item in items]
    if not any(name.upper() == b"UID" for name in names):
        names.insert(0, b"UID")
    parts = [sequence_set(uids), b"(" + b" ".join(names) + b")"]
    if changed_since is not None:
        parts.append(b"(CHANGEDSINCE %d%s)" % (changed_since, b" VANISHED" if vanished else b""))
    return Command("UID FETCH", tuple(parts))


def _merged(old: ListedMailbox, new: ListedMailbox) -> ListedMailbox:
    """The same mailbox listed twice: attributes add up, and one line that opens it is enough to open it."""
    attributes = old.attributes | new.attributes
    return ListedMailbox(
        wire_name=old.wire_name,
        display_name=old.display_name,
        delimiter=old.delimiter or new.delimiter,
        attributes=attributes,
        special_use=old.special_use or new.special_use,
        selectable=old.selectable or new.selectable,
        old_name=old.old_name or new.old_name,
    )


def _with_status(mailbox: ListedMailbox, status: MailboxStatus | None) -> ListedMailbox:
    if status is None:
        return mailbox
    return ListedMailbox(
        wire_name=mailbox.wire_name,
        display_name=mailbox.display_name,
        delimiter=mailbox.delimiter,
        attributes=mailbox.attributes,
        special_use=mailbox.special_use,
        selectable=mailbox.selectable,
        mailbox_id=status.mailbox_id,
        status=status,
        old_name=mailbox.old_name,
    )


def scrubbed(credential: Credential, text: bytes) -> bytes:
    """A server's words about a login without the secret, in case it repeats it."""
    secret = (credential.password if isinstance(credential, Password) else credential.token).reveal().encode()
    for form in (secret, secret.replace(b"\\", b"\\\\").replace(b'"', b'\\"')):
        if len(form) > 2:
            text = text.replace(form, b"***").replace(encoded(form).rstrip(b"="), b"***")
    return text
