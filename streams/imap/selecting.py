"""Opening a mailbox, and what EXAMINE tells of it.

Invariants: what a server leaves out stays unknown (case 20); 0 for a modification sequence means "none yet" (case 7);
what came before [CLOSED] belongs to the mailbox that was open before (RFC 7162 section 3.2.11); a parameter that is
offered and refused costs no mailbox.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pyroaring import BitMap

from streams.errors import MailboxError, MailboxUnusable, MalformedAnswer
from streams.imap.changes import MAX_KEPT_BYTES, kept_bytes, merge
from streams.imap.channel import Channel
from streams.imap.errors import CommandRejected, is_unspecific
from streams.imap.protocol.codes import During
from streams.imap.protocol.commands import Command, Part, UnsafeArgument, astring, sequence_set
from streams.imap.protocol.fetch import flags_from
from streams.imap.protocol.parser import object_id
from streams.imap.protocol.responses import (
    Code,
    Exists,
    Expunged,
    Fetched,
    Flags,
    Recent,
    Response,
    Tagged,
    Untagged,
    Vanished,
)
from streams.imap.protocol.tokens import TokenError
from streams.imap.values import FetchedMessage, QResync, Selected

_MAX_UIDNEXT: Final = 1 << 32  # of a mailbox in which the highest UID of all is taken


class SelectCollector:
    """`take` responses, then `answer` with the tagged one."""

    def __init__(self, wire_name: bytes, max_fetches: int) -> None:
        self._wire_name = wire_name
        self._max_fetches = max_fetches
        self._reset()

    def _reset(self) -> None:
        self._exists: int | None = None
        self._flags: frozenset[bytes] = frozenset()
        self._permanent: frozenset[bytes] = frozenset()
        self._numbers: dict[str, int] = {}
        self._nomodseq = False
        self._mailbox_id: str | None = None
        self._read_only = False
        self._vanished = BitMap()
        self._fetched: dict[int, FetchedMessage] = {}
        self._kept_bytes = 0
        self._overflowed = False

    def take(self, response: Response) -> bool:
        """Whether the response is part of the answer."""
        match response:
            case Exists(count=count):
                self._exists = count
            case Expunged():
                self._exists = None if self._exists is None else max(0, self._exists - 1)
            case Recent():
                pass
            case Flags(flags=flags):
                self._flags = flags
            case Vanished(uids=uids):
                self._vanished |= uids
            case Fetched(message=message):
                self._take_fetched(message)
            case Untagged(condition="OK", code=code) if code is not None:
                return self._take_code(code)
            case _:
                return False
        return True

    def _take_fetched(self, message: FetchedMessage | None) -> None:
        if message is None:
            self._overflowed = True  # a change that cannot be placed: the reader has to ask
        elif message.uid in self._fetched:
            self._fetched[message.uid] = merge(self._fetched[message.uid], message)
        elif len(self._fetched) >= self._max_fetches or self._kept_bytes > MAX_KEPT_BYTES:
            self._overflowed = True
        else:
            self._fetched[message.uid] = message
            self._kept_bytes += kept_bytes(message)

    def _take_code(self, code: Code) -> bool:
        match code.name:
            case "CLOSED":
                self._reset()
            case "UIDVALIDITY" | "UIDNEXT" | "HIGHESTMODSEQ" | "UNSEEN":
                digits = code.arguments.strip()
                if digits.isdigit() and len(digits) <= 19:
                    self._numbers[code.name] = int(digits)
            case "NOMODSEQ":
                self._nomodseq = True
            case "PERMANENTFLAGS":
                with suppress(TokenError):  # too many to be true: then none are known
                    self._permanent = flags_from(code.arguments.removeprefix(b"(").removesuffix(b")"))
            case "MAILBOXID":
                self._mailbox_id = object_id(code.arguments)
            case "READ-ONLY":
                self._read_only = True
            case "READ-WRITE":
                self._read_only = False
            case _:
                return False
        return True

    def answer(self, tagged: Tagged, *, modseqs: bool) -> Selected:
        """What was told. `modseqs`: whether the server offers CONDSTORE, which alone decides (case 9).

        Raises:
            MalformedAnswer: the number of messages is missing.
        """
        if tagged.code is not None:
            self._take_code(tagged.code)
        if self._exists is None:
            raise MalformedAnswer("the mailbox was opened without telling how many messages it holds")
        uidnext = self._numbers.get("UIDNEXT", 0)
        return Selected(
            wire_name=self._wire_name,
            exists=self._exists,
            uidvalidity=self._numbers.get("UIDVALIDITY"),
            uidnext=uidnext if 0 < uidnext <= _MAX_UIDNEXT else None,
            highestmodseq=(self._numbers.get("HIGHESTMODSEQ") or None) if modseqs else None,
            nomodseq=self._nomodseq,
            mailbox_id=self._mailbox_id,
            flags=self._flags,
            permanent_flags=self._permanent,
            read_only=self._read_only,
            vanished=self._vanished,
            fetched=tuple(self._fetched.values()),
            fetched_overflowed=self._overflowed,
        )


async def examine(channel: Channel, wire_name: bytes, qresync: QResync | None) -> Selected:
    """Open a mailbox read-only; what was collected about another one before is dropped."""
    try:
        parts: tuple[Part, ...] = (astring(wire_name),)
    except UnsafeArgument:
        raise MailboxUnusable("the mailbox's name cannot be sent", code="mailbox_name_unsafe") from None
    use = ""
    if qresync is not None and "QRESYNC" in channel.enabled and "EXAMINE=QRESYNC" not in channel.refused:
        use = "EXAMINE=QRESYNC"
        known = b"" if qresync.known is None else b" " + sequence_set(qresync.known)
        parts += (b"(QRESYNC (%d %d%s))" % (qresync.uidvalidity, qresync.modseq, known),)
    elif (
        channel.has("CONDSTORE")
        and not channel.enabled & {"CONDSTORE", "QRESYNC"}
        and "EXAMINE=CONDSTORE" not in channel.refused
    ):
        use = "EXAMINE=CONDSTORE"
        parts += (b"(CONDSTORE)",)
    long = use == "EXAMINE=QRESYNC"
    try:
        return await _examine(channel, wire_name, parts, long=long)
    except MailboxError as error:
        if not use or not channel.alive or not is_unspecific(error):
            raise
        refusal = error
    answer = await _examine(channel, wire_name, parts[:1], long=False)  # refused too: it is the mailbox
    channel.refuse(use, error=refusal)
    return answer


async def _examine(channel: Channel, wire_name: bytes, parts: tuple[Part, ...], *, long: bool) -> Selected:
    channel.selected = None
    collector = SelectCollector(wire_name, channel.limits.max_unasked_fetches)
    try:
        # The tagged line pauses the stream: what follows it tells of the mailbox that is open by then, and must
        # not be taken until what was collected about the one before has been dropped.
        tagged = await channel.protocol.execute(
            Command("EXAMINE", parts),
            on_untagged=collector.take,
            timeout_s=channel.limits.fetch_timeout_s if long else channel.limits.command_timeout_s,
            pauses=True,
        )
        try:
            channel.accept(tagged, During.MAILBOX)
        except MailboxError:
            if channel.alive:
                channel.protocol.state = "AUTH"  # RFC 3501 section 6.3.1: a failed SELECT leaves none selected
            raise
        channel.protocol.state = "SELECTED"
        answer = collector.answer(tagged, modseqs=channel.has("CONDSTORE") or channel.has("QRESYNC"))
        channel.changes.select(answer.exists)
        channel.selected = wire_name
        channel.opened_as = (answer.uidvalidity, answer.mailbox_id)
        return answer
    finally:
        channel.protocol.unhalt()


async def unselect(channel: Channel) -> None:
    """Leave the mailbox."""
    if channel.selected is None:
        return
    if not channel.has("UNSELECT"):
        await channel.run(Command("CLOSE"))
    else:
        try:
            await channel.run(Command("UNSELECT"))
        except CommandRejected as error:
            await channel.run(Command("CLOSE"))
            channel.refuse("UNSELECT", error=error)
    channel.selected = None
    channel.protocol.state = "AUTH"
