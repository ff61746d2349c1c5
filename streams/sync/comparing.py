"""The full comparison of a mailbox's UIDs, and what proves a removal."""

from __future__ import annotations

import contextlib
import logging
from datetime import UTC, datetime, timedelta

from pyroaring import BitMap

from streams.domain.plan import expected_count, is_whole, reconcile, uid_set, windows_newest_first, within
from streams.imap.session import ImapSession
from streams.imap.values import Selected
from streams.sync.context import PassContext
from streams.sync.state import MailboxState

log = logging.getLogger(__name__)

SEARCH_WINDOW = 20_000
"""UIDs per SEARCH without ESEARCH: the answer is one line of numbers."""
SEARCHES_LIMIT = 1000
"""SEARCHes in place of one: some servers take UIDs from a clock, so that few messages lie far apart."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


async def compare(
    ctx: PassContext, session: ImapSession, box: MailboxState, selected: Selected, watermark: int, fresh: int
) -> tuple[BitMap, BitMap] | None:
    """Set difference of the region against a complete answer: (vanished, missing). None when nothing may be concluded.
    What was set aside and is not there has vanished, too.

    Removals are believed when the search and the count of messages (with `fresh` new ones) agree, or FETCH confirms
    them.
    """
    record = box.record
    vanished, missing = BitMap(), BitMap()
    excluded = 0
    low = record.floor
    known = box.known()
    if known:
        low = min(low, known.min())
    step = search_step(session, watermark - low, selected.exists)
    while low < watermark:
        high = min(watermark, low + max(step, 1))
        answer = await session.uid_search(f"UID {low}:{high - 1}".encode())
        wanted = answer.uids
        if record.since is not None:
            wanted = (await session.uid_search(f"UID {low}:{high - 1} {since_criterion(record.since)}".encode())).uids
        if not answer.stated and selected.exists > 0 and known.range_cardinality(low, high):
            log.warning("mailbox %s: the search answer was not stated; nothing is concluded", record.mailbox_id)
            return None
        difference = reconcile(known, answer.uids, low=low, high=high, aside=record.quarantined)
        vanished |= difference.vanished | (within(BitMap(record.quarantined), low, high) - answer.uids)
        if high > record.floor:
            absent = within(difference.missing, max(low, record.floor), high)
            missing |= absent & wanted
            excluded += len(absent - wanted)
        low = high
    counted = is_whole(record) and expected_count(record) + fresh - len(vanished) == selected.exists
    if vanished and not counted:
        vanished -= await _still_there(ctx, session, box, vanished)
    if record.excluded != excluded:
        record.excluded = excluded
        box.dirty = True
    return vanished, missing


async def _still_there(ctx: PassContext, session: ImapSession, box: MailboxState, uids: BitMap) -> BitMap:
    """UIDs that a search denies and FETCH answers: the search was incomplete, however well-formed (case 24)."""
    found = BitMap()
    for window in windows_newest_first(uids, ctx.settings.FETCH_WINDOW):
        async with contextlib.aclosing(session.uid_fetch(uid_set(window), [b"UID", b"FLAGS"])) as chunks:
            async for chunk in chunks:
                found.update(message.uid for message in chunk.messages)
    if found:
        log.warning("mailbox %s: search denies %d messages that are there", box.record.mailbox_id, len(found))
    return found & uids


def search_step(session: ImapSession, span: int, exists: int | None) -> int:
    """UIDs to ask for at once: all of them where the answer is short, by its ranges or for the number of messages."""
    if session.has("ESEARCH") or (exists is not None and exists <= SEARCH_WINDOW):
        return span
    return max(SEARCH_WINDOW, span // SEARCHES_LIMIT)


def since_criterion(timestamp: float) -> str:
    """SEARCH key for messages not older than a time; SINCE knows whole days only (RFC 9051, 6.4.4), so a day is
    added.
    """
    day = datetime.fromtimestamp(timestamp, UTC) - timedelta(days=1)
    return f"SINCE {day.day}-{_MONTHS[day.month - 1]}-{day.year}"
