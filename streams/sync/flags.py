"""Flags, and with QRESYNC what vanished: from the cheapest source a server offers."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field

from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.domain.mirror import LABEL
from streams.domain.plan import next_scan_window, spans_up_to_highest, uid_set, windows_newest_first
from streams.imap.errors import CommandRejected
from streams.imap.session import ImapSession
from streams.imap.values import FetchedMessage, Selected
from streams.sync import fetching
from streams.sync.context import PassContext
from streams.sync.state import MailboxState, message_text_id

log = logging.getLogger(__name__)

FLAGS_WINDOW = 20_000
"""UIDs per FETCH when every flag is read."""
CHANGES_WINDOW = 50_000
"""Known UIDs per FETCH when changes are asked for: all of them may have changed, and are held until its end."""
PUBLISHED_TOGETHER = 500


@dataclass(slots=True)
class FlagsAnswer:
    """What an answer about flags left to be done: `vanished` is still known. `whole` False: some of it did not parse,
    so that the change it told of is not known.
    """

    vanished: BitMap = field(default_factory=BitMap)
    whole: bool = True

    def add(self, other: FlagsAnswer) -> None:
        """Another part of the answer."""
        self.vanished |= other.vanished
        self.whole = self.whole and other.whole


async def flags_and_vanished(
    ctx: PassContext, session: ImapSession, box: MailboxState, selected: Selected, *, full: bool
) -> FlagsAnswer:
    """Publish flag changes of known messages; returns what the server says has vanished (QRESYNC only)."""
    record = box.record
    answer = FlagsAnswer()
    known = box.known()
    if not known:
        return answer
    current = selected.highestmodseq
    condstore = current is not None and ctx.has_condstore(session)
    items = fetching.flag_items(session.capabilities)
    if not condstore:
        items = [item for item in items if item != b"MODSEQ"]
    if full or (condstore and record.highestmodseq == 0):
        # no history to build on, or the server lost it (case 6): read every flag
        for window in windows_newest_first(known.copy(), FLAGS_WINDOW):
            answer.add(await _read_flags(ctx, session, box, uid_set(window), items))
    elif condstore:
        if (current or 0) > record.highestmodseq:
            answer.add(await _changed_since(ctx, session, box, items))
            answer.vanished &= known | BitMap(record.quarantined)
    else:
        await _scan_flags(ctx, session, box, items)
    return answer


async def _changed_since(ctx: PassContext, session: ImapSession, box: MailboxState, items: list[bytes]) -> FlagsAnswer:
    """Flags that changed since the cursor, and with QRESYNC what vanished (RFC 7162, 3.1.4.1 and 3.2.6)."""
    record = box.record
    answer = FlagsAnswer()
    qresync = ctx.has_qresync(session)
    # Not up to the cursor: a pass that broke off has left messages above it, and their changes are told only once.
    for span in spans_up_to_highest(box.known(), CHANGES_WINDOW):
        try:
            answer.add(await _read_flags(ctx, session, box, span, items, since=record.highestmodseq, vanished=qresync))
        except CommandRejected as error:
            # offered, and not understood (case 11): never again with this runner, this time the long way
            ctx.memory.refused.add("QRESYNC" if qresync else "CONDSTORE")
            log.warning("mailbox %s: %s; doing without", record.mailbox_id, error)
            if qresync:
                return await _changed_since(ctx, session, box, items)
            await _scan_flags(ctx, session, box, [item for item in items if item != b"MODSEQ"])
            return answer
    return answer


async def _read_flags(
    ctx: PassContext,
    session: ImapSession,
    box: MailboxState,
    uids: str,
    items: list[bytes],
    *,
    since: int | None = None,
    vanished: bool = False,
) -> FlagsAnswer:
    """Flags of `uids`, published where they differ; returns what the server says has vanished.

    Believed only once the answer has ended well. A server whose mailbox was replaced under an open session may answer
    out of the new one and end the connection then: these are no flags of the messages that are known.
    """
    differing: list[FetchedMessage] = []
    answer = FlagsAnswer()
    async with contextlib.aclosing(session.uid_fetch(uids, items, changed_since=since, vanished=vanished)) as chunks:
        async for chunk in chunks:
            known = box.known()
            differing.extend(m for m in chunk.messages if m.uid in known and _new_flags(box, m) is not None)
            answer.vanished |= chunk.vanished
            if chunk.unreadable or any(m.uid in known and (m.flags is None or m.damaged) for m in chunk.messages):
                answer.whole = False
    for part in range(0, len(differing), PUBLISHED_TOGETHER):
        apply_flags(ctx, box, differing[part : part + PUBLISHED_TOGETHER])
        await ctx.reader.flush()
    return answer


async def _scan_flags(ctx: PassContext, session: ImapSession, box: MailboxState, items: list[bytes]) -> None:
    """Without CONDSTORE: the newest messages each time, the rest in turn within `FLAG_SCAN_S`."""
    record, settings = box.record, ctx.settings
    known = box.known()
    newest = known[max(0, len(known) - settings.FLAG_WINDOW) :]
    rest = known - newest
    wanted = newest.copy()
    following = record.scan_next
    if rest:
        polls = max(1.0, settings.FLAG_SCAN_S / settings.POLL_WARM)
        size = max(settings.FLAG_WINDOW, int(len(rest) / polls) + 1)
        window, following = next_scan_window(rest, record.scan_next, size, newest.min() if newest else 1 << 32)
        wanted |= window
    if wanted:
        await _read_flags(ctx, session, box, uid_set(wanted), items)
    if record.scan_next != following:  # only now: a window that broke off would wait for the next round
        record.scan_next = following
        box.dirty = True


def _new_flags(box: MailboxState, message: FetchedMessage) -> frozenset[str] | None:
    """Flags (and labels) of a known message as told, where they differ from what is known; else None."""
    flags = fetching.flags_of(message)
    if flags is None:
        return None
    before = box.flags(message.uid)
    if message.gm_labels is None:
        flags |= {f for f in before if f.startswith(LABEL)}
    return None if flags == before else flags


def apply_flags(ctx: PassContext, box: MailboxState, messages: list[FetchedMessage]) -> None:
    """Publish differences of flags; unknown UIDs and absent items change nothing."""
    known = box.known()
    for message in messages:
        if message.uid not in known or (flags := _new_flags(box, message)) is None:
            continue
        before = box.flags(message.uid)
        after = box.set_flags(message.uid, flags)
        if after == before:
            continue
        plain, labels = fetching.split_labels(after, labelled=message.gm_labels is not None)
        ctx.state.emit(
            events.MessageFlagsChanged,
            mailbox_id=box.record.mailbox_id,
            mailbox=box.record.name,
            uidvalidity=box.epoch,
            uid=message.uid,
            message_id=message_text_id(box.identity(message.uid)),
            flags=plain,
            labels=labels,
            added=tuple(sorted(f for f in after - before if not f.startswith(LABEL))),
            removed=tuple(sorted(f for f in before - after if not f.startswith(LABEL))),
            modseq=None if message.modseq is None else str(message.modseq),
        )
        ctx.result.flags += 1
