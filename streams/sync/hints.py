"""What NOTIFY tells (RFC 5465), taken as a hint to look: never as a fact.

Invariant: nothing of it reaches the log or the mirror. A hint that differs from what is known leads to an ordinary look
over the whole account; one that says what is known already leads to nothing, so that looks come to an end.
"""

from __future__ import annotations

from typing import Final

from streams.domain.mirror import MailboxRecord
from streams.domain.plan import expected_count, is_aside, is_whole
from streams.imap.protocol.parser import canonical_name
from streams.imap.values import Changes, ListedMailbox, MailboxStatus
from streams.sync.state import AccountState

LOOKS_APART_S: Final = 1.0
"""Time from one look that hints led to until the next: what comes meanwhile is looked for once."""
OVERFLOWS_LIMIT: Final = 3
"""NOTIFICATIONOVERFLOWs after which a connection does without NOTIFY: the server cannot keep up."""


class Hints:
    """State of one watching connection. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self.due = True
        """Whether NOTIFY is to be asked for: at first, after the server ended it, after other mailboxes were opened."""
        self._usable = True
        self._look = False
        self._next_look_at = 0.0
        self._overflows = 0

    def answered(self, *, accepted: bool) -> None:
        """NOTIFY was asked for."""
        self.due = False
        self._usable = accepted

    def take(self, state: AccountState, changes: Changes, *, modseqs: bool, first: bool, wall: float) -> None:
        """Remember whether anything tells of a change elsewhere than in the open mailbox. `first`: these are the states
        with which NOTIFY begins; where nothing differs, nothing has happened.
        """
        if changes.overflowed:  # that was the end of all notifications (RFC 5465 section 5.8)
            self._overflows += 1
            self._usable = self._usable and self._overflows < OVERFLOWS_LIMIT
            self.due = self._usable
        if not self._look and (changes.statuses or changes.listed):
            records = {canonical_name(box.record.wire_name): box.record for box in state.mailboxes.values()}
            self._look = any(
                _moved(records.get(canonical_name(name)), status, modseqs=modseqs, first=first, wall=wall)
                for name, status in changes.statuses.items()
            ) or any(_listed_anew(records.get(canonical_name(told.wire_name)), told) for told in changes.listed)

    def wait_s(self, now: float) -> float | None:
        """Seconds until a look is due; None when there is nothing to look for."""
        return max(0.0, self._next_look_at - now) if self._look else None

    def looked(self, now: float, *, elsewhere: bool, surprised: bool) -> None:
        """A look was made. Two things may have been missed meanwhile.

        What changed in a mailbox while it was open is not told by STATUS: after a look `elsewhere` NOTIFY is asked for
        anew, which begins with the state of all. And lines of NOTIFY may have come between those of LIST and been taken
        for it: where the list of mailboxes has changed, or one could not be opened, it is looked at once more.
        """
        self._look = surprised and self._usable
        self._next_look_at = now + LOOKS_APART_S
        self.due = self.due or (elsewhere and self._usable)


def _moved(record: MailboxRecord | None, told: MailboxStatus, *, modseqs: bool, first: bool, wall: float) -> bool:
    """Whether STATUS of a mailbox differs from what is known of it. What was not told says nothing."""
    if record is None:
        return True
    if not record.selectable or record.view or is_aside(record, wall):
        return False
    if not record.visited:
        return True
    if told.uidvalidity is not None and told.uidvalidity != (record.uidvalidity or 0):
        return True
    if told.uidnext is not None and told.uidnext != record.uidnext:
        return True
    if told.messages is not None and is_whole(record) and told.messages != expected_count(record):
        return True
    if modseqs and told.highestmodseq is not None:
        return told.highestmodseq != record.highestmodseq
    # nothing that was told differs: then it is about what it does not tell, such as flags
    return not first and _untold(record, told, modseqs=modseqs)


def _untold(record: MailboxRecord, told: MailboxStatus, *, modseqs: bool) -> bool:
    return not modseqs or not is_whole(record) or (told.uidnext is None and told.messages is None)


def _listed_anew(record: MailboxRecord | None, told: ListedMailbox) -> bool:
    """Whether a mailbox was made, renamed or deleted, as far as is known."""
    exists = "\\nonexistent" not in told.attributes
    if record is None:
        return exists
    return told.old_name is not None or not exists or told.selectable != record.selectable
