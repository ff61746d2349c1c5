"""The life of a mailbox's numbering: first sight, a new UIDVALIDITY, UIDs that mean other messages; and how far
history reaches.
"""

from __future__ import annotations

import contextlib
import random
from datetime import UTC, datetime

from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.domain.plan import is_renumbered, mismatches, uid_set
from streams.errors import MailboxUnusable, MalformedAnswer
from streams.imap.session import ImapSession
from streams.imap.values import FetchedMessage, Selected
from streams.sync import fetching
from streams.sync.context import PassContext, remove, remove_previous
from streams.sync.state import MailboxState

UNSTABLE_LIMIT = 3
"""UIDVALIDITY changes in a row, without a quiet look between them, after which a mailbox is set aside."""
OPENINGS = 4
"""Openings after which a UIDVALIDITY that was another one each time is random."""
SPOT_CHECKS = 3
SPOT_CHECKS_IN_DOUBT = 30


async def opened_twice_alike(session: ImapSession, wire_name: bytes, selected: Selected) -> Selected:
    """Opens a mailbox again until it tells the same UIDVALIDITY twice in a row: a new one is believed then.

    It may change between two openings, once. Raises `MailboxUnusable` where it does each time.
    """
    for _ in range(OPENINGS):
        again = await session.examine(wire_name)
        if again.uidvalidity == selected.uidvalidity:
            return again
        selected = again
    raise MailboxUnusable("its UIDVALIDITY changes each time it is opened", code="uidvalidity_unstable")


async def first_visit(ctx: PassContext, session: ImapSession, box: MailboxState, selected: Selected) -> None:
    record = box.record
    uidvalidity = selected.uidvalidity or 0
    if record.uidvalidity is not None and record.uidvalidity != uidvalidity:
        # Made anew since it was listed, or the list told another one than the mailbox itself.
        selected = await opened_twice_alike(session, record.wire_name, selected)
        uidvalidity = selected.uidvalidity or 0
    top = await _top(ctx, session, selected)  # may fail: nothing has been told or changed before
    if record.uidvalidity is not None and record.uidvalidity != uidvalidity:
        ctx.state.emit(
            events.MailboxReset,
            mailbox_id=record.mailbox_id,
            mailbox=record.name,
            previous_uidvalidity=record.uidvalidity,
            uidvalidity=uidvalidity,
            reason="uidvalidity_changed",
        )
    record.uidvalidity = uidvalidity
    record.uidnext = top
    record.floor = record.uidnext
    record.highestmodseq = selected.highestmodseq or 0
    record.visited = True
    record.reconciled_at = ctx.wall()
    record.backfill_done = record.uidnext <= 1 or selected.exists == 0
    if record.backfill_done:
        record.floor = 1
    record.since = _since(ctx)
    box.dirty = True
    if record.backfill_done:
        _backfill_completed(ctx, box)
    await ctx.reader.flush()


async def reset(ctx: PassContext, session: ImapSession, box: MailboxState, selected: Selected, reason: str) -> None:
    """A new epoch (RFC 9051, 2.3.1.1): nothing of the old one may be believed; its places are paired or removed
    later.
    """
    record = box.record
    if record.unstable >= UNSTABLE_LIMIT and record.aside is None:
        raise MailboxUnusable("its UIDVALIDITY does not hold still", code="uidvalidity_unstable")
    # May fail: half a new epoch, begun and with the old one's history taken for read, would never come to its end.
    top = await _top(ctx, session, selected)
    record.unstable += 1
    record.aside, record.aside_until = None, None
    if record.previous is not None:
        await remove_previous(ctx, box)
    uidvalidity = selected.uidvalidity or 0
    same = uidvalidity == box.epoch
    if same:  # else the new epoch says it
        ctx.state.unread_gone(box, list(record.quarantined))
    ctx.state.emit(
        events.MailboxReset,
        mailbox_id=record.mailbox_id,
        mailbox=record.name,
        previous_uidvalidity=box.epoch,
        uidvalidity=uidvalidity,
        reason=reason,
    )
    if same:
        # old and new places would have the same names: they cannot stand side by side
        await remove(ctx, box, box.known().copy(), box.epoch)
    else:
        box.begin_epoch(uidvalidity)
    record.uidnext = top
    record.floor = record.uidnext
    record.highestmodseq = selected.highestmodseq or 0
    record.backfill_done = False
    record.backfilled = 0
    record.reconciled_at = ctx.wall()
    box.dirty = True
    ctx.observer.quarantined("epoch", reason)
    await ctx.reader.flush()


async def renumbered(ctx: PassContext, session: ImapSession, box: MailboxState) -> bool:
    """Spot-check of a few known UIDs, once per runner and mailbox; each time where UIDVALIDITY is 0 (cases 16, 34)."""
    record = box.record
    if record.mailbox_id in ctx.memory.checked and box.epoch:
        return False
    known = box.known()
    if not known:
        return False
    sample = known[max(0, len(known) - SPOT_CHECKS + 1) :]
    sample.add(known[random.randrange(len(known))])
    wrong, answered = await _spot_check(ctx, session, box, sample)
    if wrong:
        more = BitMap(known[random.randrange(len(known))] for _ in range(SPOT_CHECKS_IN_DOUBT)) - sample
        if more:
            further = await _spot_check(ctx, session, box, more)
            wrong, answered = wrong + further[0], answered + further[1]
    if is_renumbered(wrong, answered):
        return True  # and found again, should the reset that follows break off
    ctx.memory.checked.add(record.mailbox_id)
    return False


async def _spot_check(ctx: PassContext, session: ImapSession, box: MailboxState, sample: BitMap) -> tuple[int, int]:
    """How many of the sample are not what they were, and how many answered."""
    found: dict[int, FetchedMessage] = {}
    items = fetching.message_items(session.capabilities, structure=False)
    async with contextlib.aclosing(session.uid_fetch(uid_set(sample), items)) as chunks:
        async for chunk in chunks:
            found.update((m.uid, m) for m in chunk.messages if fetching.is_complete(m))
    basis = ctx.state.record.basis or "content"
    expected: list[bytes] = []
    answered: list[bytes | None] = []
    for uid in sample:
        message = found.get(uid)
        expected.append(box.identity(uid))
        if message is None:
            answered.append(None)
            continue
        place = f"{box.record.mailbox_id}/{box.epoch}/{uid}"
        canonical = (await fetching.read_headers(message)).canonical
        answered.append(fetching.identity_of(ctx.state.account_id, basis, message, canonical, place=place))
    return mismatches(expected, answered)


def extend_history(ctx: PassContext) -> None:
    """`SYNC_SINCE` reaches further back than the limit in force: the history is walked again. A shorter one changes
    nothing.
    """
    wanted = _since(ctx)
    for box in ctx.state.mailboxes.values():
        record = box.record
        if not record.visited or record.since is None:
            continue
        if wanted is None or wanted < record.since - 86_400.0:
            record.since = wanted
            record.floor = record.uidnext
            record.backfill_done = False
            box.dirty = True


def _since(ctx: PassContext) -> float | None:
    days = ctx.settings.sync_since_days
    return None if days is None else ctx.wall() - days * 86_400.0


async def _top(ctx: PassContext, session: ImapSession, selected: Selected) -> int:
    """UIDNEXT, or the highest UID plus one where the server does not say (case 20): unknown is not zero."""
    if selected.uidnext is not None:
        return max(selected.uidnext, 1)
    answer = await session.uid_search(b"ALL", returns="bounds")
    if answer.maximum is None and selected.exists:
        raise MalformedAnswer("the highest UID of a mailbox with messages was not told")
    return (answer.maximum or 0) + 1


def _backfill_completed(ctx: PassContext, box: MailboxState) -> None:
    record = box.record
    ctx.state.emit(
        events.BackfillCompleted,
        mailbox_id=record.mailbox_id,
        mailbox=record.name,
        messages=record.count,
        since=None if record.since is None else utc(record.since),
    )


def utc(timestamp: float) -> datetime:
    """Unix seconds to an aware datetime."""
    return datetime.fromtimestamp(timestamp, UTC)
