"""What becomes of an account that was removed: its log says that all of its mail is gone, and its mirror forgets it.

Invariants: only the owner of the account's partition does this, in the transactions of its shard and after the
account's runner has ended, so that no event of the account can come later; the account's sequence goes on where it
ended, should the account ever come back; a removal that is cut short is taken up by whoever owns the partition next.
"""

from __future__ import annotations

from typing import Final

from streams.contracts import mailbox as events
from streams.contracts import topics
from streams.domain import mirror
from streams.domain.mirror import AccountRecord
from streams.sync.log import ShardLog
from streams.sync.state import AccountState

RETRACTED: Final = (topics.SYNC_STATUS, topics.TIER_CHANGED)
"""Compacted topics that must not keep what they said of a removed account."""


def anything_left(log: ShardLog, account_id: str) -> bool:
    """Whether anything is known of an account's mail. Raises `MirrorDamaged`."""
    value = log.read(mirror.account_key(account_id))
    if value is None:
        return False
    record = mirror.decode_account(value)
    return record.mailboxes > 0 or record.tier is not None


async def erase(state: AccountState) -> int:
    """Tell that each mailbox is gone, folder by folder, and forget it. Returns the mailboxes. Raises `ProducerLost`.

    What is committed counts; a repeat goes on from there. The tier goes last: it says that something is left.
    """
    record = state.record
    state.record = AccountRecord(
        next_sequence=record.next_sequence, mailboxes=record.mailboxes, serial=record.serial, tier=record.tier
    )
    state.touch()
    boxes = list(state.mailboxes.values())
    for box in boxes:
        state.emit(events.MailboxDeleted, mailbox_id=box.record.mailbox_id, mailbox=box.record.name)
        state.remove_mailbox(box)
        await state.commit()
    state.record.tier = None
    state.touch()
    for topic in RETRACTED:
        state.retract(topic)
    await state.commit()
    return len(boxes)
