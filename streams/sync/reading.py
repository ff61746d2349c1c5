"""Fetching messages into the log: windows, chunks, what cannot be read.

One FETCH asks for a window; its answer is streamed in chunks, each chunk is one batch with its mirror records. A
window that the server refuses is halved until the message at fault stands alone. One that ends the connection makes
its first unanswered message a suspect, which is asked for alone and last. A message that fails alone is set aside
with its reason, and the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.domain.backoff import is_ahead
from streams.domain.identity import Basis, message_id_of
from streams.domain.mirror import QUARANTINE_LIMIT, Quarantined
from streams.domain.plan import uid_set
from streams.errors import CommandTimedOut, ConnectionLost, MailboxError, MailboxUnusable
from streams.imap.session import ImapSession
from streams.imap.values import FetchedMessage
from streams.mime import LOOP_FRIENDLY_BYTES, Leaf, preview, text_part
from streams.observer import RuntimeObserver
from streams.settings import Settings
from streams.sync import fetching
from streams.sync.moves import HeldRemovals
from streams.sync.state import AccountState, MailboxState

log = logging.getLogger(__name__)

Origin = Literal["live", "backfill", "repair"]

SLICE = 10
"""Messages turned into events before other tasks get their turn (about a millisecond): dozens of accounts may do so."""
TOGETHER_BYTES = 65_536
"""Events that wait for each other: a transaction costs some five milliseconds of processor time, however little it
takes."""
COMMITS_AHEAD = 2
"""Chunks handed to the log and not yet committed, per account."""
TRIES_ALONE = 2
"""Failures of a message fetched alone before it is set aside."""
REFUSALS_LIMIT = 40
"""Refused commands while a window is halved; with more it is the mailbox that cannot be read."""
STRUCTURE_SUSPECTED = 10
"""Refused messages that came without BODYSTRUCTURE, after which it is not asked for any more."""
SUSPECTS_LIMIT = 1000
REASON_CHARS = 120
HTML_MIN_BYTES = 16_384
HTML_MAX_BYTES = 32_768
"""What is fetched of an HTML part for a preview: much of it is style, of which nothing is shown."""
_RETRY_AFTER_S = (3600.0, 6 * 3600.0, 24 * 3600.0)


def _retry_after_s(attempts: int) -> float:
    return _RETRY_AFTER_S[min(max(attempts, 1), len(_RETRY_AFTER_S)) - 1]


def retry_due(quarantined: Quarantined, now: float) -> bool:
    """Whether a message that was set aside is to be tried again."""
    return not is_ahead(quarantined.retry_at, now=now, longest_s=1.1 * _retry_after_s(quarantined.attempts))


@dataclass(slots=True)
class Trouble:
    """What the runner remembers of failures, across connections: how large a window may be, who is suspected.

    `suspects` counts, for each message after which a connection ended, how often it did so when asked for alone.
    """

    window: int
    suspects: dict[tuple[str, int], int] = field(default_factory=dict)
    without_structure: bool = False

    def shrink(self) -> None:
        """A window failed."""
        self.window = max(1, self.window // 4)

    def grow(self, limit: int) -> None:
        """A window went well."""
        self.window = min(limit, self.window * 2)

    def suspected(self, box: MailboxState, uids: BitMap) -> BitMap:
        """Those of the UIDs that are to be asked for alone."""
        if not self.suspects:
            return BitMap()
        mailbox_id = box.record.mailbox_id
        return uids & BitMap(uid for of, uid in self.suspects if of == mailbox_id)


class Reader:
    """Turns UIDs of the selected mailbox into events of one account."""

    def __init__(
        self,
        state: AccountState,
        settings: Settings,
        observer: RuntimeObserver,
        trouble: Trouble,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._settings = settings
        self._observer = observer
        self._trouble = trouble
        self._wall = wall
        self._in_flight: deque[asyncio.Future[None]] = deque()

    @property
    def structure(self) -> bool:
        """Whether BODYSTRUCTURE is asked for."""
        wanted = self._settings.FETCH_STRUCTURE or self._settings.PREVIEW_BYTES > 0
        return wanted and not self._trouble.without_structure

    def window(self) -> int:
        """Messages the next FETCH may ask for."""
        limit = self._settings.FETCH_CHUNK if self._settings.PREVIEW_BYTES else self._settings.FETCH_WINDOW
        return min(limit, self._trouble.window)

    async def flush(self) -> None:
        """Hand what is pending to the log once it is worth a transaction; the rest goes with what follows, with
        `settle` at the latest. Waits while too much is in flight. Raises `ProducerLost`.
        """
        if self._state.pending_bytes >= TOGETHER_BYTES:
            await self.hand_over()

    async def hand_over(self) -> None:
        """Hand what is pending to the log, however little. Raises `ProducerLost`."""
        await self._state.log.room()
        future = self._state.flush()
        if future is not None:
            self._in_flight.append(future)
        while len(self._in_flight) > COMMITS_AHEAD:
            await asyncio.shield(self._in_flight.popleft())

    async def settle(self) -> None:
        """Wait until everything is committed. Raises `ProducerLost`."""
        await self.hand_over()
        while self._in_flight:
            await asyncio.shield(self._in_flight.popleft())

    async def read(
        self, session: ImapSession, box: MailboxState, uids: BitMap | int, origin: Origin, held: HeldRemovals
    ) -> BitMap:
        """Fetch one window of UIDs that the server is known to have, or everything from a UID on (an int).

        Returns those that were answered (published or set aside). What is not answered after a tagged OK is gone.
        Raises what the session raises after remembering the trouble.
        """
        done = BitMap()
        try:
            await self._window(session, box, uids, origin, held, done)
        except (ConnectionLost, CommandTimedOut) as error:
            self._remember_failure(box, uids, done, error)
            raise
        except MailboxError as error:
            if isinstance(uids, int) or isinstance(error, MailboxUnusable) or not session.alive:
                self._trouble.shrink()
                raise
            await self._halves(session, box, uids - done, origin, held, done, error)
        if self._trouble.suspects:
            for uid in done:
                self._trouble.suspects.pop((box.record.mailbox_id, uid), None)
        record = box.record
        for uid in [u for u in record.quarantined if _within(uids, u)]:
            if uid in box.known():
                del record.quarantined[uid]
                box.dirty = True
            elif uid not in done:
                self._state.unread_gone(box, [uid])
        return done

    async def _window(
        self,
        session: ImapSession,
        box: MailboxState,
        uids: BitMap | int,
        origin: Origin,
        held: HeldRemovals,
        done: BitMap,
    ) -> None:
        """One FETCH; adds to `done` what was answered."""
        spec = f"{uids}:*" if isinstance(uids, int) else uid_set(uids)
        structure = self.structure
        previews = self._settings.PREVIEW_BYTES > 0
        bad: dict[int, str] = {}
        nameless = ""
        waiting: list[FetchedMessage] = []  # with previews: they are asked for once this answer is complete
        items = fetching.message_items(session.capabilities, structure=structure)
        epoch = box.epoch
        async with contextlib.aclosing(session.uid_fetch(spec, items, chunk=self._settings.FETCH_CHUNK)) as chunks:
            async for chunk in chunks:
                if box.deleted or box.epoch != epoch:
                    raise MailboxUnusable("the mailbox was replaced while it was read", code="mailbox_replaced")
                wanted = [m for m in chunk.messages if _within(uids, m.uid) and m.uid not in done]
                whole = []
                for message in wanted:
                    if fetching.is_complete(message):
                        whole.append(message)
                    else:
                        bad[message.uid] = "unparsable answer" if message.damaged else "incomplete answer"
                for unreadable in chunk.unreadable:
                    if unreadable.uid is None:
                        nameless = unreadable.reason
                    elif _within(uids, unreadable.uid):
                        bad[unreadable.uid] = unreadable.reason
                if previews:
                    waiting.extend(whole)
                    continue
                await self._publish(box, whole, origin, held, {}, structure=structure)
                await self.flush()
                done.update(m.uid for m in whole)
        if waiting:
            texts = await self._previews(session, await self._without_place(box, waiting, held))
            await self._publish(box, waiting, origin, held, texts, structure=structure)
            await self.flush()
            done.update(m.uid for m in waiting)
        if nameless:
            # an answer that does not even tell its UID: whoever was not answered may be the one
            asked = (await session.uid_search(f"UID {spec}".encode())).uids
            bad.update((uid, nameless) for uid in asked if _within(uids, uid) and uid not in bad)
        for uid in sorted(bad):
            if uid not in done:
                await self._read_alone(session, box, uid, bad[uid], origin, held)
                done.add(uid)

    async def _halves(
        self,
        session: ImapSession,
        box: MailboxState,
        rest: BitMap,
        origin: Origin,
        held: HeldRemovals,
        done: BitMap,
        refusal: MailboxError,
    ) -> None:
        """The server refused a window and is still there: find out for which message."""
        parts = [rest]
        left = REFUSALS_LIMIT
        cured = 0
        while parts:
            part = parts.pop() - done
            if not part:
                continue
            if len(part) == 1:
                uid = part[0]
                if await self._read_alone(session, box, uid, str(refusal), origin, held):
                    cured += 1
                else:
                    left -= 1
                done.add(uid)
                if cured >= STRUCTURE_SUSPECTED and self.structure:
                    self._trouble.without_structure = True  # all of them do well without it
            else:
                try:
                    await self._window(session, box, part, origin, held, done)
                except MailboxError as error:
                    if isinstance(error, MailboxUnusable) or not session.alive:
                        raise
                    left -= 1
                    part = part - done
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
            if left <= 0:
                raise refusal

    def _remember_failure(self, box: MailboxState, uids: BitMap | int, done: BitMap, error: Exception) -> None:
        """The connection ended while a window was read. Servers answer in ascending order: the first one missing is
        suspected.
        """
        suspects = self._trouble.suspects
        self._trouble.shrink()
        if isinstance(uids, int):
            return
        left = uids - done
        if not left:
            return
        key = (box.record.mailbox_id, left[0])
        alone = len(uids) == 1
        failures = suspects.pop(key, 0) + (1 if alone else 0)
        if alone and (failures >= TRIES_ALONE or left[0] in box.record.quarantined):
            self.set_aside(box, left[0], f"the connection ends when it is asked for ({getattr(error, 'code', 'lost')})")
        elif len(suspects) < SUSPECTS_LIMIT:
            suspects[key] = failures

    async def _read_alone(
        self, session: ImapSession, box: MailboxState, uid: int, reason: str, origin: Origin, held: HeldRemovals
    ) -> bool:
        """Second try of one message, without BODYSTRUCTURE; then it is set aside (False). True: read, or gone."""
        items = fetching.message_items(session.capabilities, structure=False)
        found: FetchedMessage | None = None
        answered = False
        try:
            async with contextlib.aclosing(session.uid_fetch(str(uid), items)) as chunks:
                async for chunk in chunks:
                    answered = answered or bool(chunk.unreadable)
                    for message in chunk.messages:
                        if message.uid == uid:
                            answered = True
                            found = message if fetching.is_complete(message) else found
        except MailboxError as error:
            if not session.alive:
                raise
            answered, reason = True, str(error)
        except (ConnectionLost, CommandTimedOut) as error:
            self._remember_failure(box, BitMap([uid]), BitMap(), error)
            raise
        if found is not None:
            await self._publish(box, [found], origin, held, {}, structure=False)
        elif answered:
            self.set_aside(box, uid, reason)
            return False
        return True

    def set_aside(self, box: MailboxState, uid: int, reason: str) -> None:
        """Quarantine one UID: remembered with its reason, published once, tried again on its own schedule."""
        record = box.record
        before = record.quarantined.get(uid)
        attempts = 1 if before is None else before.attempts + 1
        wait = _retry_after_s(attempts) * (0.9 + 0.2 * random.random())
        if before is None and len(record.quarantined) >= QUARANTINE_LIMIT:
            raise MailboxUnusable(f"more than {QUARANTINE_LIMIT} messages cannot be read", code="too_many_unreadable")
        reason = reason[:REASON_CHARS]
        record.quarantined[uid] = Quarantined(reason, attempts, self._wall() + wait)
        box.dirty = True
        if before is None:
            self._state.emit(
                events.MessageUnreadable,
                mailbox_id=record.mailbox_id,
                mailbox=record.name,
                uidvalidity=box.epoch,
                uid=uid,
                reason=reason,
                attempts=attempts,
            )
        self._observer.quarantined("message", "unreadable")
        log.warning("message set aside: mailbox %s, UID %d: %s", record.mailbox_id, uid, reason)

    async def _publish(
        self,
        box: MailboxState,
        messages: list[FetchedMessage],
        origin: Origin,
        held: HeldRemovals,
        previews: dict[int, str],
        *,
        structure: bool,
    ) -> None:
        basis = self._state.record.basis or "content"
        since = box.record.since
        await held.prepare()
        for count, message in enumerate(messages, 1):
            if message.uid not in box.known():
                headers = fetching.small_headers(message)  # most are, and need no coroutine
                if headers is None:
                    headers = await fetching.read_headers(message)
                self._add(box, message, headers, basis, origin, held, previews.get(message.uid), structure, since)
            if count % SLICE == 0:
                await asyncio.sleep(0)

    def _add(
        self,
        box: MailboxState,
        message: FetchedMessage,
        headers: fetching.ReadHeaders,
        basis: Basis,
        origin: Origin,
        held: HeldRemovals,
        text: str | None,
        structure: bool,
        since: float | None,
    ) -> None:
        state, record, uid = self._state, box.record, message.uid
        place = f"{record.mailbox_id}/{box.epoch}/{uid}"
        identity = fetching.identity_of(state.account_id, basis, message, headers.canonical, place=place)
        flags = fetching.flags_of(message) or frozenset()
        source = held.take(identity)
        if source is not None:
            from_box, epoch, from_uid = source
            flags = box.put(uid, flags, identity)
            plain, labels = fetching.split_labels(flags, labelled=message.gm_labels is not None)
            state.emit(
                events.MessageMoved,
                message_id=message_id_of(identity),
                from_=state.place(from_box, from_uid, epoch),
                to=state.place(box, uid),
                flags=plain,
                labels=labels,
                modseq=None if message.modseq is None else str(message.modseq),
            )
            from_box.drop(from_uid, epoch)
            return
        if (
            origin == "backfill"
            and since is not None
            and record.previous is not None
            and message.internal_date is not None
            and message.internal_date.timestamp() < since
        ):
            return
        flags = box.put(uid, flags, identity)
        fields = fetching.event_fields(message, headers.parsed, flags, structure=structure)
        state.emit(
            events.MessageAdded,
            mailbox_id=record.mailbox_id,
            mailbox=record.name,
            uidvalidity=box.epoch,
            uid=uid,
            message_id=message_id_of(identity),
            origin=origin,
            preview=text,
            **fields,
        )
        state.saw_mail(message.internal_date)
        if origin == "live" and message.internal_date is not None:
            self._observer.arrival_to_log(max(0.0, self._wall() - message.internal_date.timestamp()))

    async def _without_place(
        self, box: MailboxState, messages: list[FetchedMessage], held: HeldRemovals
    ) -> list[FetchedMessage]:
        """Those that will be told as added: what only moved, or has a new number, is not fetched again."""
        fresh = [message for message in messages if message.uid not in box.known()]
        if not held:
            return fresh
        await held.prepare()
        basis = self._state.record.basis or "content"
        found = []
        for message in fresh:
            headers = await fetching.read_headers(message)
            place = f"{box.record.mailbox_id}/{box.epoch}/{message.uid}"
            identity = fetching.identity_of(self._state.account_id, basis, message, headers.canonical, place=place)
            if not held.holds(identity):
                found.append(message)
        return found

    async def _previews(self, session: ImapSession, messages: list[FetchedMessage]) -> dict[int, str]:
        """Text previews, from the beginning of each message's text part; one FETCH per distinct part and size."""
        limit = self._settings.PREVIEW_BYTES
        wanted: dict[tuple[str, int], dict[int, Leaf]] = {}
        for message in messages:
            leaf = text_part(message.structure) if message.structure is not None else None
            if leaf is not None:
                wanted.setdefault((leaf.part, _preview_fetch(leaf, limit)), {})[message.uid] = leaf
        found: dict[int, str] = {}
        for (part, size), leaves in wanted.items():
            item = f"BODY.PEEK[{part}]<0.{size}>".encode()
            try:
                async with contextlib.aclosing(session.uid_fetch(uid_set(BitMap(leaves)), [b"UID", item])) as chunks:
                    async for chunk in chunks:
                        for message in chunk.messages:
                            raw = message.sections.get(part.encode())
                            leaf = leaves.get(message.uid)
                            if raw is not None and leaf is not None:
                                found[message.uid] = await _preview_of(raw, leaf, limit)
            except MailboxError as error:
                if not session.alive:
                    raise
                log.info("no preview: %s", error)
        return found


def _preview_fetch(leaf: Leaf, limit: int) -> int:
    """Bytes to fetch of a part for a preview of `limit`: transfer encodings and markup take their share."""
    if leaf.content_type == "text/html":
        return min(HTML_MAX_BYTES, max(HTML_MIN_BYTES, limit * 8))
    return limit * 4 + 1024


async def _preview_of(raw: bytes, leaf: Leaf, limit: int) -> str:
    subtype = leaf.content_type.partition("/")[2]
    if len(raw) > LOOP_FRIENDLY_BYTES:
        return await asyncio.to_thread(preview, raw, leaf.encoding, leaf.charset, subtype, limit)
    return preview(raw, leaf.encoding, leaf.charset, subtype, limit)


def _within(uids: BitMap | int, uid: int) -> bool:
    """Whether a UID was asked for. ``n:*`` also brings the last message when it lies below n (RFC 9051, 6.4.9)."""
    return uid >= uids if isinstance(uids, int) else uid in uids
