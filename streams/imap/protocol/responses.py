"""Values of everything a server can say.

Invariant: frozen, and complete in themselves: no value refers to the buffer it was parsed from.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from pyroaring import BitMap

from streams.imap.values import FetchedMessage, ListedMailbox, MailboxStatus

Condition = Literal["OK", "NO", "BAD", "BYE", "PREAUTH"]


class Code(msgspec.Struct, frozen=True, gc=False):
    """A response code (RFC 3501 section 7.1, RFC 5530): `name` in upper case, `arguments` verbatim."""

    name: str
    arguments: bytes = b""


class Tagged(msgspec.Struct, frozen=True, gc=False):
    """The end of a command."""

    tag: bytes
    condition: Condition
    code: Code | None
    text: bytes


class Untagged(msgspec.Struct, frozen=True, gc=False):
    """OK, NO, BAD, BYE or PREAUTH outside of any command."""

    condition: Condition
    code: Code | None
    text: bytes


class Continuation(msgspec.Struct, frozen=True, gc=False):
    """`+`: the server waits for more of the command, or IDLE began."""

    text: bytes


class Capability(msgspec.Struct, frozen=True, gc=False):
    """The whole capability list, in upper case."""

    names: frozenset[str]


class Enabled(msgspec.Struct, frozen=True, gc=False):
    """ENABLED (RFC 5161). May be empty although something was enabled (case 12)."""

    names: frozenset[str]


class Exists(msgspec.Struct, frozen=True, gc=False):
    """Number of messages in the selected mailbox."""

    count: int


class Recent(msgspec.Struct, frozen=True, gc=False):
    """Number of messages with the flag \\Recent; of no use to us."""

    count: int


class Expunged(msgspec.Struct, frozen=True, gc=False):
    """EXPUNGE: one message went, by sequence number."""

    sequence: int


class Vanished(msgspec.Struct, frozen=True, gc=False):
    """VANISHED (RFC 7162 section 3.2.10): UIDs that are gone; `earlier` in answer to a question of ours."""

    uids: BitMap
    earlier: bool


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """FETCH data. `message` None: no UID in it, so that it cannot be said which message is meant."""

    sequence: int
    message: FetchedMessage | None


class Found(msgspec.Struct, frozen=True, gc=False):
    """SEARCH (RFC 3501 section 7.2.5); may come in several lines."""

    numbers: BitMap
    modseq: int | None


class FoundExtended(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """ESEARCH (RFC 4731). `numbers` None: ALL was not told, which means no hit if it was asked."""

    tag: bytes | None
    uid: bool
    numbers: BitMap | None
    minimum: int | None
    maximum: int | None
    count: int | None
    modseq: int | None


class Listed(msgspec.Struct, frozen=True, gc=False):
    """LIST, LSUB or XLIST."""

    mailbox: ListedMailbox


class StatusTold(msgspec.Struct, frozen=True, gc=False):
    """STATUS of one mailbox."""

    wire_name: bytes
    status: MailboxStatus


class Flags(msgspec.Struct, frozen=True, gc=False):
    """FLAGS of the selected mailbox."""

    flags: frozenset[bytes]


class Namespaces(msgspec.Struct, frozen=True, gc=False):
    """NAMESPACE (RFC 2342): prefix and delimiter of the personal, other users' and shared namespaces."""

    personal: tuple[tuple[bytes, str | None], ...]
    others: tuple[tuple[bytes, str | None], ...]
    shared: tuple[tuple[bytes, str | None], ...]


class ServerId(msgspec.Struct, frozen=True, gc=False):
    """ID (RFC 2971): fields as told, names in lower case."""

    fields: dict[str, str]


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """A line of no kind we know (case 51). `label` is its first word, cleaned and short, fit for a log."""

    label: str


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """A line of a known kind that does not parse. `uid` when a FETCH still told it."""

    kind: str
    reason: str
    uid: int | None = None


Response: TypeAlias = (
    Tagged
    | Untagged
    | Continuation
    | Capability
    | Enabled
    | Exists
    | Recent
    | Expunged
    | Vanished
    | Fetched
    | Found
    | FoundExtended
    | Listed
    | StatusTold
    | Flags
    | Namespaces
    | ServerId
    | Unknown
    | Malformed
)

__all__ = [
    "Capability",
    "Code",
    "Condition",
    "Continuation",
    "Enabled",
    "Exists",
    "Expunged",
    "Fetched",
    "Flags",
    "Found",
    "FoundExtended",
    "Listed",
    "Malformed",
    "Namespaces",
    "Recent",
    "Response",
    "ServerId",
    "StatusTold",
    "Tagged",
    "Unknown",
    "Untagged",
    "Vanished",
]
