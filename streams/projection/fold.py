"""Events to rows. Pure.

The meaning of each event is written in `streams.contracts.mailbox`; this is its other half. A batch of events is folded
into at most one row operation per key, so that a mailbox whose flags changed a hundred times is written once.

Invariant: applying `Fold.groups` (in the order `tables` applies them) gives what applying the events one by one gives.
What happens first in a mailbox's operations is its deletion; everything folded before it is dropped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from streams.contracts.mailbox import (
    AccountCaughtUp,
    AnyChange,
    BackfillCompleted,
    MailboxDeleted,
    MailboxDiscovered,
    MailboxRenamed,
    MailboxReset,
    MessageAdded,
    MessageFlagsChanged,
    MessageMoved,
    MessageRemoved,
    MessageUnreadable,
)
from streams.projection.decoding import Decoded, UnknownEvent
from streams.projection.rows import (
    MAX_ADDRESS_CHARS,
    MAX_INTERNET_ID_CHARS,
    MAX_THREAD_ID_CHARS,
    AccountRow,
    FlagsRow,
    GoneRow,
    MailboxBackfilled,
    MailboxEpoch,
    MailboxName,
    MailboxRef,
    MailboxRow,
    MessageRef,
    MessageRow,
    PlaceRow,
    Uidref,
    UnreadableRow,
    modseq_of,
    storable,
)

PlaceOperation = PlaceRow | FlagsRow | GoneRow


@dataclass(slots=True)
class Fold:
    """Row operations of a batch. `add` events in order, then hand it to `tables`."""

    accounts: dict[str, AccountRow] = field(default_factory=dict)
    dropped: dict[MailboxRef, None] = field(default_factory=dict)
    mailboxes: dict[MailboxRef, MailboxRow] = field(default_factory=dict)
    names: dict[MailboxRef, MailboxName] = field(default_factory=dict)
    epochs: dict[MailboxRef, MailboxEpoch] = field(default_factory=dict)
    backfills: dict[MailboxRef, MailboxBackfilled] = field(default_factory=dict)
    messages: dict[MessageRef, MessageRow] = field(default_factory=dict)
    perhaps_orphaned: dict[MessageRef, None] = field(default_factory=dict)
    unreadable: dict[MailboxRef, dict[Uidref, UnreadableRow]] = field(default_factory=dict)
    odd: int = 0
    """Events that do not fit what came before in the batch. The log is then wrong; the fold does its best."""
    _places: dict[MailboxRef, dict[Uidref, PlaceOperation]] = field(default_factory=dict)

    # --- what comes out --------------------------------------------------------------------------------------------
    def places(self) -> Iterator[PlaceOperation]:
        """The one operation of each place touched."""
        for operations in self._places.values():
            yield from operations.values()

    def unreadable_rows(self) -> Iterator[UnreadableRow]:
        """Places whose message cannot be read."""
        for rows in self.unreadable.values():
            yield from rows.values()

    # --- what goes in ----------------------------------------------------------------------------------------------
    def extend(self, events: Iterable[Decoded]) -> None:
        """Add events in the order of the log."""
        for decoded in events:
            self.add(decoded.event, cleaned=decoded.cleaned)

    def add(self, event: AnyChange | UnknownEvent, *, cleaned: bool = False) -> None:
        """Add one event."""
        before = self.accounts.get(event.account_id)
        caught_up = event.at if isinstance(event, AccountCaughtUp) else before.caught_up_at if before else None
        self.accounts[event.account_id] = AccountRow(event.account_id, event.sequence, event.at, caught_up)
        match event:
            case MessageAdded():
                self._added(event, cleaned)
            case MessageFlagsChanged():
                self._flags(event)
            case MessageRemoved():
                self._left(
                    MailboxRef(event.account_id, event.mailbox_id),
                    Uidref(event.uidvalidity, event.uid),
                    event.message_id,
                )
            case MessageMoved():
                self._moved(event)
            case MailboxDiscovered():
                self._discovered(event, cleaned)
            case MailboxRenamed():
                self._renamed(event, cleaned)
            case MailboxDeleted():
                self._deleted(MailboxRef(event.account_id, event.mailbox_id))
            case MailboxReset():
                self._reset(event)
            case MessageUnreadable():
                self._unreadable(event)
            case BackfillCompleted():
                self._backfilled(event)
            case AccountCaughtUp() | UnknownEvent():
                pass
            case _:
                assert_never(event)

    # --- messages and places ---------------------------------------------------------------------------------------
    def _added(self, event: MessageAdded, cleaned: bool) -> None:
        row = message_row(event, cleaned=cleaned)
        ref = MessageRef(row.account_id, row.message_id)
        before = self.messages.get(ref)
        self.messages[ref] = row if before is None else merged(before, row)
        self._place(
            PlaceRow(
                account_id=event.account_id,
                mailbox_id=event.mailbox_id,
                uidvalidity=event.uidvalidity,
                uid=event.uid,
                message_id=event.message_id,
                flags=event.flags,
                labels=event.labels,
                modseq=modseq_of(event.modseq),
                sort_at=row.sort_at,
                since=event.at,
            )
        )

    def _moved(self, event: MessageMoved) -> None:
        from_, to = event.from_, event.to
        source = MailboxRef(event.account_id, from_.mailbox_id)
        before = self._places.get(source, {}).get(Uidref(from_.uidvalidity, from_.uid))
        self._left(source, Uidref(from_.uidvalidity, from_.uid), event.message_id)
        self._place(
            PlaceRow(
                account_id=event.account_id,
                mailbox_id=to.mailbox_id,
                uidvalidity=to.uidvalidity,
                uid=to.uid,
                message_id=event.message_id,
                flags=event.flags,
                labels=event.labels,
                modseq=modseq_of(event.modseq),
                sort_at=before.sort_at if isinstance(before, PlaceRow) else None,
                since=event.at,
            )
        )

    def _place(self, row: PlaceRow) -> None:
        ref = MailboxRef(row.account_id, row.mailbox_id)
        uid = Uidref(row.uidvalidity, row.uid)
        operations = self._places.setdefault(ref, {})
        before = operations.get(uid)
        if before is not None and before.message_id != row.message_id:
            self.perhaps_orphaned[MessageRef(row.account_id, before.message_id)] = None
        operations[uid] = row
        self._epoch(ref, row.uidvalidity)
        if ref in self.unreadable:
            self.unreadable[ref].pop(uid, None)

    def _left(self, ref: MailboxRef, uid: Uidref, message_id: str) -> None:
        operations = self._places.setdefault(ref, {})
        before = operations.get(uid)
        if isinstance(before, PlaceRow) and before.message_id != message_id:
            self.odd += 1  # the place has been given to another message: that one stays
            return
        operations[uid] = GoneRow(
            account_id=ref.account_id,
            mailbox_id=ref.mailbox_id,
            uidvalidity=uid.uidvalidity,
            uid=uid.uid,
            message_id=message_id,
        )
        self.perhaps_orphaned[MessageRef(ref.account_id, message_id)] = None
        if ref in self.unreadable:
            self.unreadable[ref].pop(uid, None)

    def _flags(self, event: MessageFlagsChanged) -> None:
        operations = self._places.setdefault(MailboxRef(event.account_id, event.mailbox_id), {})
        uid = Uidref(event.uidvalidity, event.uid)
        modseq = modseq_of(event.modseq)
        match operations.get(uid):
            case None:
                operations[uid] = FlagsRow(
                    account_id=event.account_id,
                    mailbox_id=event.mailbox_id,
                    uidvalidity=event.uidvalidity,
                    uid=event.uid,
                    message_id=event.message_id,
                    flags=event.flags,
                    labels=event.labels,
                    modseq=modseq,
                )
            case (PlaceRow() | FlagsRow()) as before:
                operations[uid] = replace(
                    before,
                    flags=event.flags,
                    labels=before.labels if event.labels is None else event.labels,
                    modseq=before.modseq if modseq is None else modseq,
                )
            case GoneRow():
                self.odd += 1

    def _unreadable(self, event: MessageUnreadable) -> None:
        ref = MailboxRef(event.account_id, event.mailbox_id)
        self.unreadable.setdefault(ref, {})[Uidref(event.uidvalidity, event.uid)] = UnreadableRow(
            account_id=event.account_id,
            mailbox_id=event.mailbox_id,
            uidvalidity=event.uidvalidity,
            uid=event.uid,
            reason=event.reason,
            attempts=min(event.attempts, 2**31 - 1),
            at=event.at,
        )

    # --- mailboxes -------------------------------------------------------------------------------------------------
    def _discovered(self, event: MailboxDiscovered, cleaned: bool) -> None:
        ref = MailboxRef(event.account_id, event.mailbox_id)
        self.mailboxes[ref] = MailboxRow(
            account_id=event.account_id,
            mailbox_id=event.mailbox_id,
            name=event.mailbox,
            wire_name=event.wire_name,
            delimiter=event.delimiter,
            special_use=event.special_use,
            selectable=event.selectable,
            attributes=event.attributes,
            uidvalidity=event.uidvalidity,
            discovered_at=event.at,
            cleaned=cleaned,
        )
        self.names.pop(ref, None)

    def _renamed(self, event: MailboxRenamed, cleaned: bool) -> None:
        ref = MailboxRef(event.account_id, event.mailbox_id)
        name = MailboxName(
            account_id=event.account_id,
            mailbox_id=event.mailbox_id,
            name=event.mailbox,
            wire_name=event.wire_name,
            delimiter=event.delimiter,
            special_use=event.special_use,
            selectable=event.selectable,
            cleaned=cleaned,
        )
        row = self.mailboxes.get(ref)
        if row is None:
            self.names[ref] = name
        else:
            self.mailboxes[ref] = replace(
                row,
                name=name.name,
                wire_name=name.wire_name,
                delimiter=name.delimiter,
                special_use=name.special_use,
                selectable=name.selectable,
                cleaned=name.cleaned,
            )

    def _deleted(self, ref: MailboxRef) -> None:
        for operation in self._places.pop(ref, {}).values():
            self.perhaps_orphaned[MessageRef(ref.account_id, operation.message_id)] = None
        for pending in (self.mailboxes, self.names, self.epochs, self.backfills, self.unreadable):
            pending.pop(ref, None)
        self.dropped[ref] = None

    def _reset(self, event: MailboxReset) -> None:
        self._epoch(MailboxRef(event.account_id, event.mailbox_id), event.uidvalidity)

    def _epoch(self, ref: MailboxRef, uidvalidity: int) -> None:
        epoch = self.epochs.get(ref)
        if epoch is None or epoch.uidvalidity != uidvalidity:
            self.epochs[ref] = MailboxEpoch(ref.account_id, ref.mailbox_id, uidvalidity)
            for uid in [uid for uid in self.unreadable.get(ref, ()) if uid.uidvalidity != uidvalidity]:
                del self.unreadable[ref][uid]

    def _backfilled(self, event: BackfillCompleted) -> None:
        self.backfills[MailboxRef(event.account_id, event.mailbox_id)] = MailboxBackfilled(
            event.account_id, event.mailbox_id, event.at, event.since
        )


def message_row(event: MessageAdded, *, cleaned: bool = False) -> MessageRow:
    """The message as one event tells it. It is sorted by INTERNALDATE, else Date, else when we saw it (case 89)."""
    headers = event.headers
    sender = headers.from_[0] if headers.from_ else None
    return MessageRow(
        account_id=event.account_id,
        message_id=event.message_id,
        thread_id=_cut(event.thread_id, MAX_THREAD_ID_CHARS),
        subject=headers.subject,
        from_name=sender.name if sender else None,
        from_address=_cut(sender.address, MAX_ADDRESS_CHARS) if sender else None,
        sent_at=headers.date,
        sort_at=event.internal_date or headers.date or event.at,
        size=storable(event.size),
        internet_message_id=_cut(headers.message_id, MAX_INTERNET_ID_CHARS),
        in_reply_to=headers.in_reply_to,
        references=headers.references,
        headers=headers,
        attachments=event.attachments,
        preview=event.preview,
        defects=event.defects,
        truncated=event.truncated,
        cleaned=cleaned,
        first_seen_at=event.at,
    )


def merged(before: MessageRow, after: MessageRow) -> MessageRow:
    """Two tellings of one message: the later one counts, but what it does not say is kept, and a stub replaces nothing.

    `tables` does the same in SQL to rows that are stored.
    """
    if after.truncated and not before.truncated:
        return before
    return replace(
        after,
        thread_id=after.thread_id if after.thread_id is not None else before.thread_id,
        size=after.size if after.size is not None else before.size,
        attachments=after.attachments if after.attachments is not None else before.attachments,
        preview=after.preview if after.preview is not None else before.preview,
        first_seen_at=before.first_seen_at,
        sort_at=after.sort_at if before.truncated else before.sort_at,
    )


def _cut(text: str | None, characters: int) -> str | None:
    return text if text is None else text[:characters]
