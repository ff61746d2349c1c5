"""Records to events: whatever the bytes are, what comes out can be stored, or is refused for a reason."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.contracts.mailbox import MessageAdded, MessageHeaders
from streams.projection.decoding import MalformedEvent, UnknownEvent, clean, clean_text, decode_change
from tests.fixtures.mail_events import AccountLog


def added(subject: str) -> bytes:
    return msgspec.json.encode(AccountLog().added(1, "m1", headers=MessageHeaders(subject=subject)))


def subject_of(value: bytes) -> tuple[str | None, bool]:
    decoded = decode_change(value)
    assert isinstance(decoded.event, MessageAdded)
    return decoded.event.headers.subject, decoded.cleaned


def test_good_events_pass_untouched() -> None:
    assert subject_of(added("Grüße 😀 \\u0000")) == ("Grüße 😀 \\u0000", False)


@pytest.mark.parametrize(
    ("value", "subject"),
    [
        (added("a\x00b"), "a\ufffdb"),  # case 85
        (added("#").replace(b'"#"', b'"\\ud83d\\ude00 \\u0000"'), "😀 \ufffd"),
        (added("#").replace(b'"#"', b'"\\udce9"'), "\ufffd"),
        (added("#").replace(b'"#"', b'"caf\xe9 \xc1\xbe"'), "caf\ufffd \ufffd\ufffd"),  # case 86
        (added("#").replace(b'"#"', b'"a\x00b"'), "a\ufffdb"),
    ],
)
def test_case_85_86_text_that_cannot_be_stored_is_replaced_and_flagged(value: bytes, subject: str) -> None:
    assert subject_of(value) == (subject, True)


def test_a_pair_of_surrogates_is_no_reason_to_flag() -> None:
    assert subject_of(added("#").replace(b'"#"', b'"\\ud83d\\ude00"')) == ("😀", False)


def test_an_unknown_type_is_told_with_its_place_in_the_sequence() -> None:
    event = decode_change(added("x").replace(b"message.added", b"message.pinned")).event
    assert isinstance(event, UnknownEvent)
    assert (event.type, event.sequence) == ("message.pinned", 1)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"type": 5}',
        b'{"type": "message.added"}',
        b'{"type": "new.kind", "account_id": "no uuid", "sequence": 1, "at": "2026-01-01T00:00:00Z"}',
        b"[" * 100_000,
        added("secret-canary").replace(b'"sequence":1', b'"sequence":0'),
        added("\x00secret-canary").replace(b'"sequence":1', b'"sequence":0'),
    ],
)
def test_what_is_no_event_is_refused_without_showing_it(value: bytes | None) -> None:
    with pytest.raises(MalformedEvent) as caught:
        decode_change(value)
    assert "canary" not in str(caught.value)


@given(st.text() | st.text(alphabet="\x00\ud800\udfff\\u0a"))
def test_whatever_the_text_it_can_be_stored(text: str) -> None:
    value = json.dumps(text, ensure_ascii=True).encode()
    subject, cleaned = subject_of(added("#").replace(b'"#"', value))
    assert subject is not None
    assert "\x00" not in subject
    subject.encode("utf-8")
    assert cleaned == (subject != json.loads(value))  # two surrogates side by side are one character of JSON


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=10,
    )
)
def test_cleaning_changes_nothing_else(value: object) -> None:
    cleaned, changed = clean(value)
    if not changed:
        assert cleaned == value
    assert clean(cleaned) == (cleaned, False)


def test_what_is_no_json_stays_for_the_decoder_to_refuse() -> None:
    assert clean_text(b"\\u0000 nonsense") == b"\\u0000 nonsense"
    assert json.loads(clean_text(b'{"a": "\\u0000"}')) == {"a": "\ufffd"}
