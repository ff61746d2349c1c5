"""Messages as files: the bytes, and the names of the three formats.

Pure. Invariant: the bytes of a message are those of the server, except for what mbox needs (line ends become LF, and
lines that look like a separator are quoted so that it can be undone: mboxrd).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_FROM_LINE: Final = re.compile(rb"^(>*From )", re.MULTILINE)
_MAILDIR_FLAGS: Final = {b"\\Draft": "D", b"\\Flagged": "F", b"\\Answered": "R", b"\\Seen": "S", b"\\Deleted": "T"}
_ASCTIME_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_ASCTIME_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class ExportedMessage:
    """A message as it was fetched. `internal_date` is aware; None where the server gave none."""

    uidvalidity: int
    uid: int
    internal_date: datetime | None
    flags: frozenset[bytes]
    raw: bytes


def eml_name(message: ExportedMessage) -> str:
    """`<uidvalidity>.<uid>.eml`: stable, so that an export can be continued."""
    return f"{message.uidvalidity}.{message.uid}.eml"


def maildir_name(message: ExportedMessage) -> str:
    """A name for `cur/` (https://cr.yp.to/proto/maildir.html), flags in ASCII order after `:2,`."""
    seconds = int(message.internal_date.timestamp()) if message.internal_date is not None else 0
    flags = "".join(sorted(letter for flag, letter in _MAILDIR_FLAGS.items() if flag in message.flags))
    return f"{max(0, seconds)}.V{message.uidvalidity}U{message.uid}.mailstreams,S={len(message.raw)}:2,{flags}"


def mbox_entry(message: ExportedMessage) -> bytes:
    """One message of an mbox file (RFC 4155 form of the `From ` line; quoting as in mboxrd)."""
    at = (message.internal_date or datetime.fromtimestamp(0, UTC)).astimezone(UTC)
    # asctime by hand: the locale must not show.
    when = (
        f"{_ASCTIME_DAYS[at.weekday()]} {_ASCTIME_MONTHS[at.month - 1]} {at.day:2d} "
        f"{at.hour:02d}:{at.minute:02d}:{at.second:02d} {at.year}"
    )
    body = message.raw.replace(b"\r\n", b"\n")
    body = _FROM_LINE.sub(rb">\1", body)
    if not body.endswith(b"\n"):
        body += b"\n"
    return b"From MAILER-DAEMON " + when.encode() + b"\n" + body + b"\n"


def mbox_file(messages: Iterable[ExportedMessage]) -> bytes:
    """Several messages. Files may be joined to one: it is a valid mbox again."""
    return b"".join(mbox_entry(message) for message in messages)
