"""Mirror records: they come back as they were, damage is noticed, and they stay small."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from streams.domain import mirror
from streams.domain.identity import IDENTITY_BYTES
from streams.domain.mirror import (
    FLAG_SPAN,
    IDENTITY_SPAN,
    KEYWORDS_PER_SEGMENT,
    LABEL,
    AccountRecord,
    FlagSegment,
    IdentitySegment,
    MailboxRecord,
    Quarantined,
)
from streams.errors import MirrorDamaged

offsets = st.integers(0, FLAG_SPAN - 1)
flag_names = st.sampled_from(["\\Seen", "\\Flagged", "\\Deleted", "kw", "ümlaut", LABEL + "x y"])
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.dictionaries(offsets, st.frozensets(flag_names), max_size=80), st.lists(offsets, max_size=20))
def test_flag_segments_come_back(put: dict[int, frozenset[str]], dropped: list[int]) -> None:
    segment = FlagSegment()
    for offset, flags in put.items():
        segment.put(offset, flags)
    for offset in dropped:
        segment.drop(offset)
    again = FlagSegment.decode(segment.encode())
    expected = {offset: flags for offset, flags in put.items() if offset not in dropped}
    assert set(again.known) == set(expected)
    assert {offset: again.flags_of(offset) for offset in expected} == expected


@given(st.dictionaries(st.integers(0, IDENTITY_SPAN - 1), st.binary(min_size=10, max_size=10), max_size=40))
def test_identity_segments_come_back(put: dict[int, bytes]) -> None:
    segment = IdentitySegment()
    for offset, identity in put.items():
        segment.put(offset, identity)
    again = IdentitySegment.decode(segment.encode())
    for offset, identity in put.items():
        assert again.get(offset) == (identity if any(identity) else None)
        again.drop(offset)
    assert not again


@given(
    st.builds(
        AccountRecord,
        next_sequence=st.integers(1, 2**53),
        basis=st.sampled_from([None, "email_id", "gm_msgid", "content"]),
        mailboxes=st.integers(0, 10_000),
        tier=st.none() | text,
        newest_mail_at=st.none() | st.floats(0, 4e9),
        unfinished=st.integers(0, 100),
    )
)
def test_account_records_come_back(record: AccountRecord) -> None:
    assert mirror.decode_account(mirror.encode_record(record)) == record


@given(
    st.builds(
        MailboxRecord,
        mailbox_id=text,
        wire_name=st.binary(max_size=60),
        name=text,
        attributes=st.lists(text, max_size=4).map(tuple),
        uidvalidity=st.none() | st.integers(0, 2**32 - 1),
        uidnext=st.integers(1, 2**32 - 1),
        highestmodseq=st.integers(0, 2**63 - 1),
        quarantined=st.dictionaries(
            st.integers(1, 2**32 - 1), st.builds(Quarantined, text, st.integers(1, 9), st.floats(0, 4e9)), max_size=5
        ),
    )
)
def test_mailbox_records_come_back(record: MailboxRecord) -> None:
    assert mirror.decode_mailbox(mirror.encode_record(record)) == record


def test_records_of_an_older_writer_are_read() -> None:
    """Fields that a record lacks have their defaults; fields that nobody knows any more are passed over."""
    old = mirror.seal(msgspec.msgpack.encode({"next_sequence": 7, "gone": True}))
    assert mirror.decode_account(old) == AccountRecord(next_sequence=7)


SEALED = [
    (mirror.decode_account, mirror.encode_record(AccountRecord())),
    (mirror.decode_mailbox, mirror.encode_record(MailboxRecord("m", b"INBOX", "INBOX"))),
    (FlagSegment.decode, FlagSegment(BitMap([1, 5]), {"\\Seen": BitMap([5])}).encode()),
    (IdentitySegment.decode, mirror.seal(b"\x01" * IDENTITY_BYTES)),
]


@pytest.mark.parametrize(("decode", "value"), SEALED)
def test_damage_is_noticed_at_every_byte(decode, value: bytes) -> None:  # type: ignore[no-untyped-def]
    """One flipped bit anywhere, a byte less, nothing, another format: never taken for "nothing known"."""
    decode(value)
    for at in range(len(value)):
        broken = bytearray(value)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises(MirrorDamaged):
            decode(bytes(broken))
    for damaged in (value[:-1], b"", b"\x02" + value[1:], value[:4]):
        with pytest.raises(MirrorDamaged):
            decode(damaged)


@pytest.mark.parametrize("decode", [mirror.decode_account, mirror.decode_mailbox, FlagSegment.decode])
def test_a_sound_seal_around_nonsense_is_damage(decode) -> None:  # type: ignore[no-untyped-def]
    for body in (b"", b"\xc1", b"\x93\x01\x02", b"\x92\xc4\x01x\x80", b"\x92\xc4\x02rz\x80"):
        with pytest.raises(MirrorDamaged):
            decode(mirror.seal(body))


def test_an_identity_segment_that_is_too_long_is_damage() -> None:
    with pytest.raises(MirrorDamaged):
        IdentitySegment.decode(mirror.seal(b"\x01" * (IDENTITY_SPAN * IDENTITY_BYTES + 1)))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 1.0])
def test_a_hot_arrival_rewrites_at_most_24_kib(share: float) -> None:
    """Account, mailbox, flag segment and identity segment together, for the worst mixture of system flags."""
    chance = random.Random(7)
    segment = FlagSegment()
    for offset in range(FLAG_SPAN):
        segment.put(
            offset, frozenset(f for f in ("\\Seen", "\\Flagged", "\\Answered", "kw") if chance.random() < share)
        )
    ids = IdentitySegment()
    for offset in range(IDENTITY_SPAN):
        ids.put(offset, chance.randbytes(IDENTITY_BYTES))
    record = MailboxRecord(
        "m" * 13, b"INBOX" * 5, "INBOX" * 5, quarantined={n: Quarantined("x", 1, 1e9) for n in range(10)}
    )
    sizes = [
        len(segment.encode()),
        len(ids.encode()),
        len(mirror.encode_record(record)),
        len(mirror.encode_record(AccountRecord())),
    ]
    assert sizes[0] <= 5 * (FLAG_SPAN // 8) + 200
    assert sum(sizes) <= 24 * 1024


def test_a_flood_of_keywords_is_cut_and_system_flags_are_not_pushed_out() -> None:
    segment = FlagSegment()
    segment.put(0, frozenset({"\\Seen"}))
    for n in range(KEYWORDS_PER_SEGMENT + 50):
        segment.put(1, frozenset({f"k{n}"}))
        segment.put(2, frozenset({f"k{n}", "\\Seen"}))
    assert "\\Seen" in segment.flags_of(2)
    assert len(segment.flags) <= KEYWORDS_PER_SEGMENT
    # labels have a bound of their own
    segment.put(3, frozenset({LABEL + "a", LABEL + "b"}))
    assert segment.flags_of(3) == {LABEL + "a", LABEL + "b"}


@given(st.integers(1, 2**32 - 1))
def test_bases_and_keys(uid: int) -> None:
    assert mirror.flag_base(uid) <= uid < mirror.flag_base(uid) + FLAG_SPAN
    assert mirror.ids_base(uid) <= uid < mirror.ids_base(uid) + IDENTITY_SPAN
    keys = [mirror.flags_key("a", "m", 7, mirror.flag_base(u)) for u in (1, uid, 2**32 - 1)]
    assert keys == sorted(keys)
