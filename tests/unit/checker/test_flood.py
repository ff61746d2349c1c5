"""The flood: each bad record has the reason that it must have in the dead letters, and what is wrong there is told."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

from streams.commands.validation import read_envelope
from streams.contracts.account import AccountStateChanged, UserActive
from streams.contracts.codec import Decoder
from streams.errors import PoisonRecord
from tests.rig.fleet import Fleet
from tests.storm.checker.log import Raw
from tests.storm.flood import (
    COMMAND_TOPICS,
    REASONS,
    TOPICS,
    Bad,
    Flood,
    Owed,
    digest,
    handled_elsewhere,
    missing_letters,
    wrong_letters,
)

DECODERS: dict[str, Decoder[Any]] = {
    "account.state_changed": Decoder(AccountStateChanged),
    "user.active": Decoder(UserActive),
}


def refused(bad: Bad) -> str | None:
    """Why the product's own reader of that topic refuses it."""
    try:
        if bad.topic in COMMAND_TOPICS:
            read_envelope(cast("Any", _Delivery(bad)), 4)
        elif bad.value is not None:
            DECODERS[bad.topic](bad.value)
    except PoisonRecord as poison:
        return poison.reason
    return None


class _Delivery:
    def __init__(self, bad: Bad) -> None:
        self.key, self.value, self.headers, self.partition = bad.key, bad.value, list(bad.headers), 0


def test_every_kind_of_bad_record_is_drawn_with_its_reason() -> None:
    flood = Flood(cast("Fleet", None), random.Random(1))
    drawn = [flood.bad() for _ in range(4000)]
    kinds = Counter((bad.topic, bad.reason) for bad in drawn)
    for topic in TOPICS:
        known = {reason for of, reason in kinds if of == topic}
        assert known == (REASONS if topic in COMMAND_TOPICS else REASONS - {"unknown_kind"})
    for bad in drawn:
        later = bad.reason == "unknown_kind" or (bad.reason == "wrong_key" and bad.topic not in COMMAND_TOPICS)
        assert refused(bad) == (None if later else bad.reason), bad
        assert bad.reason != "wrong_key" or bad.value is None or len(bad.headers) == (bad.topic == "user.active")


def letter(offset: int, reason: str, value: bytes, *more: tuple[str, bytes]) -> Raw:
    where = (("dlq_partition", b"2"), ("dlq_offset", str(offset).encode()), ("dlq_reason", reason.encode()))
    return Raw("user.active.dlq", 0, 0, 0, b"k", value, (*where, *more))


def test_dead_letters_that_are_wrong_doubled_or_missing() -> None:
    owed = {("user.active", 2, n): Owed("schema", digest(b"[]")) for n in (5, 6)}
    fine = [letter(5, "schema", b"[]"), letter(6, "schema", b"[", ("dlq_truncated", b"true"))]
    assert not list(wrong_letters(owed, fine)) and not missing_letters(owed, fine)
    valid, reason, content = letter(7, "schema", b"[]"), letter(5, "not_json", b"[]"), letter(5, "schema", b"{}")
    assert len(list(wrong_letters(owed, [valid, reason, content]))) == 3
    assert missing_letters(owed, [fine[0], fine[0]]) == {("user.active", 2, 6)}, "two letters of one record are one"


def test_copies_under_the_right_key_tell_what_they_are_of() -> None:
    copy = Raw("user.active", 1, 9, 0, b"user-1", b"{}", (("rekeyed_from", b"2/5"),))
    assert handled_elsewhere([copy, Raw("user.active", 1, 10, 0, b"user-1", b"{}", ())]) == {("user.active", 2, 5)}
