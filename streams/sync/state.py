"""An account as its runner sees it: mirror records in working form, and the events that changing them leads to.

Every change is made here first, as an event with the next sequence number and the mirror records after it; `flush`
hands both to the shard's log as one batch. Nothing is taken back: if the log is lost, the whole object is dropped and
read anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec
from pyroaring import BitMap

from streams.contracts import mailbox as events
from streams.contracts import topics
from streams.contracts.codec import cloud_event_headers, encode
from streams.contracts.topics import MAX_RECORD_BYTES
from streams.domain import mirror
from streams.domain.identity import identity_from_content, message_id_of
from streams.domain.mirror import AccountRecord, FlagSegment, IdentitySegment, MailboxRecord
from streams.errors import MirrorDamaged, ProducerLost, RecordTooLarge
from streams.sync.log import Batch, Outgoing, ShardLog

SOURCE: Final = "/mailstreams"
_STUB_LIMIT: Final = MAX_RECORD_BYTES - 4096


class MailboxState:
    """One mailbox: its record, and its segments loaded when they are needed."""

    def __init__(self, account_id: str, record: MailboxRecord, log: ShardLog) -> None:
        self.record = record
        self._account_id = account_id
        self._log = log
        self._flags: dict[tuple[int, int], FlagSegment] = {}
        self._ids: dict[tuple[int, int], IdentitySegment] = {}
        self._dirty_flags: set[tuple[int, int]] = set()
        self._dirty_ids: set[tuple[int, int]] = set()
        self._known: dict[int, BitMap] = {}
        self.dirty = False
        self.deleted = False

    @property
    def epoch(self) -> int:
        """UIDVALIDITY in force; 0 where the server has none."""
        return self.record.uidvalidity or 0

    @property
    def synced(self) -> bool:
        """Whether its messages are followed: it can be opened, and does not merely show those of another mailbox."""
        return self.record.selectable and not self.record.view

    def known(self, uidvalidity: int | None = None) -> BitMap:
        """UIDs known in an epoch (the current one by default). Read only. Raises `MirrorDamaged` when a segment is
        missing.
        """
        epoch = self.epoch if uidvalidity is None else uidvalidity
        found = self._known.get(epoch)
        if found is None:
            found = BitMap()
            prefix = mirror.flags_key(self._account_id, self.record.mailbox_id, epoch, 0).rsplit("/", 1)[0] + "/"
            for key, value in self._log.scan(prefix):
                base = int(key.rsplit("/", 1)[1])
                segment = self._flags.get((epoch, base)) or FlagSegment.decode(value)
                self._flags[epoch, base] = segment
                found |= segment.known.shift(base)
            expected = self.record.count if epoch == self.epoch else self.record.previous_count
            if len(found) != expected:
                raise MirrorDamaged(
                    f"mailbox {self.record.mailbox_id}: {expected} messages are recorded, {len(found)} were found"
                )
            self._known[epoch] = found
        return found

    def flags(self, uid: int, uidvalidity: int | None = None) -> frozenset[str]:
        """Flags of a known UID."""
        epoch = self.epoch if uidvalidity is None else uidvalidity
        base = mirror.flag_base(uid)
        return self._flag_segment(epoch, base).flags_of(uid - base)

    def identity(self, uid: int, uidvalidity: int | None = None) -> bytes:
        """Identity of a known UID. Raises `MirrorDamaged` when there is none."""
        epoch = self.epoch if uidvalidity is None else uidvalidity
        base = mirror.ids_base(uid)
        found = self._id_segment(epoch, base).get(uid - base)
        if found is None:
            raise MirrorDamaged(f"mailbox {self.record.mailbox_id}: no identity of UID {uid}")
        return found

    def put(self, uid: int, flags: frozenset[str], identity: bytes) -> frozenset[str]:
        """Make a UID of the current epoch known; returns its flags as they are remembered (see `set_flags`)."""
        epoch = self.epoch
        base = mirror.flag_base(uid)
        segment = self._flag_segment(epoch, base)
        known = self.known(epoch)
        if uid not in known:
            known.add(uid)
            self.record.count += 1
        kept = segment.put(uid - base, flags)
        self._dirty_flags.add((epoch, base))
        base = mirror.ids_base(uid)
        self._id_segment(epoch, base).put(uid - base, identity)
        self._dirty_ids.add((epoch, base))
        self.dirty = True
        return kept

    def set_flags(self, uid: int, flags: frozenset[str]) -> frozenset[str]:
        """Replace the flags of a known UID; returns them as they are remembered (a flood of keywords is cut)."""
        base = mirror.flag_base(uid)
        segment = self._flag_segment(self.epoch, base)
        kept = segment.put(uid - base, flags)
        self._dirty_flags.add((self.epoch, base))
        return kept

    def drop(self, uid: int, uidvalidity: int | None = None) -> None:
        """Forget a UID of an epoch."""
        epoch = self.epoch if uidvalidity is None else uidvalidity
        known = self.known(epoch)
        if uid not in known:
            return
        known.discard(uid)
        if epoch == self.epoch:
            self.record.count -= 1
        else:
            self.record.previous_count -= 1
        base = mirror.flag_base(uid)
        self._flag_segment(epoch, base).drop(uid - base)
        self._dirty_flags.add((epoch, base))
        base = mirror.ids_base(uid)
        self._id_segment(epoch, base).drop(uid - base)
        self._dirty_ids.add((epoch, base))
        self.dirty = True

    def begin_epoch(self, uidvalidity: int) -> None:
        """Start a new epoch with nothing known; what was known becomes the previous one."""
        record = self.record
        self.known()
        record.previous, record.previous_count = self.epoch, record.count
        record.uidvalidity, record.count = uidvalidity, 0
        record.quarantined.clear()
        self._known[uidvalidity] = BitMap()
        self.dirty = True

    def _flag_segment(self, epoch: int, base: int) -> FlagSegment:
        segment = self._flags.get((epoch, base))
        if segment is None:
            value = self._log.read(mirror.flags_key(self._account_id, self.record.mailbox_id, epoch, base))
            segment = FlagSegment() if value is None else FlagSegment.decode(value)
            self._flags[epoch, base] = segment
        return segment

    def _id_segment(self, epoch: int, base: int) -> IdentitySegment:
        segment = self._ids.get((epoch, base))
        if segment is None:
            value = self._log.read(mirror.ids_key(self._account_id, self.record.mailbox_id, epoch, base))
            segment = IdentitySegment() if value is None else IdentitySegment.decode(value)
            self._ids[epoch, base] = segment
        return segment

    def flush_into(self, batch: Batch) -> None:
        """Add the records of everything that changed."""
        account, record = self._account_id, self.record
        words = f"of {record.name}"
        if self.deleted:
            for kind in ("flags", "ids"):
                for key, _ in self._log.scan(f"{account}/{kind}/{record.mailbox_id}/"):
                    batch.mirror[key] = (None, f"forgotten: {kind} {words}")
            batch.mirror[mirror.mailbox_key(account, record.mailbox_id)] = (None, f"forgotten: mailbox {record.name}")
            return
        for epoch, base in sorted(self._dirty_flags):
            segment = self._flags[epoch, base]
            value = segment.encode() if segment.known else None
            about = f"flags {words}, UIDs {base}-{base + mirror.FLAG_SPAN - 1}"
            batch.mirror[mirror.flags_key(account, record.mailbox_id, epoch, base)] = (value, about)
        for epoch, base in sorted(self._dirty_ids):
            ids = self._ids[epoch, base]
            about = f"identities {words}, UIDs {base}-{base + mirror.IDENTITY_SPAN - 1}"
            batch.mirror[mirror.ids_key(account, record.mailbox_id, epoch, base)] = (
                ids.encode() if ids else None,
                about,
            )
        if self.dirty or self._dirty_flags or self._dirty_ids:
            key = mirror.mailbox_key(account, record.mailbox_id)
            batch.mirror[key] = (mirror.encode_record(record), f"mailbox {record.name}")
        self._dirty_flags.clear()
        self._dirty_ids.clear()
        self.dirty = False
        if len(self._ids) > 64:
            self._ids.clear()

    def release(self) -> None:
        """Drop loaded segments; they are read again when needed. Those that are not flushed yet stay."""
        if self._dirty_flags or self._dirty_ids:
            return
        self._flags.clear()
        self._ids.clear()
        self._known.clear()


class AccountState:
    """One account: record, mailboxes, and the events and mirror records not yet handed to the log."""

    def __init__(
        self, account_id: str, log: ShardLog, clock: Callable[[], datetime], topic: Callable[[str], str]
    ) -> None:
        self.account_id = account_id
        self.log = log
        self._clock = clock
        self._topic = topic
        self._key = account_id.encode()
        self._changes_topic = topic(topics.CHANGES)
        self._out: list[Outgoing] = []
        self.pending_bytes = 0
        self._last: asyncio.Future[None] | None = None
        self.ended = False
        self._refusal: RecordTooLarge | None = None
        self.emitted: Counter[str] = Counter()
        self._dirty = False
        value = log.read(mirror.account_key(account_id))
        self.record = AccountRecord() if value is None else mirror.decode_account(value)
        self.mailboxes: dict[str, MailboxState] = {}
        for _, raw in log.scan(f"{account_id}/mailbox/"):
            found = mirror.decode_mailbox(raw)
            self.mailboxes[found.mailbox_id] = MailboxState(account_id, found, log)
        if len(self.mailboxes) != self.record.mailboxes:
            raise MirrorDamaged(
                f"account {account_id}: {self.record.mailboxes} mailboxes are recorded, "
                f"{len(self.mailboxes)} were found"
            )
        self._deleted: list[MailboxState] = []

    # --- events ------------------------------------------------------------------------------------------------------
    def emit(self, kind: type[events.Change], **fields: Any) -> None:
        """Append an event with the next sequence number."""
        at = self._clock()
        sequence = self.record.next_sequence
        event = kind(account_id=self.account_id, sequence=sequence, at=at, **fields)
        value = encode(event)
        if len(value) > _STUB_LIMIT:
            event = _stub(event)
            value = encode(event)
        self.record.next_sequence = sequence + 1
        self.emitted[_type_of(event)] += 1
        self._dirty = True
        self._put(
            self._changes_topic, _type_of(event), value, at, event_id=f"{self.account_id}/{sequence}", sequence=sequence
        )

    def publish(self, topic: str, record: msgspec.Struct, *, record_type: str) -> None:
        """Append a record of another topic (tier, status, command event) to the same transaction."""
        at = self._clock()
        self._put(
            self._topic(topic), record_type, encode(record), at, event_id=f"{self.account_id}/{at.timestamp():.6f}"
        )

    def retract(self, topic: str) -> None:
        """Append a tombstone: what a compacted topic says of this account holds no more."""
        at = self._clock()
        self._put(self._topic(topic), topic, None, at, event_id=f"{self.account_id}/{at.timestamp():.6f}")

    def _put(
        self, topic: str, kind: str, value: bytes | None, at: datetime, *, event_id: str, sequence: int | None = None
    ) -> None:
        headers = cloud_event_headers(event_id=event_id, event_type=kind, source=SOURCE, at=at)
        headers.append(("writer", self.log.writer.encode()))
        if sequence is not None:
            headers.append(("sequence", str(sequence).encode()))
        self._out.append(Outgoing(topic, self._key, value, headers))
        self.pending_bytes += len(value or b"")

    @property
    def pending(self) -> int:
        """Records waiting for `flush`."""
        return len(self._out)

    def touch(self) -> None:
        """The account record has changed."""
        self._dirty = True

    def end(self) -> None:
        """Nothing of this object reaches the log any more: another one may be read from the mirror at any time."""
        self.ended = True

    def flush(self) -> asyncio.Future[None] | None:
        """Hand everything changed to the log as one batch. None when there was nothing.

        Raises `ProducerLost` after `end`, and when the log is lost; `RecordTooLarge`, from then on, when a record would
        be refused by Kafka, and with it all that the shard writes.
        """
        if self._refusal is not None:
            raise self._refusal
        if self.ended:
            raise ProducerLost(f"account {self.account_id} is not served here any more")
        batch = Batch(records=self._out)
        self._out, self.pending_bytes = [], 0
        for state in (*self._deleted, *self.mailboxes.values()):
            state.flush_into(batch)
        self._deleted.clear()
        if self._dirty or self.record.mailboxes != len(self.mailboxes):
            self.record.mailboxes = len(self.mailboxes)
            batch.mirror[mirror.account_key(self.account_id)] = (mirror.encode_record(self.record), "account")
            self._dirty = False
        if not batch:
            return None
        self._refuse_what_does_not_fit(batch)
        self._last = self.log.submit(batch)
        return self._last

    def _refuse_what_does_not_fit(self, batch: Batch) -> None:
        sizes = [(record.topic, record.value) for record in batch.records]
        sizes += [(words, value) for value, words in batch.mirror.values()]
        for what, value in sizes:
            if value is not None and len(value) > MAX_RECORD_BYTES:
                self._refusal = RecordTooLarge(f"a record of {len(value)} bytes does not fit ({what[:100]})")
                self.end()  # what is in memory goes further than what will be in the log
                raise self._refusal

    async def commit(self) -> None:
        """`flush`, and wait until it and everything flushed before is in the log. Raises what `flush` raises."""
        await self.log.room()
        self.flush()
        if self._last is not None:
            await asyncio.shield(self._last)  # the log keeps the order

    # --- mailboxes ---------------------------------------------------------------------------------------------------
    def add_mailbox(self, record: MailboxRecord) -> MailboxState:
        """A mailbox has been discovered."""
        state = MailboxState(self.account_id, record, self.log)
        state.dirty = True
        self.mailboxes[record.mailbox_id] = state
        self._dirty = True
        return state

    def remove_mailbox(self, state: MailboxState) -> None:
        """A mailbox and everything in it is forgotten."""
        del self.mailboxes[state.record.mailbox_id]
        state.deleted = True
        self._deleted.append(state)
        self._dirty = True

    def new_mailbox_id(self) -> str:
        """Id of the next mailbox: short, unique in the account, the same if the step is planned again."""
        self.record.serial += 1
        self._dirty = True
        return f"{self.account_id[:8]}-{self.record.serial:04d}"

    def by_wire_name(self, wire_name: bytes) -> MailboxState | None:
        """Mailbox with that wire name."""
        return next((m for m in self.mailboxes.values() if m.record.wire_name == wire_name), None)

    def watched(self) -> MailboxState | None:
        """The mailbox in which new mail shows at once: INBOX, or All Mail where INBOX is a view of it."""
        inbox = self.by_wire_name(b"INBOX")
        if inbox is None or inbox.synced:
            return inbox
        return next((m for m in self.mailboxes.values() if m.synced and m.record.special_use == "\\all"), None)

    def iterate(self) -> Iterator[MailboxState]:
        """Mailboxes, INBOX first, then those with a special use, then the others by name."""
        yield from sorted(
            self.mailboxes.values(),
            key=lambda m: (m.record.wire_name != b"INBOX", m.record.special_use is None, m.record.name),
        )

    def unread_gone(self, state: MailboxState, uids: Iterable[int]) -> None:
        """Messages that were set aside have gone: told as removed, by an id of their places, since none was read."""
        record = state.record
        for uid in uids:
            del record.quarantined[uid]
            state.dirty = True
            place = f"{record.mailbox_id}/{state.epoch}/{uid}"
            identity = identity_from_content(
                self.account_id, size=None, internal_date=None, canonical_headers=b"", fallback=place
            )
            self.emit(
                events.MessageRemoved,
                mailbox_id=record.mailbox_id,
                mailbox=record.name,
                uidvalidity=state.epoch,
                uid=uid,
                message_id=message_id_of(identity),
            )

    def saw_mail(self, at: datetime | None) -> None:
        """Keep the date of the newest mail."""
        if at is None:
            return
        stamp = at.timestamp()
        known = self.record.newest_mail_at
        if known is not None and stamp <= known:
            return
        stamp = min(stamp, self._clock().timestamp())
        if known is None or stamp > known:
            self.record.newest_mail_at = stamp
            self._dirty = True

    def now(self) -> datetime:
        """The clock of this account's records."""
        return self._clock()

    def place(self, state: MailboxState, uid: int, uidvalidity: int | None = None) -> events.Place:
        """Where a message is, as events name it."""
        record = state.record
        epoch = state.epoch if uidvalidity is None else uidvalidity
        return events.Place(mailbox_id=record.mailbox_id, mailbox=record.name, uidvalidity=epoch, uid=uid)

    def total_messages(self) -> int:
        """Known places in all mailboxes."""
        return sum(m.record.count for m in self.mailboxes.values())


_TYPES: Final[dict[type, str]] = {
    kind: str(kind.__struct_config__.tag)
    for kind in (
        events.MailboxDiscovered,
        events.MailboxRenamed,
        events.MailboxDeleted,
        events.MailboxReset,
        events.MessageAdded,
        events.MessageMoved,
        events.MessageFlagsChanged,
        events.MessageRemoved,
        events.MessageUnreadable,
        events.AccountCaughtUp,
        events.BackfillCompleted,
    )
}


def _type_of(event: events.Change) -> str:
    return _TYPES[type(event)]


def _stub(event: events.Change) -> events.Change:
    """An event too large for the topic, reduced to what identifies and places the message."""
    if not isinstance(event, events.MessageAdded):
        return event
    headers = event.headers
    subject = headers.subject[:500] if headers.subject else None
    return msgspec.structs.replace(
        event,
        headers=events.MessageHeaders(from_=headers.from_[:10], subject=subject, date=headers.date),
        attachments=None,
        preview=None,
        truncated=True,
    )


def message_text_id(identity: bytes) -> str:
    """`message_id` of an identity."""
    return message_id_of(identity)
