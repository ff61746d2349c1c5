"""What an export may be asked for."""

from __future__ import annotations

import hashlib
from datetime import date
from typing import Annotated, Final, Literal

import msgspec
from pyroaring import BitMap

from streams.contracts.values import UidValidity

SAFE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
MAX_UID: Final = 4_294_967_295


class Export(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`export`. Filters add up; without any, everything is exported.

    `since` and `before` are days of the server's arrival date (RFC 3501 SINCE and BEFORE: from the first, up to and
    without the second). `uids` is a set such as `1:500,700` and needs exactly one mailbox. `to` names the directory
    below the account's; the command's id when left out. An export to a directory that has one with the same
    arguments continues it: what is there already is not fetched again.
    """

    mailboxes: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=1000)], ...] = ()
    since: date | None = None
    before: date | None = None
    uids: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,10}(:[0-9]{1,10})?(,[0-9]{1,10}(:[0-9]{1,10})?)*$")] | None = (
        None
    )
    uidvalidity: UidValidity | None = None
    format: Literal["eml", "maildir", "mbox"] = "eml"
    to: Annotated[str, msgspec.Meta(pattern=SAFE_NAME)] | None = None

    def __post_init__(self) -> None:
        if (self.uids is not None or self.uidvalidity is not None) and len(self.mailboxes) != 1:
            raise ValueError("uids and uidvalidity need exactly one mailbox")
        if self.since is not None and self.before is not None and self.since >= self.before:
            raise ValueError("since must be before before")
        if self.uids is not None:
            parse_uids(self.uids)

    def digest(self) -> str:
        """What the export is of, whatever the directory is called."""
        same = msgspec.structs.replace(self, to=None)
        return hashlib.sha256(msgspec.json.encode(same)).hexdigest()

    def criteria(self) -> bytes:
        """SEARCH criteria of the dates. RFC 3501 section 9: date is `1-Feb-1994`, months in English."""
        parts = []
        if self.since is not None:
            parts.append(b"SINCE " + _imap_date(self.since))
        if self.before is not None:
            parts.append(b"BEFORE " + _imap_date(self.before))
        return b" ".join(parts) or b"ALL"


def parse_uids(text: str) -> BitMap:
    """The UIDs of a set. Raises `ValueError` for what is no UID."""
    found = BitMap()
    for part in text.split(","):
        first, _, last = part.partition(":")
        low, high = sorted((int(first), int(last or first)))
        if low < 1 or high > MAX_UID:
            raise ValueError(f"{part} is not within 1:{MAX_UID}")
        found.add_range(low, high + 1)
    return found


_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _imap_date(day: date) -> bytes:
    # strftime would name months in the locale's language.
    return f"{day.day}-{_MONTHS[day.month - 1]}-{day.year:04d}".encode()
