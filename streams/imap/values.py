"""What a caller of a session gives and gets.

Invariant: None means "not told". An absent item is never an empty one, an unknown number never 0; bytes from the wire
stay bytes until somebody needs to show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Literal, TypeAlias

import msgspec
from pyroaring import BitMap

TlsMode = Literal["tls", "starttls", "plain"]

# A parsed BODYSTRUCTURE: strings as bytes, NIL as None, lists as tuples (RFC 3501 section 7.4.2).
Structure: TypeAlias = "bytes | tuple[Structure, ...] | None"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an account lives. The TLS mode comes from configuration, never from what a server offers."""

    host: str
    port: int
    tls: TlsMode


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines (seconds) and caps (bytes) of one connection. Everything an unfriendly server controls has one."""

    connect_timeout_s: float = 20.0  # all together: name lookup, TCP, TLS, greeting, capabilities
    command_timeout_s: float = 60.0  # a command that answers briefly, from sending to its tagged answer
    fetch_stall_timeout_s: float = 60.0  # a streamed answer: the longest time without a byte
    fetch_timeout_s: float = 1800.0  # a streamed answer as a whole, not counting the time our reader made it wait
    login_timeout_s: float = 60.0
    logout_timeout_s: float = 2.0
    idle_renew_s: float = 240.0  # NAT tables forget flows after 5 to 15 minutes
    idle_answer_timeout_s: float = 20.0  # for "+" after IDLE and for the tagged answer after DONE
    max_line_bytes: int = 16 << 20  # a SEARCH answer of a million UIDs is 8 MB in one line
    max_literal_bytes: int = 64 << 20
    max_response_bytes: int = 80 << 20
    max_list_entries: int = 20_000  # mailboxes of one account
    max_unasked_fetches: int = 20_000  # flag changes kept for `take_changes`; over it `overflowed` is set
    max_inflate_ratio_bytes: int = 1 << 20  # inflated bytes handled at once under COMPRESS=DEFLATE


@dataclass(frozen=True, slots=True)
class Options:
    """What of a server's offers we use."""

    compress: bool = False  # COMPRESS=DEFLATE (RFC 4978): pays on slow links for headers, costs the server CPU
    utf8: bool = False  # UTF8=ACCEPT (RFC 6855): changes the wire names of mailboxes, so it is a decision for good
    send_id: bool = True  # ID (RFC 2971); some hosts refuse to open mailboxes without it
    client_name: str = "mailstreams"
    disabled: frozenset[str] = frozenset()  # capabilities treated as not offered


class FetchedMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What FETCH told of one message. `sections` maps a section, without its field list and partial, to its bytes:
    `b"HEADER.FIELDS"`, `b"HEADER"`, `b"TEXT"`, `b"1.MIME"`, `b""` for the whole message.
    """

    uid: int
    flags: frozenset[bytes] | None = None
    modseq: int | None = None
    internal_date: datetime | None = None
    size: int | None = None
    email_id: str | None = None
    thread_id: str | None = None
    gm_msgid: int | None = None
    gm_thrid: int | None = None
    gm_labels: tuple[bytes, ...] | None = None
    sections: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    structure: Structure = None
    damaged: bytes | None = None  # the item whose value could not be parsed; what stood before it is kept


@dataclass(frozen=True, slots=True)
class UnreadableFetch:
    """A FETCH response that could not be parsed. Its bytes are not kept; the UID is, when it could be made out."""

    uid: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class FetchChunk:
    """A part of a FETCH answer: messages that were asked for, and what went wrong or away meanwhile."""

    messages: list[FetchedMessage]
    vanished: BitMap  # VANISHED (EARLIER) of this command; empty unless asked for
    unreadable: tuple[UnreadableFetch, ...] = ()


@dataclass(frozen=True, slots=True)
class MailboxStatus:
    """STATUS items (RFC 3501 section 7.2.4, RFC 7162, RFC 8474); None where the server did not say."""

    messages: int | None = None
    uidnext: int | None = None
    uidvalidity: int | None = None
    highestmodseq: int | None = None
    mailbox_id: str | None = None
    unseen: int | None = None


@dataclass(frozen=True, slots=True)
class ListedMailbox:
    """One mailbox of LIST. `wire_name` is its key, verbatim; `display_name` is derived and never sent."""

    wire_name: bytes
    display_name: str
    delimiter: str | None  # None: a flat name
    attributes: frozenset[str]  # lower-case, with their backslash
    special_use: str | None  # lower-case with backslash, e.g. "\\sent"; INBOX is "\\inbox"
    selectable: bool
    mailbox_id: str | None = None
    status: MailboxStatus | None = None  # told by LIST-STATUS (RFC 5819)
    old_name: bytes | None = None  # LIST-EXTENDED OLDNAME, as NOTIFY tells renames (RFC 5465 section 5.4)


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """Mailboxes, one for each canonical name, in the server's order."""

    mailboxes: tuple[ListedMailbox, ...]
    with_status: bool  # the server answered STATUS items along with the list
    unreadable: int = 0  # LIST lines that could not be parsed: the list is then no proof of absence


@dataclass(frozen=True, slots=True)
class QResync:
    """Arguments of EXAMINE (QRESYNC ...), RFC 7162 section 3.2.5. `known` is a UID set or None."""

    uidvalidity: int
    modseq: int
    known: str | None = None


@dataclass(frozen=True, slots=True)
class Selected:
    """What EXAMINE told."""

    wire_name: bytes
    exists: int
    uidvalidity: int | None  # 0 as sent by some servers: UIDs are not stable
    uidnext: int | None
    highestmodseq: int | None  # None: no code, or 0 ("none yet")
    nomodseq: bool
    mailbox_id: str | None
    flags: frozenset[bytes]
    permanent_flags: frozenset[bytes]
    read_only: bool
    vanished: BitMap  # VANISHED (EARLIER) of QRESYNC
    fetched: tuple[FetchedMessage, ...]  # flag changes of QRESYNC
    fetched_overflowed: bool = False  # more changes than `Limits.max_unasked_fetches`: ask by CHANGEDSINCE instead


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """UIDs of a search. `stated`: a well-formed result line was seen. Without one an OK means "no hit" to most servers,
    but nothing may be removed on its strength alone unless the mailbox is known to be empty.
    """

    uids: BitMap
    stated: bool
    modseq: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that came unasked since the last `take_changes`, merged."""

    exists: int | None = None  # last EXISTS told, adjusted by EXPUNGEs that followed; None: not told
    vanished: BitMap = field(default_factory=BitMap)
    expunged: int = 0  # EXPUNGE lines (by sequence number: they say how many, not which)
    fetched: Mapping[int, FetchedMessage] = field(default_factory=dict)  # by UID
    unidentified: int = 0  # FETCH lines without UID, or that could not be parsed: look again
    statuses: Mapping[bytes, MailboxStatus] = field(default_factory=dict)  # by canonical wire name (NOTIFY)
    listed: tuple[ListedMailbox, ...] = ()  # mailboxes created, renamed, deleted (NOTIFY)
    overflowed: bool = False  # the server (NOTIFICATIONOVERFLOW) or our cap dropped something: look again at everything
    alerts: tuple[str, ...] = ()  # texts of [ALERT], cleaned and cut
    throttled: bool = False  # a response carried [THROTTLED]: slow down
    mailbox_closed: bool = False  # the mailbox was deselected under us ([CLOSED], UIDVALIDITY changed)

    def __bool__(self) -> bool:
        """Whether anything at all happened in or to a mailbox."""
        return bool(
            self.exists is not None
            or self.vanished
            or self.expunged
            or self.fetched
            or self.unidentified
            or self.statuses
            or self.listed
            or self.overflowed
            or self.mailbox_closed
        )


class IdleOutcome(Enum):
    """Why `idle` returned."""

    DATA = "data"  # something came, or was waiting already: `take_changes`
    WAKE = "wake"  # the caller's event was set
    RENEW = "renew"  # the time is up; idle again


@dataclass(frozen=True, slots=True)
class TrafficCounters:
    """What a connection moved so far."""

    bytes_received: int
    bytes_sent: int
    commands_sent: int
    round_trips: int
