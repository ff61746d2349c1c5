"""One look at an account: which mailboxes are there, which of them moved, and what happened in those.

Order matters. First every mailbox that moved is opened and asked for flags, removals and new UIDs; removals are held. Then new
messages are read, so that a message that vanished here and appeared there becomes one `message.moved`. What is left of the removals
is published last, and with it each mailbox's cursor advances: uidnext and modification sequence together, never before the events.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.domain.identity import choose_basis, message_id_of
from streams.domain.mirror import LABEL, MailboxRecord
from streams.domain.plan import (
    ListingPlan,
    ServerMailbox,
    attributes_differ,
    expected_count,
    is_renumbered,
    is_whole,
    mismatches,
    needs_visit,
    next_scan_window,
    plan_listing,
    reconcile,
    uid_set,
    windows_newest_first,
)
from streams.errors import HostBusy, MailboxError, MailboxUnusable, MailstreamsError, RetryLater
from streams.imap.errors import CommandRejected
from streams.imap.session import ImapSession
from streams.imap.values import Changes, FetchedMessage, ListedMailbox, MailboxStatus, Selected
from streams.observer import RuntimeObserver
from streams.settings import Settings
from streams.sync import fetching
from streams.sync.moves import HeldRemovals
from streams.sync.reading import Origin, Reader, Trouble
from streams.sync.state import AccountState, MailboxState, message_text_id

log = logging.getLogger(__name__)

_T = TypeVar("_T")
REMOVALS_PER_BATCH = 500
SEARCH_WINDOW = 20_000
"""UIDs per SEARCH without ESEARCH: the answer is one line of numbers."""
UNSTABLE_LIMIT = 3
"""UIDVALIDITY changes in a row, without a quiet look between them, after which a mailbox is set aside."""
ASIDE_S = 6 * 3600.0
"""Longest time, and the time for what only a person can change."""
ASIDE_FIRST_S = 60.0
SPOT_CHECKS = 3
SPOT_CHECKS_IN_DOUBT = 30
RETRIES_PER_PASS = 5
"""Messages set aside that are tried again in one look at a mailbox: each may cost the connection."""
_LASTING = frozenset(
    {
        "mailbox_permission",
        "mailbox_not_selectable",
        "mailbox_name_unsafe",
        "uidvalidity_unstable",
        "too_many_unreadable",
    }
)
GMAIL = "X-GM-EXT-1"
_GMAIL_BOXES = frozenset({"\\all", "\\junk", "\\trash"})


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


@dataclass(slots=True)
class PassResult:
    """What a pass did, for status and for the answer of a command."""

    visited: int = 0
    added: int = 0
    removed: int = 0
    moved: int = 0
    flags: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    mailboxes: int = 0


@dataclass(slots=True)
class Memory:
    """What a runner remembers between passes and connections; losing it costs work, never correctness."""

    trouble: Trouble
    checked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Capabilities that are offered and do not work."""


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
        self._settings = settings
        self._observer = observer
        self._memory = memory
        self._wall = wall
        self.result = PassResult()

    # --- the pass ----------------------------------------------------------------------------------------------------
    async def run(
        self, session: ImapSession, *, full: bool = False, only: str | None = None, always: bytes | None = None
    ) -> PassResult:
        """Look at the whole account (or the mailbox with id `only`); `full` distrusts counts and modification sequences.

        `always` names a mailbox to open whether it moved or not.
        """
        state = self.state
        if state.record.basis is None:
            state.record.basis = choose_basis(session.capabilities)
            state.touch()
        self.extend_history()
        opened = session.selected  # what STATUS says of an open mailbox is as old as its opening (RFC 9051, 6.3.11)
        listed = await self._list(session)
        plan, deleted = await self._apply_listing(*listed)
        await self._show_views(self._choose(session, listed[0]))
        condstore = _has_condstore(session, self._memory)
        now = self._wall()
        visits: list[MailboxState] = []
        for record, server in (*plan.same, *plan.renamed):
            box = state.mailboxes.get(record.mailbox_id)
            if box is None or not box.synced or (only is not None and record.mailbox_id != only):
                continue
            if record.aside_until is not None and record.aside_until > now and not full:
                continue
            due = any(q.retry_at <= now for q in record.quarantined.values())
            interval = self._settings.FULL_RECONCILE_S
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
                await self._guarded(
                    session, finding.box, self._read_found(session, finding, held, reopen=len(findings) > 1)
                )
        await self._conclude(findings, held)
        for box in deleted:
            self.state.emit(events.MailboxDeleted, mailbox_id=box.record.mailbox_id, mailbox=box.record.name)
            state.remove_mailbox(box)
        await self.reader.settle()
        for finding in findings:
            await self._guarded(session, finding.box, self._try_again(session, finding))
        self.result.visited += len(visits)
        self.result.mailboxes = len(state.mailboxes)
        return self.result

    async def visit(self, session: ImapSession, box: MailboxState, *, full: bool = False) -> PassResult:
        """Look at one mailbox that is known, and leave the session in it."""
        held = HeldRemovals()
        finding = await self._look(session, box, held, full=full)
        if finding is not None:
            if finding.new or finding.missing:
                await self._read_found(session, finding, held, reopen=False)
            await self._conclude([finding], held)
            await self._try_again(session, finding)
        await self.reader.settle()
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

    def set_aside(self, box: MailboxState, error: MailstreamsError) -> None:
        """Leave the mailbox alone for some time: for as long as the server asks, or longer with each failure in a row."""
        record = box.record
        record.failures += 1
        wait = min(ASIDE_S, ASIDE_FIRST_S * 2.0 ** min(record.failures - 1, 9))
        if error.code in _LASTING:
            wait = ASIDE_S
        if error.retry_after_s is not None:
            wait = max(wait, error.retry_after_s)
        record.aside = f"{error.code}: {error}"[:300]
        record.aside_until = self._wall() + wait * (0.9 + 0.2 * random.random())
        box.dirty = True
        self.result.failed[record.name] = record.aside
        self._observer.quarantined("mailbox", error.code)
        log.warning("mailbox %s set aside: %s", record.mailbox_id, record.aside)

    # --- listing -----------------------------------------------------------------------------------------------------
    def _choose(self, session: ImapSession, listed: list[ServerMailbox]) -> set[bytes]:
        """Wire names of mailboxes that only show mail of others: with Gmail all but All Mail, Spam and Trash (case 97)."""
        if not session.has(GMAIL) or not any(m.special_use == "\\all" and m.selectable for m in listed):
            return set()
        return {m.wire_name for m in listed if m.selectable and m.special_use not in _GMAIL_BOXES}

    async def _show_views(self, views: set[bytes]) -> None:
        """Mailboxes that became views, or ceased to be: a view holds no places of its own."""
        for box in self.state.mailboxes.values():
            record = box.record
            view = record.wire_name in views
            if view == record.view:
                continue
            record.view = view
            box.dirty = True
            if view and record.visited:
                await self.remove_previous(box)
                await self._remove(box, box.known().copy(), box.epoch)
                record.quarantined.clear()
                record.visited, record.backfill_done, record.aside, record.aside_until = False, False, None, None

    async def _list(self, session: ImapSession) -> tuple[list[ServerMailbox], bool]:
        answer = await session.list_mailboxes(with_status=True)
        statuses: dict[bytes, MailboxStatus | MailboxError] = {}
        asked = [m.wire_name for m in answer.mailboxes if m.selectable and m.status is None]
        if asked:
            statuses = await session.statuses(asked)
        listed = []
        for m in answer.mailboxes:
            status = m.status or statuses.get(m.wire_name)
            listed.append(_server_mailbox(m, status if isinstance(status, MailboxStatus) else None))
        return listed, answer.unreadable == 0 and bool(answer.mailboxes)

    async def _apply_listing(
        self, listed: list[ServerMailbox], complete: bool
    ) -> tuple[ListingPlan, list[MailboxState]]:
        state = self.state
        plan = plan_listing([b.record for b in state.mailboxes.values()], listed, complete=complete)
        for record, server in plan.same:
            box = state.mailboxes[record.mailbox_id]
            if attributes_differ(record, server):
                self._rename(box, server)
            elif server.object_id and record.object_id != server.object_id:
                record.object_id = server.object_id
                box.dirty = True
        for record, server in plan.renamed:
            self._rename(state.mailboxes[record.mailbox_id], server)
        for server in plan.discovered:
            box = state.add_mailbox(
                MailboxRecord(
                    mailbox_id=state.new_mailbox_id(),
                    wire_name=server.wire_name,
                    name=server.name,
                    delimiter=server.delimiter,
                    special_use=server.special_use,
                    selectable=server.selectable,
                    attributes=server.attributes,
                    object_id=server.object_id,
                    # Not 0: a server tells 0 of a mailbox that it will make when it is first opened.
                    uidvalidity=(server.uidvalidity or None) if server.selectable else None,
                )
            )
            plan.same.append((box.record, server))
            state.emit(
                events.MailboxDiscovered,
                mailbox_id=box.record.mailbox_id,
                mailbox=server.name,
                wire_name=server.wire_name.decode("ascii", "backslashreplace"),
                selectable=server.selectable,
                uidvalidity=box.record.uidvalidity,
                delimiter=server.delimiter,
                special_use=server.special_use,
                attributes=server.attributes,
            )
        await self.reader.flush()
        return plan, [state.mailboxes[m.mailbox_id] for m in plan.deleted]

    def _rename(self, box: MailboxState, server: ServerMailbox) -> None:
        record = box.record
        previous = record.name
        record.wire_name, record.name, record.delimiter = server.wire_name, server.name, server.delimiter
        record.special_use, record.attributes = server.special_use, server.attributes
        record.object_id = server.object_id or record.object_id
        box.dirty = True
        self._memory.checked.discard(record.mailbox_id)
        self.state.emit(
            events.MailboxRenamed,
            mailbox_id=record.mailbox_id,
            mailbox=server.name,
            previous=previous,
            wire_name=server.wire_name.decode("ascii", "backslashreplace"),
            delimiter=server.delimiter,
            special_use=server.special_use,
            selectable=server.selectable,
        )

    # --- looking -----------------------------------------------------------------------------------------------------
    async def _look(self, session: ImapSession, box: MailboxState, held: HeldRemovals, *, full: bool) -> Finding | None:
        record = box.record
        selected = await session.examine(record.wire_name)
        if not record.visited:
            await self._first_visit(session, box, selected)
            return None
        if (selected.uidvalidity or 0) != box.epoch:
            again = await session.examine(record.wire_name)
            if again.uidvalidity != selected.uidvalidity:
                raise MailboxUnusable("its UIDVALIDITY changes each time it is opened", code="uidvalidity_unstable")
            await self._reset(session, box, again, "uidvalidity_changed")
            return None
        if await self._renumbered(session, box):
            await self._reset(session, box, selected, "uids_renumbered")
            return None
        finding = Finding(box, uidnext=record.uidnext, modseq=selected.highestmodseq)
        watermark = record.uidnext
        qresync = _has_qresync(session, self._memory) and selected.highestmodseq is not None
        lost = (selected.highestmodseq or 0) < record.highestmodseq
        vanished = await self._flags_and_vanished(session, box, selected, full=full or lost)
        await self._find_new(session, finding, selected, vanished)
        now = self._wall()
        due = full or now - record.reconciled_at >= self._settings.FULL_RECONCILE_S
        whole = is_whole(record)
        counted = expected_count(record) + len(finding.new) - len(vanished) == selected.exists
        # without QRESYNC only counts tell of removals; with it they tell of a server that forgot to
        if due or lost or (whole and not counted) or (not whole and not qresync):
            found = await self._compare(session, box, selected, watermark, len(finding.new))
            if found is not None:
                vanished |= found[0]
                finding.missing |= found[1]
                finding.reconciled = True
        for uid in [uid for uid in record.quarantined if uid in vanished]:
            del record.quarantined[uid]
            box.dirty = True
        finding.again = BitMap(uid for uid, q in record.quarantined.items() if q.retry_at <= now and uid < watermark)
        held.hold(box, vanished & box.known())
        if record.aside is not None or record.unstable or record.failures:
            record.aside, record.aside_until, record.unstable, record.failures = None, None, 0, 0
            box.dirty = True
        return finding

    async def _find_new(self, session: ImapSession, finding: Finding, selected: Selected, vanished: BitMap) -> None:
        """UIDs at or above the watermark. A tagged OK without any proves the range up to UIDNEXT empty (case 21)."""
        box, record = finding.box, finding.box.record
        watermark, top = record.uidnext, selected.uidnext
        if top == watermark:
            return
        answer = await session.uid_search(f"UID {watermark}:*".encode())
        finding.new = BitMap(uid for uid in answer.uids if uid >= watermark) - BitMap(record.quarantined)
        finding.new -= box.known()
        if not answer.stated and not (is_whole(record) and expected_count(record) - len(vanished) >= selected.exists):
            return  # no result line, and there may be something to tell: the range is not proven empty (case 25)
        finding.uidnext = max(watermark, top or 1, finding.new.max() + 1 if finding.new else 1)

    async def _first_visit(self, session: ImapSession, box: MailboxState, selected: Selected) -> None:
        record = box.record
        uidvalidity = selected.uidvalidity or 0
        if record.uidvalidity is not None and record.uidvalidity != uidvalidity:
            # Made anew since it was listed, or the list told another one than the mailbox itself.
            selected = await session.examine(record.wire_name)
            if (selected.uidvalidity or 0) != uidvalidity:
                raise MailboxUnusable("its UIDVALIDITY changes each time it is opened", code="uidvalidity_unstable")
            self.state.emit(
                events.MailboxReset,
                mailbox_id=record.mailbox_id,
                mailbox=record.name,
                previous_uidvalidity=record.uidvalidity,
                uidvalidity=uidvalidity,
                reason="uidvalidity_changed",
            )
        record.uidvalidity = uidvalidity
        record.uidnext = await self._top(session, selected)
        record.floor = record.uidnext
        record.highestmodseq = selected.highestmodseq or 0
        record.visited = True
        record.reconciled_at = self._wall()
        record.backfill_done = record.uidnext <= 1 or selected.exists == 0
        if record.backfill_done:
            record.floor = 1
        record.since = self._since()
        box.dirty = True
        if record.backfill_done:
            self._backfill_completed(box)
        await self.reader.flush()

    def _since(self) -> float | None:
        days = self._settings.sync_since_days
        return None if days is None else self._wall() - days * 86_400.0

    def extend_history(self) -> None:
        """`SYNC_SINCE` reaches further back than the limit in force: the history is walked again. A shorter one changes nothing."""
        wanted = self._since()
        for box in self.state.mailboxes.values():
            record = box.record
            if not record.visited or record.since is None:
                continue
            if wanted is None or wanted < record.since - 86_400.0:
                record.since = wanted
                record.floor = record.uidnext
                record.backfill_done = False
                box.dirty = True

    async def _top(self, session: ImapSession, selected: Selected) -> int:
        """UIDNEXT, or the highest UID plus one where the server does not say (case 20): unknown is not zero."""
        if selected.uidnext is not None:
            return max(selected.uidnext, 1)
        answer = await session.uid_search(b"ALL", returns="bounds")
        return (answer.maximum or 0) + 1

    def _backfill_completed(self, box: MailboxState) -> None:
        record = box.record
        self.state.emit(
            events.BackfillCompleted,
            mailbox_id=record.mailbox_id,
            mailbox=record.name,
            messages=record.count,
            since=None if record.since is None else utc(record.since),
        )

    async def _reset(self, session: ImapSession, box: MailboxState, selected: Selected, reason: str) -> None:
        """A new epoch (RFC 9051, 2.3.1.1): nothing of the old one may be believed; its places are paired or removed later."""
        record = box.record
        if record.unstable >= UNSTABLE_LIMIT and record.aside is None:
            raise MailboxUnusable("its UIDVALIDITY does not hold still", code="uidvalidity_unstable")
        record.unstable += 1
        record.aside, record.aside_until = None, None
        if record.previous is not None:
            await self.remove_previous(box)
        uidvalidity = selected.uidvalidity or 0
        same = uidvalidity == box.epoch
        self.state.emit(
            events.MailboxReset,
            mailbox_id=record.mailbox_id,
            mailbox=record.name,
            previous_uidvalidity=box.epoch,
            uidvalidity=uidvalidity,
            reason=reason,
        )
        if same:
            # old and new places would have the same names: they cannot stand side by side
            await self._remove(box, box.known().copy(), box.epoch)
            record.quarantined.clear()
        else:
            box.begin_epoch(uidvalidity)
        record.uidnext = await self._top(session, selected)
        record.floor = record.uidnext
        record.highestmodseq = selected.highestmodseq or 0
        record.backfill_done = False
        record.backfilled = 0
        record.reconciled_at = self._wall()
        box.dirty = True
        self._observer.quarantined("epoch", reason)
        await self.reader.flush()

    async def _renumbered(self, session: ImapSession, box: MailboxState) -> bool:
        """Spot-check of a few known UIDs, once per runner and mailbox; each time where UIDVALIDITY is 0 (cases 16, 34)."""
        record = box.record
        if record.mailbox_id in self._memory.checked and box.epoch:
            return False
        known = box.known()
        if not known:
            return False
        sample = known[max(0, len(known) - SPOT_CHECKS + 1) :]
        sample.add(known[random.randrange(len(known))])
        wrong, answered = await self._spot_check(session, box, sample)
        if wrong:
            more = BitMap(known[random.randrange(len(known))] for _ in range(SPOT_CHECKS_IN_DOUBT)) - sample
            if more:
                further = await self._spot_check(session, box, more)
                wrong, answered = wrong + further[0], answered + further[1]
        self._memory.checked.add(record.mailbox_id)
        return is_renumbered(wrong, answered)

    async def _spot_check(self, session: ImapSession, box: MailboxState, sample: BitMap) -> tuple[int, int]:
        """How many of the sample are not what they were, and how many answered."""
        found: dict[int, FetchedMessage] = {}
        items = fetching.message_items(session.capabilities, structure=False)
        async with contextlib.aclosing(session.uid_fetch(uid_set(sample), items)) as chunks:
            async for chunk in chunks:
                found.update((m.uid, m) for m in chunk.messages if fetching.is_complete(m))
        basis = self.state.record.basis or "content"
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
            answered.append(fetching.identity_of(self.state.account_id, basis, message, canonical, place=place))
        return mismatches(expected, answered)

    async def _flags_and_vanished(
        self, session: ImapSession, box: MailboxState, selected: Selected, *, full: bool
    ) -> BitMap:
        """Publish flag changes of known messages; returns what the server says has vanished (QRESYNC only)."""
        record = box.record
        vanished = BitMap()
        known = box.known()
        if not known or record.uidnext <= 1:
            return vanished
        current = selected.highestmodseq
        condstore = current is not None and _has_condstore(session, self._memory)
        items = fetching.flag_items(session.capabilities)
        if not condstore:
            items = [item for item in items if item != b"MODSEQ"]
        if full or (condstore and record.highestmodseq == 0):
            # no history to build on, or the server lost it (case 6): read every flag
            for window in windows_newest_first(known.copy(), SEARCH_WINDOW):
                await self._read_flags(session, box, uid_set(window), items)
        elif condstore:
            if (current or 0) > record.highestmodseq:
                return (await self._changed_since(session, box, items)) & known
        else:
            await self._scan_flags(session, box, items)
        return vanished

    async def _changed_since(self, session: ImapSession, box: MailboxState, items: list[bytes]) -> BitMap:
        """Flags that changed since the cursor, and with QRESYNC what vanished (RFC 7162, 3.1.4.1 and 3.2.6)."""
        record = box.record
        vanished = BitMap()
        span = f"1:{record.uidnext - 1}"
        qresync = _has_qresync(session, self._memory)
        try:
            async with contextlib.aclosing(
                session.uid_fetch(span, items, changed_since=record.highestmodseq, vanished=qresync)
            ) as chunks:
                async for chunk in chunks:
                    self.apply_flags(box, chunk.messages)
                    vanished |= chunk.vanished
                    await self.reader.flush()
        except CommandRejected as error:
            # offered, and not understood (case 11): never again with this runner, this time the long way
            self._memory.refused.add("QRESYNC" if qresync else "CONDSTORE")
            log.warning("mailbox %s: %s; doing without", record.mailbox_id, error)
            if qresync:
                return await self._changed_since(session, box, items)
            await self._scan_flags(session, box, [item for item in items if item != b"MODSEQ"])
        return vanished

    async def _read_flags(self, session: ImapSession, box: MailboxState, uids: str, items: list[bytes]) -> None:
        async with contextlib.aclosing(session.uid_fetch(uids, items)) as chunks:
            async for chunk in chunks:
                self.apply_flags(box, chunk.messages)
                await self.reader.flush()

    async def _scan_flags(self, session: ImapSession, box: MailboxState, items: list[bytes]) -> None:
        """Without CONDSTORE: the newest messages each time, the rest in turn within `FLAG_SCAN_S`."""
        record, settings = box.record, self._settings
        known = box.known()
        newest = known[max(0, len(known) - settings.FLAG_WINDOW) :]
        rest = known - newest
        wanted = newest.copy()
        if rest:
            polls = max(1.0, settings.FLAG_SCAN_S / settings.POLL_WARM)
            size = max(settings.FLAG_WINDOW, int(len(rest) / polls) + 1)
            window, following = next_scan_window(rest, record.scan_next, size, newest.min() if newest else 1 << 32)
            wanted |= window
            if record.scan_next != following:
                record.scan_next = following
                box.dirty = True
        if wanted:
            await self._read_flags(session, box, uid_set(wanted), items)

    def apply_flags(self, box: MailboxState, messages: list[FetchedMessage]) -> None:
        """Publish differences of flags; unknown UIDs and absent items change nothing."""
        known = box.known()
        for message in messages:
            flags = fetching.flags_of(message)
            if flags is None or message.uid not in known:
                continue
            before = box.flags(message.uid)
            if message.gm_labels is None:
                flags |= {f for f in before if f.startswith(LABEL)}
            if flags == before:
                continue
            after = box.set_flags(message.uid, flags)
            if after == before:
                continue
            plain, labels = fetching.split_labels(after, labelled=message.gm_labels is not None)
            self.state.emit(
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
            self.result.flags += 1

    async def _still_there(self, session: ImapSession, box: MailboxState, uids: BitMap) -> BitMap:
        """UIDs that a search denies and FETCH answers: the search was incomplete, however well-formed (case 24)."""
        found = BitMap()
        for window in windows_newest_first(uids, self._settings.FETCH_WINDOW):
            async with contextlib.aclosing(session.uid_fetch(uid_set(window), [b"UID", b"FLAGS"])) as chunks:
                async for chunk in chunks:
                    found.update(message.uid for message in chunk.messages)
        if found:
            log.warning("mailbox %s: search denies %d messages that are there", box.record.mailbox_id, len(found))
        return found & uids

    async def _compare(
        self, session: ImapSession, box: MailboxState, selected: Selected, watermark: int, fresh: int
    ) -> tuple[BitMap, BitMap] | None:
        """Set difference of the region against a complete answer: (vanished, missing). None when nothing may be concluded.

        Removals are believed when the search and the count of messages (with `fresh` new ones) agree, or FETCH confirms them.
        """
        record = box.record
        vanished, missing = BitMap(), BitMap()
        excluded = 0
        low = record.floor
        known = box.known()
        if known:
            low = min(low, known.min())
        step = (watermark - low) if session.has("ESEARCH") else SEARCH_WINDOW
        while low < watermark:
            high = min(watermark, low + max(step, 1))
            answer = await session.uid_search(f"UID {low}:{high - 1}".encode())
            wanted = answer.uids
            if record.since is not None:
                wanted = (
                    await session.uid_search(f"UID {low}:{high - 1} {since_criterion(record.since)}".encode())
                ).uids
            if not answer.stated and selected.exists > 0 and known.range_cardinality(low, high):
                log.warning("mailbox %s: the search answer was not stated; nothing is concluded", record.mailbox_id)
                return None
            difference = reconcile(known, answer.uids, low=low, high=high, aside=record.quarantined)
            vanished |= difference.vanished
            if high > record.floor:
                absent = difference.missing & BitMap(range(max(low, record.floor), high))
                missing |= absent & wanted
                excluded += len(absent - wanted)
            for uid in [u for u in record.quarantined if low <= u < high and u not in answer.uids]:
                del record.quarantined[uid]
                box.dirty = True
            low = high
        counted = is_whole(record) and expected_count(record) + fresh - len(vanished) == selected.exists
        if vanished and not counted:
            vanished -= await self._still_there(session, box, vanished)
        if record.excluded != excluded:
            record.excluded = excluded
            box.dirty = True
        return vanished, missing

    # --- reading and concluding --------------------------------------------------------------------------------------
    async def _read_found(
        self, session: ImapSession, finding: Finding, held: HeldRemovals, *, reopen: bool
    ) -> Finding | None:
        box = finding.box
        if reopen and session.selected != box.record.wire_name:
            selected = await session.examine(box.record.wire_name)
            if (selected.uidvalidity or 0) != box.epoch:
                log.info("mailbox %s: UIDVALIDITY changed between two looks", box.record.mailbox_id)
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
        trouble = self._memory.trouble
        suspects = trouble.suspected(box, uids)
        for window in _windows(uids - suspects, self.reader):
            await self.reader.read(session, box, window, origin, held)
            trouble.grow(self._settings.FETCH_WINDOW)
        for uid in suspects:
            await self.reader.read(session, box, BitMap([uid]), origin, held)

    async def _try_again(self, session: ImapSession, finding: Finding) -> None:
        """Messages set aside earlier whose time has come: alone, and after everything else was published."""
        box = finding.box
        if not finding.again or box.deleted:
            return
        if session.selected != box.record.wire_name:
            selected = await session.examine(box.record.wire_name)
            if (selected.uidvalidity or 0) != box.epoch:
                return
        for uid in finding.again[:RETRIES_PER_PASS]:
            await self.reader.read(session, box, BitMap([uid]), "repair", HeldRemovals())
        await self.reader.settle()

    async def _conclude(self, findings: list[Finding], held: HeldRemovals) -> None:
        for box, epoch, uids in held.rest():
            if box.record.mailbox_id in self.state.mailboxes and not self._is_deleted(box, findings):
                await self._remove(box, uids, epoch)
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
                record.reconciled_at = self._wall()
                finding.box.dirty = True
        await self.reader.flush()

    @staticmethod
    def _is_deleted(box: MailboxState, findings: list[Finding]) -> bool:
        """Places of a deleted mailbox go with `mailbox.deleted`; only looked-at mailboxes get removals of their own."""
        return all(f.box is not box for f in findings)

    async def _remove(self, box: MailboxState, uids: BitMap, epoch: int) -> None:
        record = box.record
        for count, uid in enumerate(uids.copy(), 1):
            if uid not in box.known(epoch):
                continue
            self.state.emit(
                events.MessageRemoved,
                mailbox_id=record.mailbox_id,
                mailbox=record.name,
                uidvalidity=epoch,
                uid=uid,
                message_id=message_id_of(box.identity(uid, epoch)),
            )
            box.drop(uid, epoch)
            self.result.removed += 1
            if count % REMOVALS_PER_BATCH == 0:
                await self.reader.flush()
        await self.reader.flush()

    async def remove_previous(self, box: MailboxState) -> None:
        """End of a reset: what was not found again in the new epoch is gone."""
        record = box.record
        if record.previous is None:
            return
        await self._remove(box, box.known(record.previous).copy(), record.previous)
        record.previous = None
        box.dirty = True
        await self.reader.flush()

    # --- the watched mailbox -----------------------------------------------------------------------------------------
    async def take(self, session: ImapSession, box: MailboxState, changes: Changes) -> bool:
        """Publish what an open mailbox told unasked. False when only a pass can tell what happened."""
        if changes.mailbox_closed or changes.overflowed or changes.expunged or changes.unidentified or changes.vanished:
            return False
        if box.record.previous is not None or not box.record.visited:
            return False
        # what a pass has seen already may come late here, after something newer: the cursor tells (RFC 7162, 3.1)
        cursor = box.record.highestmodseq
        self.apply_flags(box, [m for m in changes.fetched.values() if m.modseq is None or m.modseq > cursor])
        if changes.exists is not None:
            await self._read_arrivals(session, box)
        await self.reader.settle()
        return True

    async def _read_arrivals(self, session: ImapSession, box: MailboxState) -> None:
        """Everything from uidnext on, in one command. UIDs grow, so the highest one seen is proof for all below it."""
        record = box.record
        low = record.uidnext
        held = HeldRemovals()
        if self._memory.trouble.window >= self._settings.FETCH_WINDOW and not self._settings.PREVIEW_BYTES:
            seen = await self.reader.read(session, box, low, "live", held)
        else:
            found = await session.uid_search(f"UID {low}:*".encode())
            seen = BitMap(uid for uid in found.uids if uid >= low)
            await self._read_all(session, box, seen - box.known() - BitMap(record.quarantined), "live", held)
        if seen:
            record.uidnext = max(record.uidnext, seen.max() + 1)
            box.dirty = True


def _has_qresync(session: ImapSession, memory: Memory) -> bool:
    """Whether VANISHED can be asked for: switched on, and never refused."""
    return "QRESYNC" in session.enabled and not memory.refused & {"QRESYNC", "CONDSTORE"}


def _has_condstore(session: ImapSession, memory: Memory) -> bool:
    return (session.has("CONDSTORE") or session.has("QRESYNC")) and "CONDSTORE" not in memory.refused


def _windows(uids: BitMap, reader: Reader) -> list[BitMap]:
    return list(windows_newest_first(uids, reader.window()))


def _server_mailbox(listed: ListedMailbox, status: MailboxStatus | None) -> ServerMailbox:
    return ServerMailbox(
        wire_name=listed.wire_name,
        name=listed.display_name,
        delimiter=listed.delimiter,
        special_use=listed.special_use,
        attributes=tuple(sorted(listed.attributes)),
        selectable=listed.selectable,
        object_id=listed.mailbox_id or (status.mailbox_id if status else None),
        uidvalidity=status.uidvalidity if status else None,
        uidnext=status.uidnext if status else None,
        messages=status.messages if status else None,
        highestmodseq=status.highestmodseq if status else None,
    )


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def since_criterion(timestamp: float) -> str:
    """SEARCH key for messages not older than a time; SINCE knows whole days only (RFC 9051, 6.4.4), so a day is added."""
    day = datetime.fromtimestamp(timestamp, UTC) - timedelta(days=1)
    return f"SINCE {day.day}-{_MONTHS[day.month - 1]}-{day.year}"


def utc(timestamp: float) -> datetime:
    """Unix seconds to an aware datetime."""
    return datetime.fromtimestamp(timestamp, UTC)
