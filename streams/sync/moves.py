"""Removals held back until every mailbox that moved has been looked at, so that a move comes out as one event.

Nothing here is stored: the cursor of a mailbox with held removals has not advanced, so that a crash finds them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pyroaring import BitMap

from streams.sync.state import MailboxState


class HeldRemovals:
    """Places that vanished, by the identity of what was there; each is given out once, oldest first."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[MailboxState, int, BitMap]] = {}
        self._by_identity: dict[bytes, deque[tuple[MailboxState, int, int]]] = {}
        self._indexed: set[str] = set()

    def hold(self, box: MailboxState, uids: BitMap, epoch: int | None = None) -> None:
        """Hold the removal of known UIDs of a mailbox (of an epoch of it)."""
        if not uids:
            return
        epoch = box.epoch if epoch is None else epoch
        key = f"{box.record.mailbox_id}/{epoch}"
        before = self._held.get(key)
        self._held[key] = (box, epoch, uids.copy() if before is None else before[2] | uids)
        self._indexed.discard(key)

    def take(self, identity: bytes, *, not_in: MailboxState | None = None) -> tuple[MailboxState, int, int] | None:
        """A held place (mailbox, epoch, uid) of that identity, no longer held afterwards."""
        if not self._held:
            return None
        self._index()
        places = self._by_identity.get(identity)
        while places:
            box, epoch, uid = places.popleft()
            held = self._held.get(f"{box.record.mailbox_id}/{epoch}")
            if held is not None and uid in held[2] and not box.deleted:
                held[2].discard(uid)
                return box, epoch, uid
        return None

    def _index(self) -> None:
        for key, (box, epoch, uids) in self._held.items():
            if key in self._indexed:
                continue
            self._indexed.add(key)
            for uid in uids:
                self._by_identity.setdefault(box.identity(uid, epoch), deque()).append((box, epoch, uid))

    def rest(self) -> Iterator[tuple[MailboxState, int, BitMap]]:
        """What was not taken: real removals."""
        for box, epoch, uids in self._held.values():
            if uids:
                yield box, epoch, uids

    def __bool__(self) -> bool:
        return any(uids for _, _, uids in self._held.values())
