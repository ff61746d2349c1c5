"""What to do about the difference between the mirror and the server. Pure functions; the runner performs the steps.

Terms: the *region* of a mailbox is ``[floor, uidnext)``: in it every message of the server is known or set aside. New
mail is at or above `uidnext`, history below `floor`. The region only grows, over UIDs whose events are committed.

Rules: a message may vanish only on a well-formed complete answer and only below the watermark, the `uidnext` in force
when the question was asked; a mailbox is renamed only where one lost name and one new name belong together without
doubt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from streams.domain.mirror import MailboxRecord

HIGHEST_UID: Final = (1 << 32) - 1
"""There is none above it (RFC 9051, 2.3.1.1), and a server may refuse to be asked for one."""


@dataclass(frozen=True, slots=True)
class ServerMailbox:
    """A mailbox as LIST and STATUS tell it. None means "not told"."""

    wire_name: bytes
    name: str
    delimiter: str | None
    special_use: str | None
    attributes: tuple[str, ...]
    selectable: bool
    object_id: str | None = None
    uidvalidity: int | None = None
    uidnext: int | None = None
    messages: int | None = None
    highestmodseq: int | None = None


@dataclass(frozen=True, slots=True)
class ListingPlan:
    """Steps that make the mirror's mailboxes those of the server."""

    same: list[tuple[MailboxRecord, ServerMailbox]]
    renamed: list[tuple[MailboxRecord, ServerMailbox]]
    discovered: list[ServerMailbox]
    deleted: list[MailboxRecord]


def plan_listing(known: Sequence[MailboxRecord], listed: Sequence[ServerMailbox], *, complete: bool) -> ListingPlan:
    """Compare mailboxes by MAILBOXID where both sides have it, else by name; `complete` False proves no absence.

    Of mailboxes that share a MAILBOXID (copies on the server's disk do) each stays what its name says it is.
    A rename without MAILBOXID is believed when one vanished and one new mailbox share a UIDVALIDITY that no other
    mailbox of either side has, and UIDNEXT has not fallen. A mailbox that became (un)selectable is another mailbox.
    """
    by_object = {m.object_id: m for m in known if m.object_id and m.selectable}
    by_both = {(m.object_id, m.wire_name): m for m in known if m.object_id and m.selectable}
    by_name = {m.wire_name: m for m in known}
    same: list[tuple[MailboxRecord, ServerMailbox]] = []
    renamed: list[tuple[MailboxRecord, ServerMailbox]] = []
    taken: set[str] = set()
    left: list[ServerMailbox] = []
    for server in sorted(listed, key=lambda s: (s.object_id, s.wire_name) not in by_both):
        match = None
        if server.object_id and server.selectable:
            match = by_both.get((server.object_id, server.wire_name)) or by_object.get(server.object_id)
        if match is not None and match.mailbox_id not in taken:
            taken.add(match.mailbox_id)
            (same if match.wire_name == server.wire_name else renamed).append((match, server))
        else:
            left.append(server)
    unmatched: list[ServerMailbox] = []
    for server in left:
        match = by_name.get(server.wire_name)
        if match is not None and match.mailbox_id not in taken and _may_be_same(match, server):
            taken.add(match.mailbox_id)
            same.append((match, server))
        else:
            unmatched.append(server)
    lost = [m for m in known if m.mailbox_id not in taken]
    if lost and unmatched:
        validities = Counter(m.uidvalidity for m in known if m.selectable and m.uidvalidity)
        seen = Counter(s.uidvalidity for s in listed if s.selectable and s.uidvalidity)
        for server in list(unmatched):
            partner = next((m for m in lost if _is_rename(m, server, validities, seen)), None)
            if partner is not None:
                lost.remove(partner)
                unmatched.remove(server)
                renamed.append((partner, server))
    # a name that is listed and belongs to another mailbox now proves that the one we knew under it is gone
    replaced = {s.wire_name for s in listed}
    deleted = [m for m in lost if m.wire_name in replaced or (complete and m.wire_name != b"INBOX")]
    return ListingPlan(same, renamed, unmatched, deleted)


def _may_be_same(old: MailboxRecord, new: ServerMailbox) -> bool:
    """Whether a mailbox of the same name can be the one we know: one with another MAILBOXID took its place."""
    if old.selectable != new.selectable:
        return False
    return not (old.object_id and new.object_id) or old.object_id == new.object_id or old.wire_name == b"INBOX"


def _is_rename(old: MailboxRecord, new: ServerMailbox, known: Counter[int], listed: Counter[int]) -> bool:
    return (
        old.wire_name != b"INBOX"
        and old.selectable
        and new.selectable
        and bool(old.uidvalidity)
        and old.uidvalidity == new.uidvalidity
        and known[old.uidvalidity or 0] == 1
        and listed[new.uidvalidity or 0] == 1
        and new.uidnext is not None
        and new.uidnext >= old.uidnext
        and not (old.object_id and new.object_id)
    )


def attributes_differ(record: MailboxRecord, server: ServerMailbox) -> bool:
    """Whether name, delimiter or special use differ from what was recorded."""
    return (record.wire_name, record.name, record.delimiter, record.special_use) != (
        server.wire_name,
        server.name,
        server.delimiter,
        server.special_use,
    )


def expected_count(record: MailboxRecord) -> int:
    """Messages that a mailbox must hold on the server when nothing happened since."""
    return record.count + len(record.quarantined) + record.excluded


def is_whole(record: MailboxRecord) -> bool:
    """Whether the mirror accounts for every message of the mailbox, so that counts can be compared."""
    return record.backfill_done and record.floor <= 1


def needs_visit(
    record: MailboxRecord, server: ServerMailbox, *, condstore: bool, now: float, full_after_s: float
) -> bool:
    """Whether a mailbox must be opened: something moved, or nothing proves that it did not."""
    if not record.visited or record.previous is not None or record.aside is not None:
        return True
    if server.uidnext is None or server.uidvalidity is None or server.messages is None:
        return True
    if server.uidvalidity != (record.uidvalidity or 0) or server.uidnext != record.uidnext:
        return True
    if is_whole(record) and server.messages != expected_count(record):
        return True
    if not condstore or server.highestmodseq is None:
        return True
    if server.highestmodseq != record.highestmodseq:
        return True
    return comparison_due(record, now=now, full_after_s=full_after_s)


def is_aside(record: MailboxRecord, now: float) -> bool:
    """Whether a mailbox is left alone still. One set aside in the future was so by a clock that was wrong."""
    return record.aside_until is not None and record.aside_at <= now < record.aside_until


def comparison_due(record: MailboxRecord, *, now: float, full_after_s: float) -> bool:
    """Whether everything is to be compared again. A comparison in the future was recorded by a clock that was wrong."""
    return not 0 <= now - record.reconciled_at < full_after_s


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Set difference of a part of a mailbox."""

    missing: BitMap
    vanished: BitMap


def reconcile(known: BitMap, server: BitMap, *, low: int, high: int, aside: Iterable[int] = ()) -> Reconciliation:
    """Compare the UIDs of ``[low, high)``: what the server has and we do not, and the reverse. `aside` is not fetched
    again.
    """
    ours, theirs = within(known, low, high), within(server, low, high)
    return Reconciliation(missing=theirs - ours - BitMap(aside), vanished=ours - theirs)


def within(uids: BitMap, low: int, high: int) -> BitMap:
    """Those of the UIDs that are in ``[low, high)``.

    Not by a bitmap of the range: to make one of all UIDs takes eight milliseconds.
    """
    found = uids.copy()
    found.remove_range(0, low)
    found.remove_range(max(low, high), 1 << 32)
    return found


def windows_newest_first(uids: BitMap, size: int) -> Iterator[BitMap]:
    """Split UIDs into windows of `size`, the highest first."""
    rest = len(uids)
    while rest > 0:
        start = max(0, rest - size)
        yield uids[start:rest]
        rest = start


def spans_up_to_highest(uids: BitMap, size: int) -> list[str]:
    """Ranges that begin at 1 and leave no UID out up to the highest of `uids`, with at most `size` of these each."""
    tops = [uids[min(end, len(uids)) - 1] for end in range(size, len(uids) + size, size)]
    return [f"{low + 1}:{top}" for low, top in zip([0, *tops], tops, strict=False)]


def uid_set(uids: BitMap) -> str:
    """UIDs as an IMAP sequence-set of ranges (RFC 9051, 4.1.1)."""
    parts: list[str] = []
    start = previous = -1
    for uid in uids:
        if uid != previous + 1:
            if start >= 0:
                parts.append(str(start) if start == previous else f"{start}:{previous}")
            start = uid
        previous = uid
    if start >= 0:
        parts.append(str(start) if start == previous else f"{start}:{previous}")
    return ",".join(parts)


def mismatches(expected: Sequence[bytes], found: Sequence[bytes | None]) -> tuple[int, int]:
    """Of spot-checked messages, those that are not what they were, and those that answered at all (None did not)."""
    answered = [(e, f) for e, f in zip(expected, found, strict=True) if f is not None]
    return sum(1 for e, f in answered if e != f), len(answered)


def is_renumbered(wrong: int, answered: int) -> bool:
    """Whether a spot check proves that UIDs mean other messages now (case 34).

    One odd message among many proves nothing: some servers correct a size after the fact.
    """
    return wrong > 1 or (wrong == 1 and answered == 1)


def next_scan_window(known: BitMap, position: int, size: int, below: int) -> tuple[BitMap, int]:
    """Rolling flag scan without CONDSTORE: the next `size` known UIDs under `below`, and where to go on (0: from the
    top).
    """
    eligible = within(known, 1, below)
    if not eligible:
        return BitMap(), 0
    upto = eligible if position <= 0 else within(eligible, 1, position)
    if not upto:
        upto = eligible
    window = upto[max(0, len(upto) - size) :]
    following = window[0]
    return window, following if following > eligible[0] else 0
