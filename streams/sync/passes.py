"""One look at an account: which mailboxes are there, which of them moved, and what happened in those.

Order matters. First every mailbox that moved is opened and asked for flags, removals and new UIDs; removals are held.
Then new messages are read, so that a message that vanished here and appeared there becomes one `message.moved`. What
is left of the removals is published last, and with it each mailbox's cursor advances: uidnext and modification
sequence together, never before the events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.domain.identity import choose_basis
from streams.domain.plan import (
    HIGHEST_UID,
    comparison_due,
    expected_count,
    is_aside,
    is_whole,
    needs_visit,
    windows_newest_first,
)
from streams.errors import HostBusy, MailboxError, MailboxGone, MailstreamsError, RetryLater
from streams.imap.session import ImapSession
from streams.imap.values import Changes, Selected
from streams.observer import RuntimeObserver
from streams.settings import Settings
from streams.sync.comparing import compare
from streams.sync.context import (
    Memory,
    PassContext,
    PassResult,
    has_open,
    is_another,
    remove,
    remove_previous,
    set_aside,
)
from streams.sync.epochs import extend_history, first_visit, opened_twice_alike, renumbered, reset
from streams.sync.flags import apply_flags, flags_and_vanished
from streams.sync.listing import apply_listing, list_server, show_views, views_among
from streams.sync.moves import HeldRemovals
from streams.sync.reading import Origin, Reader, retry_due
from streams.sync.state import AccountState, MailboxState

log = logging.getLogger(__name__)

_T = TypeVar("_T")
RETRIES_PER_PASS = 5
"""Messages set aside that are tried again in one look at a mailbox: each may cost the connection."""


@dataclass(slots=True)
class Finding:
    """What opening a mailbox told, not yet published."""

    box: MailboxState
    new: BitMap = field(default_factory=BitMap)
    missing: BitMap = field(default_factory=BitMap)
    again: BitMap = field(default_factory=BitMap)
    uidnext: int = 1
    modseq: int | None = None
    reconciled: bool = False


class AccountPass:
    """Performs passes over one account with one session. The caller holds the account's lock."""

    def __init__(
        self,
        state: AccountState,
        settings: Settings,
        observer: RuntimeObserver,
        memory: Memory,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.state = state
        self.reader = Reader(state, settings, observer, memory.trouble, wall=wall)
        self._ctx = PassContext(state, self.reader, settings, observer, memory, wall)

    @property
    def result(self) -> PassResult:
        """What was done so far."""
        return self._ctx.result

    def set_aside(self, box: MailboxState, error: MailstreamsError) -> None:
        """Leave a mailbox alone for some time."""
        set_aside(self._ctx, box, error)

    async def remove_previous(self, box: MailboxState) -> None:
        """End of a reset: what was not found again in the new epoch is gone."""
        await remove_previous(self._ctx, box)

    # --- the pass ----------------------------------------------------------------------------------------------------
    async def run(
        self, session: ImapSession, *, full: bool = False, only: str | None = None, always: bytes | None = None
    ) -> PassResult:
        """Look at the whole account (or the mailbox with id `only`); `full` distrusts counts and modification
        sequences. The caller settles the reader, with what it has to add.

        `always` names a mailbox to open whether it moved or not.
        """
        state = self.state
        if state.record.basis is None:
            state.record.basis = choose_basis(session.capabilities)
            state.touch()
        extend_history(self._ctx)
        opened = session.selected  # what STATUS says of an open mailbox is as old as its opening (RFC 9051, 6.3.11)
        listed = await list_server(self._ctx, session)
        plan, deleted = await apply_listing(self._ctx, *listed)
        await show_views(self._ctx, views_among(self._ctx, session, listed[0]))
        condstore = self._ctx.has_condstore(session)
        now = self._ctx.wall()
        visits: list[MailboxState] = []
        for record, server in (*plan.same, *plan.renamed):
            box = state.mailboxes.get(record.mailbox_id)
            if box is None or not box.synced or (only is not None and record.mailbox_id != only):
                continue
            if is_aside(record, now) and not full:
                continue
            due = any(retry_due(q, now) for q in record.quarantined.values())
            interval = self._ctx.settings.FULL_RECONCILE_S
            if (
                full
                or due
                or record.wire_name in (always, opened)
                or needs_visit(record, server, condstore=condstore, now=now, full_after_s=interval)
            ):
                visits.append(box)
        visits.sort(key=lambda b: (b.record.wire_name != b"INBOX", b.record.special_use is None))
        held = HeldRemovals()
        for box in deleted:
            held.hold(box, box.known())
        findings: list[Finding] = []
        for box in visits:
            finding = await self._guarded(session, box, self._look(session, box, held, full=full))
            if finding is not None:
                findings.append(finding)
        for finding in findings:
            if finding.new or finding.missing:
                await self._guarded(session, finding.box, self._read_found(session, finding, held))
        await self._conclude(findings, held)
        for box in deleted:
            self.state.emit(events.MailboxDeleted, mailbox_id=box.record.mailbox_id, mailbox=box.record.name)
            state.remove_mailbox(box)
        if any(finding.again for finding in findings):
            await self.reader.settle()  # before what has done harm already is tried
        for finding in findings:
            await self._guarded(session, finding.box, self._try_again(session, finding))
        self.result.visited += len(visits)
        self.result.mailboxes = len(state.mailboxes)
        return self.result

    async def visit(self, session: ImapSession, box: MailboxState, *, full: bool = False) -> PassResult:
        """Look at one mailbox that is known, and leave the session in it. The caller settles the reader."""
        held = HeldRemovals()
        finding = await self._look(session, box, held, full=full)
        if finding is not None:
            if finding.new or finding.missing:
                await self._read_found(session, finding, held)
            await self._conclude([finding], held)
            if finding.again:
                await self.reader.settle()
            await self._try_again(session, finding)
        self.result.visited += 1
        return self.result

    async def _guarded(self, session: ImapSession, box: MailboxState, work: Awaitable[_T]) -> _T | None:
        """One odd mailbox never ends a pass: it is set aside with its reason (cases 4, 17, 66, 67)."""
        try:
            return await work
        except MailboxError as error:
            if not session.alive:
                raise
            self.set_aside(box, error)
        except RetryLater as error:
            if isinstance(error, HostBusy) or not session.alive:
                raise  # about the account or its host, not about one mailbox
            self.set_aside(box, error)
        return None

    # --- looking -----------------------------------------------------------------------------------------------------
    async def _look(self, session: ImapSession, box: MailboxState, held: HeldRemovals, *, full: bool) -> Finding | None:
        record = box.record
        selected = await session.examine(record.wire_name)
        if is_another(selected, record):
            raise MailboxGone("another mailbox has taken its name")  # the next list tells which
        if not record.visited:
            await first_visit(self._ctx, session, box, selected)
            return None
        if (selected.uidvalidity or 0) != box.epoch:
            selected = await opened_twice_alike(session, record.wire_name, selected)
        if (selected.uidvalidity or 0) != box.epoch:
            await reset(self._ctx, session, box, selected, "uidvalidity_changed")
            return None
        if await renumbered(self._ctx, session, box):
            await reset(self._ctx, session, box, selected, "uids_renumbered")
            return None
        finding = Finding(box, uidnext=record.uidnext, modseq=selected.highestmodseq)
        known = box.known()
        # A pass that broke off may have left messages above the cursor; these may have gone meanwhile, too.
        watermark = max(record.uidnext, known.max() + 1) if known else record.uidnext
        if selected.highestmodseq is not None and selected.highestmodseq < record.highestmodseq:
            # The server lost its history (case 6). Kept, whatever becomes of this look: by the next one the number may
            # have passed the cursor again, and nothing would tell.
            record.highestmodseq, record.reconciled_at, box.dirty = 0, 0.0, True
        answer = await flags_and_vanished(self._ctx, session, box, selected, full=full)
        vanished = answer.vanished
        # what was refused meanwhile has told nothing
        qresync = self._ctx.has_qresync(session) and selected.highestmodseq is not None
        if not self._ctx.has_condstore(session):
            finding.modseq = None  # flags were not asked for since the cursor: it must not pass those in no window
        elif self._ctx.memory.asks_again(record.mailbox_id, whole=answer.whole):
            finding.modseq = None
        await self._find_new(session, finding, selected, vanished)
        now = self._ctx.wall()
        due = full or comparison_due(record, now=now, full_after_s=self._ctx.settings.FULL_RECONCILE_S)
        whole = is_whole(record)
        counted = expected_count(record) + len(finding.new) - len(vanished) == selected.exists
        # without QRESYNC only counts tell of removals; with it they tell of a server that forgot to
        if due or (whole and not counted) or (not whole and not qresync):
            found = await compare(self._ctx, session, box, selected, watermark, len(finding.new))
            if found is not None:
                vanished |= found[0]
                finding.missing |= found[1] - finding.new
                finding.reconciled = True
        self.state.unread_gone(box, [uid for uid in record.quarantined if uid in vanished])
        finding.again = BitMap(uid for uid, q in record.quarantined.items() if retry_due(q, now) and uid < watermark)
        held.hold(box, vanished & box.known())
        if record.aside is not None or record.unstable or record.failures:
            record.aside, record.aside_until, record.unstable, record.failures = None, None, 0, 0
            box.dirty = True
        return finding

    async def _find_new(self, session: ImapSession, finding: Finding, selected: Selected, vanished: BitMap) -> None:
        """UIDs at or above the watermark. A tagged OK without any proves the range up to UIDNEXT empty (case 21)."""
        box, record = finding.box, finding.box.record
        watermark, top = record.uidnext, selected.uidnext
        if top == watermark or watermark > HIGHEST_UID:
            return
        answer = await session.uid_search(f"UID {watermark}:*".encode())
        there = BitMap(uid for uid in answer.uids if uid >= watermark)
        finding.new = there - BitMap(record.quarantined) - box.known()
        if not answer.stated and not (is_whole(record) and expected_count(record) - len(vanished) >= selected.exists):
            return  # no result line, and there may be something to tell: the range is not proven empty (case 25)
        # Past what is known or set aside, too: where UIDNEXT is not told, nothing else would take the cursor there.
        finding.uidnext = max(watermark, top or 1, there.max() + 1 if there else 1)

    # --- reading and concluding --------------------------------------------------------------------------------------
    async def _read_found(self, session: ImapSession, finding: Finding, held: HeldRemovals) -> Finding | None:
        box = finding.box
        if session.selected != box.record.wire_name:
            await session.examine(box.record.wire_name)
            if not has_open(session, box):
                log.info("mailbox %s: it was replaced between two looks", box.record.mailbox_id)
                return None  # nothing was read, so the cursor stays; the next pass sees the new epoch
        parts: tuple[tuple[BitMap, Origin], ...] = ((finding.new, "live"), (finding.missing, "repair"))
        for uids, origin in parts:
            await self._read_all(session, box, uids, origin, held)
        finding.new, finding.missing = BitMap(), BitMap()
        return finding

    async def _read_all(
        self, session: ImapSession, box: MailboxState, uids: BitMap, origin: Origin, held: HeldRemovals
    ) -> None:
        """Windows, newest first; then one by one those after which a connection ended before."""
        trouble = self._ctx.memory.trouble
        suspects = trouble.suspected(box, uids)
        for window in _windows(uids - suspects, self.reader):
            await self.reader.read(session, box, window, origin, held)
            trouble.grow(self._ctx.settings.FETCH_WINDOW)
        for uid in suspects:
            await self.reader.read(session, box, BitMap([uid]), origin, held)

    async def _try_again(self, session: ImapSession, finding: Finding) -> None:
        """Messages set aside earlier whose time has come: alone, and after everything else was published."""
        box = finding.box
        if not finding.again or box.deleted:
            return
        if session.selected != box.record.wire_name:
            await session.examine(box.record.wire_name)
            if not has_open(session, box):
                return
        for uid in finding.again[:RETRIES_PER_PASS]:
            await self.reader.read(session, box, BitMap([uid]), "repair", HeldRemovals())
        await self.reader.settle()

    async def _conclude(self, findings: list[Finding], held: HeldRemovals) -> None:
        for box, epoch, uids in held.rest():
            if box.record.mailbox_id in self.state.mailboxes and not self._is_deleted(box, findings):
                await remove(self._ctx, box, uids, epoch)
        for finding in findings:
            if finding.new or finding.missing:
                continue  # not everything was read: the cursor stays where it is
            record = finding.box.record
            if record.uidnext != finding.uidnext:
                record.uidnext = finding.uidnext
                finding.box.dirty = True
            if finding.modseq is not None and record.highestmodseq != finding.modseq:
                record.highestmodseq = finding.modseq
                finding.box.dirty = True
            if finding.reconciled:
                record.reconciled_at = self._ctx.wall()
                finding.box.dirty = True
        await self.reader.flush()

    @staticmethod
    def _is_deleted(box: MailboxState, findings: list[Finding]) -> bool:
        """Places of a deleted mailbox go with `mailbox.deleted`; only looked-at mailboxes get removals of their own."""
        return all(f.box is not box for f in findings)

    # --- the watched mailbox -----------------------------------------------------------------------------------------
    async def take(self, session: ImapSession, box: MailboxState, changes: Changes) -> bool:
        """Publish what an open mailbox told unasked. False when only a pass can tell what happened."""
        if changes.mailbox_closed or changes.overflowed or changes.expunged or changes.unidentified or changes.vanished:
            return False
        if box.record.previous is not None or not box.record.visited:
            return False
        # what a pass has seen already may come late here, after something newer: the cursor tells (RFC 7162, 3.1)
        cursor = box.record.highestmodseq
        apply_flags(self._ctx, box, [m for m in changes.fetched.values() if m.modseq is None or m.modseq > cursor])
        if changes.exists is not None:
            await self._read_arrivals(session, box)
        await self.reader.settle()
        return True

    async def _read_arrivals(self, session: ImapSession, box: MailboxState) -> None:
        """Everything from uidnext on, in one command. UIDs grow, so the highest one seen is proof for all below it."""
        record = box.record
        low = record.uidnext
        if low > HIGHEST_UID:
            return
        held = HeldRemovals()
        if self._ctx.memory.trouble.window >= self._ctx.settings.FETCH_WINDOW and not self._ctx.settings.PREVIEW_BYTES:
            seen = await self.reader.read(session, box, low, "live", held)
        else:
            found = await session.uid_search(f"UID {low}:*".encode())
            seen = BitMap(uid for uid in found.uids if uid >= low)
            await self._read_all(session, box, seen - box.known() - BitMap(record.quarantined), "live", held)
        if seen:
            record.uidnext = max(record.uidnext, seen.max() + 1)
            box.dirty = True


def _windows(uids: BitMap, reader: Reader) -> list[BitMap]:
    return list(windows_newest_first(uids, reader.window()))
