"""The mirror: what is known of an account's mailboxes, in records small enough that a change rewrites only what it
touched.

=====================================================  =====================================================
key                                                    what
=====================================================  =====================================================
``<account>/account``                                  `AccountRecord`: sequence, basis of identity, tier
``<account>/mailbox/<mailbox>``                        `MailboxRecord`: name, cursor, backfill, quarantine
``<account>/flags/<mailbox>/<uidvalidity>/<base>``     `FlagSegment`: known UIDs and flags of 16,384 UIDs
``<account>/ids/<mailbox>/<uidvalidity>/<base>``       `IdentitySegment`: identities of 512 UIDs
=====================================================  =====================================================

Invariants: a value carries its format and a checksum, and one that cannot be read raises `MirrorDamaged`, it is never
taken for "nothing known"; the mailbox's `count` is the number of known UIDs in its segments, so that a missing
segment is noticed.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec
from pyroaring import BitMap

from streams.domain.identity import IDENTITY_BYTES, Basis
from streams.errors import MirrorDamaged

FLAG_SPAN: Final = 16_384
"""UIDs per flag segment: a bitmap is at most 2 KiB, so a segment with all system flags stays near 12 KiB."""
IDENTITY_SPAN: Final = 512
"""UIDs per identity segment: at most 5 KiB."""
KEYWORDS_PER_SEGMENT: Final = 200
"""Distinct flags remembered per segment; a server that invents more is cut there."""
LABELS_PER_SEGMENT: Final = 2000
"""The same for labels, of which people have more (Gmail allows 10,000 in an account)."""
QUARANTINE_LIMIT: Final = 200
"""UIDs set aside per mailbox at most (they are part of its record); with more the mailbox itself is set aside."""
LABEL: Final = "label("
"""Gmail's labels are kept as flags with this prefix, which no IMAP flag can have (RFC 9051, 9: not an atom)."""

_FORMAT: Final = b"\x01"


class Quarantined(msgspec.Struct, array_like=True, frozen=True):
    """One UID that could not be read: why, how often it was tried, when (unix seconds) it is tried again."""

    reason: str
    attempts: int
    retry_at: float


class AccountRecord(msgspec.Struct):
    """One per account; never tombstoned, because sequence numbers must not be used twice.

    `last_poll_at` is when the last complete look at all mailboxes began (unix seconds): a new owner polls one interval
    later. `unfinished` counts the processes in a row that began to work on the account and did not live to end it.
    """

    next_sequence: int = 1
    basis: Basis | None = None
    mailboxes: int = 0
    tier: str | None = None
    tier_reason: str | None = None
    newest_mail_at: float | None = None
    caught_up: bool = False
    last_poll_at: float | None = None
    serial: int = 0
    unfinished: int = 0
    unfinished_at: float = 0.0


class MailboxRecord(msgspec.Struct):
    """One mailbox. ``[floor, uidnext)`` is the region in which every message of the server is known or set aside.

    `excluded` messages of the region are older than `since` and not wanted. `unstable` counts changes of UIDVALIDITY in
    a row, `failures` refusals in a row; a quiet look clears both. A `view` shows mail that lives in another mailbox.
    """

    mailbox_id: str
    wire_name: bytes
    name: str
    delimiter: str | None = None
    special_use: str | None = None
    selectable: bool = True
    attributes: tuple[str, ...] = ()
    object_id: str | None = None
    uidvalidity: int | None = None
    uidnext: int = 1
    floor: int = 1
    highestmodseq: int = 0
    count: int = 0
    visited: bool = False
    backfill_done: bool = False
    backfilled: int = 0
    excluded: int = 0
    since: float | None = None
    limit_count: int | None = None
    quarantined: dict[int, Quarantined] = msgspec.field(default_factory=dict)
    previous: int | None = None
    previous_count: int = 0
    unstable: int = 0
    failures: int = 0
    view: bool = False
    aside: str | None = None
    aside_until: float | None = None
    scan_next: int = 0
    reconciled_at: float = 0.0
    aside_at: float = 0.0


class _FlagSegmentWire(msgspec.Struct, array_like=True):
    known: bytes
    flags: dict[str, bytes]


class FlagSegment:
    """Known UIDs of one span and, for each flag, which of them have it. UIDs are stored relative to the span's base."""

    __slots__ = ("flags", "known")

    def __init__(self, known: BitMap | None = None, flags: dict[str, BitMap] | None = None) -> None:
        self.known = BitMap() if known is None else known
        self.flags: dict[str, BitMap] = {} if flags is None else flags

    def encode(self) -> bytes:
        """Sealed bytes of the record."""
        wire = _FlagSegmentWire(_pack(self.known), {name: _pack(b) for name, b in self.flags.items() if b})
        return seal(msgspec.msgpack.encode(wire))

    @classmethod
    def decode(cls, value: bytes) -> FlagSegment:
        """Raises `MirrorDamaged`."""
        try:
            wire = msgspec.msgpack.decode(unseal(value), type=_FlagSegmentWire)
            return cls(_unpack(wire.known), {name: _unpack(b) for name, b in wire.flags.items()})
        except (msgspec.DecodeError, ValueError, RuntimeError) as error:
            raise MirrorDamaged(f"flag segment cannot be read: {error}") from None

    def flags_of(self, offset: int) -> frozenset[str]:
        """Flags of the UID at `offset` from the base."""
        return frozenset(name for name, bitmap in self.flags.items() if offset in bitmap)

    def put(self, offset: int, flags: frozenset[str]) -> frozenset[str]:
        """Make the UID known with these flags; returns those there was room for."""
        self.known.add(offset)
        missing = len(flags)
        for name, bitmap in self.flags.items():
            if name in flags:
                bitmap.add(offset)
                missing -= 1
            else:
                bitmap.discard(offset)
        if not missing:
            return flags
        for name in sorted(flags - self.flags.keys()):
            label = name.startswith(LABEL)
            count = sum(other.startswith(LABEL) is label for other in self.flags)
            if count < (LABELS_PER_SEGMENT if label else KEYWORDS_PER_SEGMENT):
                self.flags[name] = BitMap([offset])
        return self.flags_of(offset)

    def drop(self, offset: int) -> None:
        """Forget the UID."""
        self.known.discard(offset)
        for bitmap in self.flags.values():
            bitmap.discard(offset)


class IdentitySegment:
    """Identities of one span: a packed table with a slot per UID, zero where none is known."""

    __slots__ = ("table",)

    def __init__(self, table: bytearray | None = None) -> None:
        self.table = bytearray(IDENTITY_SPAN * IDENTITY_BYTES) if table is None else table

    def encode(self) -> bytes:
        """Sealed bytes; trailing empty slots are left out."""
        return seal(bytes(self.table.rstrip(b"\x00")))

    @classmethod
    def decode(cls, value: bytes) -> IdentitySegment:
        """Raises `MirrorDamaged`."""
        body = unseal(value)
        size = IDENTITY_SPAN * IDENTITY_BYTES
        if len(body) > size:
            raise MirrorDamaged("identity segment is too long")
        return cls(bytearray(body) + bytearray(size - len(body)))

    def get(self, offset: int) -> bytes | None:
        """Identity at `offset` from the base."""
        found = bytes(self.table[offset * IDENTITY_BYTES : (offset + 1) * IDENTITY_BYTES])
        return found if any(found) else None

    def put(self, offset: int, identity: bytes) -> None:
        """Set the identity at `offset`."""
        self.table[offset * IDENTITY_BYTES : (offset + 1) * IDENTITY_BYTES] = identity

    def drop(self, offset: int) -> None:
        """Clear the slot at `offset`."""
        self.put(offset, bytes(IDENTITY_BYTES))

    def __bool__(self) -> bool:
        return any(self.table)


_PLAIN_BYTES: Final = FLAG_SPAN // 8


def _pack(bitmap: BitMap) -> bytes:
    """Roaring form, or a plain bit table where that is smaller (dense and without runs: roaring needs 8 KiB there)."""
    bitmap.run_optimize()
    roaring: bytes = bitmap.serialize()
    if len(roaring) <= _PLAIN_BYTES:
        return b"r" + roaring
    table = bytearray(_PLAIN_BYTES)
    for value in bitmap:
        table[value >> 3] |= 1 << (value & 7)
    return b"p" + bytes(table)


def _unpack(packed: bytes) -> BitMap:
    if packed[:1] == b"r":
        return BitMap.deserialize(packed[1:])
    if packed[:1] != b"p" or len(packed) != _PLAIN_BYTES + 1:
        raise ValueError("unknown bitmap form")
    return BitMap(i * 8 + bit for i, byte in enumerate(packed[1:]) if byte for bit in range(8) if byte >> bit & 1)


def seal(body: bytes) -> bytes:
    """Format byte, CRC-32, body."""
    return _FORMAT + zlib.crc32(body).to_bytes(4, "big") + body


def unseal(value: bytes) -> bytes:
    """Body of a sealed value. Raises `MirrorDamaged` for an unknown format or a wrong checksum."""
    if value[:1] != _FORMAT or len(value) < 5:
        raise MirrorDamaged("mirror record has an unknown format")
    body = value[5:]
    if zlib.crc32(body) != int.from_bytes(value[1:5], "big"):
        raise MirrorDamaged("mirror record fails its checksum")
    return body


def encode_record(record: AccountRecord | MailboxRecord) -> bytes:
    """Sealed bytes of an account or mailbox record."""
    return seal(msgspec.msgpack.encode(record))


def _decode(value: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(unseal(value), type=kind)
    except msgspec.DecodeError as error:
        raise MirrorDamaged(f"{kind.__name__} cannot be read: {error}") from None


def decode_account(value: bytes) -> AccountRecord:
    """Raises `MirrorDamaged`."""
    record: AccountRecord = _decode(value, AccountRecord)
    return record


def decode_mailbox(value: bytes) -> MailboxRecord:
    """Raises `MirrorDamaged`."""
    record: MailboxRecord = _decode(value, MailboxRecord)
    return record


def account_key(account_id: str) -> str:
    """Key of the account record."""
    return f"{account_id}/account"


def mailbox_key(account_id: str, mailbox_id: str) -> str:
    """Key of a mailbox record."""
    return f"{account_id}/mailbox/{mailbox_id}"


def flags_key(account_id: str, mailbox_id: str, uidvalidity: int, base: int) -> str:
    """Key of a flag segment; `base` is padded so that keys sort as UIDs do."""
    return f"{account_id}/flags/{mailbox_id}/{uidvalidity:010d}/{base:010d}"


def ids_key(account_id: str, mailbox_id: str, uidvalidity: int, base: int) -> str:
    """Key of an identity segment."""
    return f"{account_id}/ids/{mailbox_id}/{uidvalidity:010d}/{base:010d}"


def flag_base(uid: int) -> int:
    """First UID of the flag span that holds `uid`."""
    return uid - uid % FLAG_SPAN


def ids_base(uid: int) -> int:
    """First UID of the identity span that holds `uid`."""
    return uid - uid % IDENTITY_SPAN
