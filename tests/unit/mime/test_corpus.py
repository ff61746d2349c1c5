"""The corpus of odd mail, read as a whole: every message gives values, none gives an error."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from streams.mime import canonical_identity, message_preview, parse_headers, parse_message
from tests.corpus.odd_mail import appendable, mail_stream, odd_messages, realistic_messages

ODD = dict(odd_messages(3, large_bytes=200_000))


def test_the_corpus_is_made_by_its_seed() -> None:
    names = [name for name, _ in odd_messages(3, large_bytes=200_000)]
    assert len(names) == len(set(names)) == len(ODD)
    assert dict(odd_messages(3, large_bytes=200_000)) == ODD
    assert dict(odd_messages(4, large_bytes=200_000)) != ODD
    assert list(itertools.islice(mail_stream(5), 400)) == list(itertools.islice(mail_stream(5), 400))


@pytest.mark.parametrize("name", sorted(ODD))
def test_every_odd_message_is_read(name: str) -> None:
    raw = ODD[name]
    message = parse_message(raw)
    for value in (message, parse_headers(raw), message_preview(raw, message)):
        assert b"\\u0000" not in msgspec.json.encode(value)
    canonical = canonical_identity(raw)
    assert canonical_identity(canonical) == canonical


def test_what_a_few_odd_messages_say() -> None:
    assert parse_headers(ODD["subject-nul-in-encoded-word"]).defects == ("nul",)
    assert parse_headers(ODD["no-message-id"]).message_id is None
    assert parse_headers(ODD["no-subject"]).subject is None
    assert parse_headers(ODD["date-0"]).date is None
    assert canonical_identity(ODD["blank-header"]) == b""
    assert (
        "too_many_addresses" in parse_headers(ODD["to-many"]).defects
        or "header_bytes" in parse_headers(ODD["to-many"]).defects
    )
    assert parse_message(ODD["mime-filename-continued"]).attachments[0].filename == "résumé.pdf"
    assert message_preview(ODD["html-behind-styles"], parse_message(ODD["html-behind-styles"])) == "text at last"
    assert canonical_identity(ODD["duplicate-first"]) == canonical_identity(ODD["duplicate-second"])
    assert canonical_identity(ODD["duplicate-first"]) != canonical_identity(ODD["near-duplicate"])
    assert not appendable(ODD["body-nul"])
    assert appendable(ODD["body-all-bytes"])


def test_ordinary_mail_has_no_defects() -> None:
    for name, raw in realistic_messages(11, 200):
        message = parse_message(raw)
        assert message.defects == (), name
        assert message.headers.defects == (), name
        assert message.headers.date is not None
        assert message.headers.message_id
        assert message.text is not None, name
        assert message_preview(raw, message), name
