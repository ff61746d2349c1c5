"""Collects what a server says unasked, so that no line is lost whichever command it came with (cases 3, 30, 33, 84).

Invariant: bounded. What would pass a bound is dropped and `overflowed` says so; the reader then looks at all again.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from pyroaring import BitMap

from streams.imap.protocol.codes import clean_text
from streams.imap.protocol.responses import (
    Exists,
    Expunged,
    Fetched,
    Listed,
    Malformed,
    Response,
    StatusTold,
    Untagged,
    Vanished,
)
from streams.imap.values import Changes, FetchedMessage, ListedMailbox, MailboxStatus

_T = TypeVar("_T")
MAX_KEPT_BYTES: Final = 32 << 20  # of flags and labels that came unasked
_MAX_ALERTS: Final = 10
_MAX_NAMED: Final = 20_000  # mailboxes named by NOTIFY between two looks


def merge(old: FetchedMessage, new: FetchedMessage) -> FetchedMessage:
    """Both told of one UID: what is told later wins, what is not told overwrites nothing (case 33)."""
    told = {
        name: value
        for name in FetchedMessage.__struct_fields__
        if name != "sections" and (value := getattr(new, name)) is not None
    }
    return msgspec.structs.replace(old, **told, sections={**old.sections, **new.sections})


def kept_bytes(message: FetchedMessage) -> int:
    """Bytes of what a message may hold without bound: flags and labels."""
    return sum(map(len, message.flags or ())) + sum(map(len, message.gm_labels or ()))


class ChangeCollector:
    """Feed it what no command took; `take` gives all of it once."""

    def __init__(self, max_fetches: int) -> None:
        self._max_fetches = max_fetches
        self.exists: int | None = None  # of the selected mailbox, as last known
        self._reset()

    def _reset(self) -> None:
        self._exists_told = False
        self._vanished = BitMap()
        self._expunged = 0
        self._fetched: dict[int, FetchedMessage] = {}
        self._kept_bytes = 0
        self._unidentified = 0
        self._statuses: dict[bytes, MailboxStatus] = {}
        self._listed: dict[bytes, ListedMailbox] = {}
        self._overflowed = False
        self._alerts: list[str] = []
        self._throttled = False
        self._mailbox_closed = False
        self._pending = False

    @property
    def pending(self) -> bool:
        """Whether `take` would tell of anything in or to a mailbox."""
        return self._pending

    def select(self, exists: int) -> None:
        """Another mailbox is selected: what was collected about the old one means nothing any more."""
        alerts, statuses, listed = self._alerts, self._statuses, self._listed
        overflowed, throttled = self._overflowed, self._throttled
        self._reset()
        self.exists = exists
        self._alerts, self._statuses, self._listed = alerts, statuses, listed
        self._overflowed, self._throttled = overflowed, throttled
        self._pending = bool(statuses or listed or overflowed)

    def take(self) -> Changes:
        """All that was collected. Empties the collector."""
        changes = Changes(
            exists=self.exists if self._exists_told else None,
            vanished=self._vanished,
            expunged=self._expunged,
            fetched=self._fetched,
            unidentified=self._unidentified,
            statuses=self._statuses,
            listed=tuple(self._listed.values()),
            overflowed=self._overflowed,
            alerts=tuple(self._alerts),
            throttled=self._throttled,
            mailbox_closed=self._mailbox_closed,
        )
        self._reset()
        return changes

    def add(self, response: Response) -> None:
        """One response that no command took."""
        match response:
            case Exists(count=count):
                if count != self.exists:
                    self.exists = count
                    self._exists_told = self._pending = True
            case Expunged():
                self._expunged += 1
                self._lessen(1)
            case Vanished(uids=uids, earlier=earlier):
                self._vanished |= uids
                if not earlier:  # RFC 7162 section 3.2.10: only these lessen the number of messages
                    self._lessen(min(len(uids), self.exists or 0))
                self._pending = True
            case Fetched(message=message):
                self._pending = True
                if message is None:
                    self._unidentified += 1
                else:
                    self.add_fetched(message)
            case Malformed(kind=kind):
                if kind == "FETCH":
                    self._unidentified += 1
                self._pending = True
            case StatusTold(wire_name=wire_name, status=status):
                self._pending = True
                self._name(self._statuses, wire_name, status)
            case Listed(mailbox=mailbox):
                self._pending = True
                self._name(self._listed, mailbox.wire_name, mailbox)
            case Untagged():
                self.add_condition(response)
            case _:
                pass  # CAPABILITY, FLAGS, RECENT and the like change nothing that we keep

    def _lessen(self, by: int) -> None:
        self._pending = True
        if self.exists is not None:
            self.exists = max(0, self.exists - by)
            self._exists_told = True

    def _name(self, kept: dict[bytes, _T], wire_name: bytes, value: _T) -> None:
        if len(kept) >= _MAX_NAMED and wire_name not in kept:
            self._overflowed = True
        else:
            kept[wire_name] = value

    def add_fetched(self, message: FetchedMessage) -> None:
        """FETCH data that was not asked for."""
        self._pending = True
        known = self._fetched.get(message.uid)
        if known is not None:
            self._fetched[message.uid] = merge(known, message)
        elif len(self._fetched) >= self._max_fetches:
            self._overflowed = True
        else:
            # Bodies and structures nobody asked for are not kept.
            kept = msgspec.structs.replace(message, sections={}, structure=None)
            self._kept_bytes += kept_bytes(kept)
            if self._kept_bytes > MAX_KEPT_BYTES:
                self._overflowed = True
            else:
                self._fetched[message.uid] = kept

    def add_condition(self, response: Untagged) -> None:
        """OK, NO or BAD outside of a command's answer."""
        name = response.code.name if response.code is not None else ""
        if name == "NOTIFICATIONOVERFLOW":  # RFC 5465 section 5.8
            self._overflowed = self._pending = True
        elif name in ("CLOSED", "UIDVALIDITY"):  # deselected, or another mailbox under the same name
            self._mailbox_closed = self._pending = True
        elif name == "THROTTLED":
            self._throttled = True
        elif name == "ALERT" and len(self._alerts) < _MAX_ALERTS:
            self._alerts.append(clean_text(response.text))
