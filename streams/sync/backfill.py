"""History, newest first: one window at a time, so that live mail never waits for more than one.

The state is the mailbox's own: `floor` falls over UIDs whose events are committed. A window that was interrupted is
found again by set difference, since what was already published is known. After a reset the same walk pairs old places
with new ones.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.domain.plan import is_aside, within
from streams.errors import HostBusy, MailboxError, RetryLater
from streams.imap.session import ImapSession
from streams.settings import Settings
from streams.sync.comparing import search_step, since_criterion
from streams.sync.context import Memory, has_open
from streams.sync.epochs import utc
from streams.sync.moves import HeldRemovals
from streams.sync.passes import AccountPass
from streams.sync.state import AccountState, MailboxState

WINDOW_TARGET_S = 1.0
"""A window that takes longer is made smaller: it is how long live mail may have to wait."""


class Backfill:
    """Walks the history of an account with one session. The caller holds the account's lock for each `step`."""

    def __init__(
        self,
        state: AccountState,
        settings: Settings,
        memory: Memory,
        account_pass: AccountPass,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.state = state
        self._settings = settings
        self._memory = memory
        self._pass = account_pass
        self._wall = wall
        self._below: dict[tuple[str, int], BitMap] = {}
        self._held: dict[tuple[str, int], HeldRemovals] = {}
        self.read = 0

    async def settle(self) -> None:
        """Wait until everything read is committed. Raises `ProducerLost`."""
        await self._pass.reader.settle()

    def next_box(self, only: frozenset[str] | None = None) -> MailboxState | None:
        """The mailbox (of `only` these) to go on with: those after a reset first, then INBOX, special-use folders, the
        others.
        """
        now = self._wall()
        open_boxes = [
            box
            for box in self.state.iterate()
            if (only is None or box.record.mailbox_id in only)
            and box.record.visited
            and box.synced
            # an old epoch is still to be ended, whatever the record says: earlier versions could leave one behind
            and (not box.record.backfill_done or box.record.previous is not None)
            and not is_aside(box.record, now)
        ]
        return min(open_boxes, key=lambda box: box.record.previous is None, default=None)

    async def step(self, session: ImapSession, *, only: frozenset[str] | None = None) -> bool:
        """Read one window. False when there is nothing left to do: the caller settles then, with what it has to add.
        Raises what the session and the log raise.
        """
        box = self.next_box(only)
        if box is None:
            return False
        try:
            await self._step(session, box)
        except (MailboxError, RetryLater) as error:
            self._forget(box)
            if isinstance(error, HostBusy) or not session.alive:
                raise
            self._pass.set_aside(box, error)
        if self.next_box(only) is None:
            return False
        await self._pass.reader.hand_over()
        return True

    async def _step(self, session: ImapSession, box: MailboxState) -> None:
        record = box.record
        reader = self._pass.reader
        if not has_open(session, box):
            await session.examine(record.wire_name)
            if not has_open(session, box):
                self._forget(box)
                await self._pass.visit(session, box)  # case 14: a new epoch, whose history is read from its top
                return
        key = (record.mailbox_id, box.epoch)
        below = self._below.get(key)
        if below is None:
            below = self._below[key] = await self._search_below(session, box)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = HeldRemovals()
            if record.previous is not None:
                held.hold(box, box.known(record.previous), record.previous)
        rest = self._rest(box, below)
        size = reader.window()
        if record.limit_count is not None:
            size = max(1, min(size, record.limit_count - record.backfilled))
        window = self._before_suspects(box, rest[max(0, len(rest) - size) :])
        if window:
            started = time.monotonic()
            await reader.read(session, box, window, "backfill", held)
            self._adapt(time.monotonic() - started)
            record.floor = min(record.floor, window.min())
            record.backfilled += len(window)
            self.read += len(window)
            below.remove_range(window.min(), 1 << 32)
            box.dirty = True
        if not self._rest(box, below):
            await self._finish(box)

    @staticmethod
    def _rest(box: MailboxState, below: BitMap) -> BitMap:
        """UIDs that are still to be read."""
        record = box.record
        limited = record.limit_count is not None and record.backfilled >= record.limit_count
        return BitMap() if limited else below - box.known() - BitMap(record.quarantined)

    def _before_suspects(self, box: MailboxState, window: BitMap) -> BitMap:
        """The window without messages after which a connection ended: those come alone, when it is their turn."""
        suspects = self._memory.trouble.suspected(box, window)
        if not suspects:
            return window
        highest = suspects.max()
        return within(window, highest + 1, window.max() + 1) or BitMap([highest])

    def _adapt(self, seconds: float) -> None:
        if seconds > 1.5 * WINDOW_TARGET_S:
            self._memory.trouble.window = max(50, self._memory.trouble.window // 2)
        elif seconds < 0.7 * WINDOW_TARGET_S:
            self._memory.trouble.grow(self._settings.FETCH_WINDOW)

    async def _search_below(self, session: ImapSession, box: MailboxState) -> BitMap:
        """UIDs of the server below the floor, within the limit in force."""
        record = box.record
        # after a reset everything is looked at, since a known message may be older than the limit
        limit = "" if record.since is None or record.previous is not None else f" {since_criterion(record.since)}"
        if record.floor <= 1:
            return BitMap()
        step = search_step(session, record.floor, session.exists)
        found = BitMap()
        stated = True
        low = 1
        while low < record.floor:
            high = min(record.floor, low + step)
            answer = await session.uid_search(f"UID {low}:{high - 1}{limit}".encode())
            found |= answer.uids
            stated = stated and answer.stated
            low = high
        if (record.previous is not None or not (stated or limit)) and (
            len(found | box.known() | BitMap(record.quarantined)) < (session.exists or 0)
        ):
            # The mailbox holds more than was told of. To believe that after a reset would tell what was left out as
            # removed, so FETCH has the last word (cases 24, 25).
            async with contextlib.aclosing(session.uid_fetch(f"1:{record.floor - 1}", [b"UID", b"FLAGS"])) as chunks:
                async for chunk in chunks:
                    found.update(message.uid for message in chunk.messages)
        return within(found, 1, record.floor)

    async def _finish(self, box: MailboxState) -> None:
        record = box.record
        await self._pass.remove_previous(box)
        if record.limit_count is None or record.backfilled < record.limit_count:
            record.floor = 1  # there is nothing below it that is wanted
        record.backfill_done = True
        box.dirty = True
        self._forget(box)
        self.state.emit(
            events.BackfillCompleted,
            mailbox_id=record.mailbox_id,
            mailbox=record.name,
            messages=record.count,
            since=None if record.since is None else utc(record.since),
        )

    def _forget(self, box: MailboxState) -> None:
        for memo in (self._below, self._held):
            for key in [k for k in memo if k[0] == box.record.mailbox_id]:
                del memo[key]
