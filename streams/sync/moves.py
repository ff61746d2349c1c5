"""Removals held back until every mailbox that moved has been looked at, so that a move comes out as one event.

Nothing here is stored: the cursor of a mailbox with held removals has not advanced, so that a crash finds them again.
Memory: 16 bytes for each place held, whatever the mailbox's size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from pyroaring import BitMap

from streams.domain.identity import IDENTITY_BYTES
from streams.sync.state import MailboxState

_UID_BYTES: Final = 6
_ENTRY: Final = IDENTITY_BYTES + _UID_BYTES
_TABLE: Final = 32_768
"""Entries sorted at once: about 10 ms."""
_SLICE: Final = 2_000
"""Places looked up before other tasks get their turn."""


class HeldRemovals:
    """Places that vanished, by the identity of what was there; each is given out once, in the order they were held.

    `prepare` before `take`: looking up the identities of a large mailbox takes time and is done in slices.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[MailboxState, int, BitMap]] = {}
        self._indexed: dict[str, BitMap] = {}
        self._tables: list[tuple[str, bytes]] = []

    def hold(self, box: MailboxState, uids: BitMap, epoch: int | None = None) -> None:
        """Hold the removal of known UIDs of a mailbox (of an epoch of it)."""
        if not uids:
            return
        epoch = box.epoch if epoch is None else epoch
        key = f"{box.record.mailbox_id}/{epoch}"
        before = self._held.get(key)
        self._held[key] = (box, epoch, uids.copy() if before is None else before[2] | uids)

    async def prepare(self) -> None:
        """Index what was held since the last call. Raises `MirrorDamaged`."""
        for key, (box, epoch, uids) in self._held.items():
            done = self._indexed.setdefault(key, BitMap())
            fresh = uids - done
            entries: list[bytes] = []
            for count, uid in enumerate(fresh, 1):
                entries.append(box.identity(uid, epoch) + uid.to_bytes(_UID_BYTES, "big"))
                if len(entries) == _TABLE:
                    self._tables.append((key, b"".join(sorted(entries))))
                    entries = []
                if count % _SLICE == 0:
                    await asyncio.sleep(0)
            if entries:
                self._tables.append((key, b"".join(sorted(entries))))
            done |= fresh

    def holds(self, identity: bytes) -> bool:
        """Whether `take` would find a place. `prepare` before."""
        for key, table in self._tables:
            box, _, uids = self._held[key]
            if not box.deleted and any(uid in uids for uid in _found(table, identity)):
                return True
        return False

    def take(self, identity: bytes) -> tuple[MailboxState, int, int] | None:
        """A held place (mailbox, epoch, uid) of that identity, no longer held afterwards."""
        for key, table in self._tables:
            box, epoch, uids = self._held[key]
            if box.deleted or not uids:
                continue
            for uid in _found(table, identity):
                if uid in uids:
                    uids.discard(uid)
                    return box, epoch, uid
        return None

    def rest(self) -> Iterator[tuple[MailboxState, int, BitMap]]:
        """What was not taken: real removals."""
        for box, epoch, uids in self._held.values():
            if uids:
                yield box, epoch, uids

    def __bool__(self) -> bool:
        return any(uids for _, _, uids in self._held.values())


def _found(table: bytes, identity: bytes) -> Iterator[int]:
    """UIDs of an identity in a sorted table, ascending."""
    low, high = 0, len(table) // _ENTRY
    while low < high:
        middle = (low + high) // 2
        if table[middle * _ENTRY : middle * _ENTRY + IDENTITY_BYTES] < identity:
            low = middle + 1
        else:
            high = middle
    at = low * _ENTRY
    while table[at : at + IDENTITY_BYTES] == identity:
        yield int.from_bytes(table[at + IDENTITY_BYTES : at + _ENTRY], "big")
        at += _ENTRY
