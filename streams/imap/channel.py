"""What all operations of a session share: the connection, whose turn it is, and what is known of the server.

Invariants: one operation at a time; capabilities are those told last, without what `Options.disabled` hides and what
was offered and then refused; what no operation took waits in `changes`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from streams.imap.changes import ChangeCollector
from streams.imap.connection import ImapProtocol
from streams.imap.protocol.codes import During, classify
from streams.imap.protocol.commands import Command, LiteralMode
from streams.imap.protocol.parser import capability_names
from streams.imap.protocol.responses import Capability, Response, Tagged, Untagged
from streams.imap.values import Endpoint, Options

log = logging.getLogger(__name__)


class Channel:
    """Used by the modules of the session only."""

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
        self.protocol = protocol
        self.endpoint = endpoint
        self.options = options
        self.limits = protocol.limits
        self.changes = ChangeCollector(protocol.limits.max_unasked_fetches)
        self.turn = asyncio.Lock()
        self.selected: bytes | None = None  # wire name of the mailbox that is open
        self.opened_as: tuple[int | None, str | None] = (None, None)  # its UIDVALIDITY and MAILBOXID, as told then
        self.enabled: frozenset[str] = frozenset()
        self.authenticated = authenticated
        self.status_ids = True  # MAILBOXID in STATUS can be believed
        self.refused: set[str] = refused if refused is not None else set()
        """What was offered and does not work: capabilities, or a use of one such as `STATUS=MAILBOXID`. The caller may
        keep it for the account's next session.
        """
        self.proven: set[str] = set()  # uses that this server is known to answer
        self._offered: frozenset[str] = frozenset()
        self.capabilities_told = False
        self.stirred = asyncio.Event()  # something came unasked, or the connection ended
        self.set_capabilities(capabilities)
        protocol.on_unasked = self._take_unasked
        protocol.on_failure = lambda _: self.stirred.set()

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server offers, without what is hidden or was refused."""
        return self._offered - self.refused if self.refused else self._offered

    def has(self, capability: str) -> bool:
        """Whether the server offers it, and has not refused it."""
        return capability in self._offered and capability not in self.refused

    def refuse(self, *uses: str, error: Exception) -> None:
        """These were offered and refused, and the same was had without them: they are done without from now on."""
        for use in uses:
            if use not in self.refused:
                self.refused.add(use)
                log.warning("the server offers %s and refuses it; doing without (%s)", use, error)

    @property
    def alive(self) -> bool:
        """Whether the connection can still be used."""
        return self.protocol.failure is None

    def has_changes(self) -> bool:
        """Whether anything waits that came unasked."""
        return self.changes.pending

    def set_capabilities(self, names: frozenset[str]) -> None:
        """What the server offers from now on."""
        self._offered = names - self.options.disabled
        self.capabilities_told = True
        if self.has("LITERAL+"):
            self.protocol.literal_mode = LiteralMode.PLUS
        elif self.has("LITERAL-"):
            self.protocol.literal_mode = LiteralMode.MINUS
        else:
            self.protocol.literal_mode = LiteralMode.SYNCHRONISING

    def _take_unasked(self, response: Response) -> None:
        if isinstance(response, Capability):
            self.set_capabilities(response.names)
            return
        self.changes.add(response)
        if self.changes.pending:
            self.stirred.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        """This operation's turn. Raises at once what ended the connection."""
        async with self.turn:
            if self.protocol.failure is not None:
                raise self.protocol.failure
            yield

    async def run(
        self,
        command: Command,
        on_untagged: Callable[[Response], bool] | None = None,
        *,
        during: During = During.COMMAND,
    ) -> Tagged:
        """A command that answers briefly. Raises what its refusal stands for."""
        tagged = await self.protocol.execute(command, on_untagged=on_untagged, timeout_s=self.limits.command_timeout_s)
        return self.accept(tagged, during)

    async def tolerant(self, command: Command, on_untagged: Callable[[Response], bool] | None = None) -> bool:
        """A command whose refusal costs us a convenience only. BAD: it is not sent again."""
        tagged = await self.protocol.execute(command, on_untagged=on_untagged, timeout_s=self.limits.command_timeout_s)
        if tagged.condition == "BAD":
            self.refuse(command.name, error=classify(During.COMMAND, "BAD", tagged.code, tagged.text))
        return tagged.condition == "OK"

    def accept(self, tagged: Tagged, during: During) -> Tagged:
        """The tagged response of a command that has to succeed. Raises what a refusal stands for."""
        if tagged.condition != "OK":
            raise classify(during, tagged.condition, tagged.code, tagged.text)
        if tagged.code is not None:
            if tagged.code.name == "CAPABILITY":
                self.set_capabilities(capability_names(tagged.code.arguments))
            elif tagged.code.name in ("THROTTLED", "ALERT"):
                self.changes.add_condition(Untagged("OK", tagged.code, tagged.text))
        return tagged
