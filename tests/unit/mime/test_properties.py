"""What holds for any bytes at all: nothing raises, everything encodes, time is linear."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.mime import (
    HeaderLimits,
    Headers,
    MessageCaps,
    ParsedMessage,
    attachments_from_structure,
    canonical_identity,
    parse_headers,
    parse_headers_and_identity,
    parse_message,
    preview,
    text_part,
)

# Fragments that mean something to a mail parser, so that random sequences of them get deep into it.
FRAGMENTS = st.sampled_from(
    [
        *(
            b"From: |To: |Cc: |Reply-To: |Subject: |Date: |Message-ID: |References: |List-Id: |In-Reply-To: ".split(
                b"|"
            )
        ),
        *(b"Content-Type: |Content-Disposition: |multipart/mixed; boundary=b|--b|--b--".split(b"|")),
        *(b"text/plain; charset=utf-7|message/rfc822|text/html".split(b"|")),
        *(b"=?|?=|=?utf-8?Q?|=?utf-7?B?|=?x?b?|=?|=00|=C3|_|K2AA-".split(b"|")),
        *(b'"|\\|(|)|<|>|@|,|;|:|[|]|a@b|<a@b>|.|*0*=|*=|filename|name'.split(b"|")),
        *(b"Tue, |14 Jul 2026 |09:12:33 |+9900|-0000|99999999999|1".split(b"|")),
        *(b"\r\n|\n|\r|\r\n |\n\t|\n\n|\r\n\r\n| |\t".split(b"|")),
        b"\0",
        b"\x1b$B",
        b"\xe9",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b"\xff\xfe",
        b"\x85",
    ]
)
NOISE = st.lists(FRAGMENTS | st.binary(max_size=4), max_size=60).map(b"".join)


def assert_clean(value: Headers | ParsedMessage) -> None:
    text = msgspec.json.encode(value).decode("utf-8")
    assert "\0" not in text
    for control in [*range(0x20), 0x7F]:
        assert f"\\u{control:04x}" not in text.lower().replace("\\\\", "")
    assert not any(short in text.replace("\\\\", "") for short in ("\\n", "\\r", "\\t", "\\b", "\\f"))


@given(NOISE)
@settings(max_examples=400)
def test_headers_of_any_bytes_are_clean(raw: bytes) -> None:
    headers = parse_headers(raw)
    assert_clean(headers)
    assert canonical_identity(canonical_identity(raw)) == canonical_identity(raw)
    assert msgspec.json.decode(msgspec.json.encode(headers), type=Headers) == headers


@given(NOISE)
def test_limits_hold_for_any_bytes(raw: bytes) -> None:
    limits = HeaderLimits(
        max_bytes=80,
        max_lines=6,
        max_addresses=2,
        max_references=2,
        max_comment_depth=1,
        max_value_chars=9,
        max_id_chars=9,
    )
    headers = parse_headers(raw, limits=limits)
    everyone = headers.from_ + headers.to + headers.cc + headers.bcc + headers.reply_to
    assert len(everyone) <= 2
    assert len(headers.references) <= 2
    assert len(headers.in_reply_to) <= 2
    for entry in everyone:
        assert len(entry.name or "") <= 9
        assert len(entry.address or "") <= 9
    for text in (headers.subject, headers.message_id, headers.list_id, *headers.references):
        assert len(text or "") <= 9


@given(NOISE)
def test_messages_of_any_bytes_are_clean(raw: bytes) -> None:
    message = parse_message(raw, caps=MessageCaps(max_parts=5, max_depth=2, max_header_bytes=100))
    assert_clean(message)
    assert len(message.parts) <= 5
    end = 0
    for part in message.parts:
        assert end <= part.start <= part.end <= len(raw)
        assert part.size == part.end - part.start
        end = part.end


STRUCTURES = st.recursive(
    st.none()
    | st.integers(-5, 2**70)
    | st.sampled_from(
        [b"TEXT", b"PLAIN", b"HTML", b"MIXED", b"attachment", b"filename*0*", b"utf-8''%00", b'"', b"12", b"\xe9\0"]
    )
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=12).map(tuple),
    max_leaves=60,
)


@given(STRUCTURES)
def test_case_53_structures_of_any_shape_are_read_or_none(structure: object) -> None:
    found = attachments_from_structure(structure)  # type: ignore[arg-type]
    if found is not None:
        assert "\\u0000" not in msgspec.json.encode(found).decode("utf-8")
    text_part(structure)  # type: ignore[arg-type]


# Inputs that pin the CPU of parsers which look back (case 95), as (unit, reader).
UNBOUNDED = HeaderLimits(
    max_bytes=10**9, max_lines=10**9, max_addresses=10**9, max_references=10**9, max_comment_depth=10**9
)


def headers_of(prefix: bytes, unit: bytes, suffix: bytes = b"") -> Callable[[int], object]:
    return lambda count: parse_headers(prefix + unit * count + suffix, limits=UNBOUNDED)


HOSTILE: dict[str, Callable[[int], object]] = {
    "addresses": headers_of(b"To: ", b"A B <a@example.org>, "),
    "scanned addresses": headers_of(b"To: ", b"A (c) <a@example.org>, "),
    "bare names": headers_of(b"To: ", b"a name, "),
    "one long name": headers_of(b"To: ", b"a b@ "),
    "blanks in an address": headers_of(b"To: (c) a", b" ", b"@x"),
    "blanks between": headers_of(b"To: A", b" ", b"B"),
    "comments": headers_of(b"To: ", b"("),
    "comments behind an address": headers_of(b"To: a@b)", b"(a)"),
    "closed comments": headers_of(b"To: ", b"()"),
    "nested comments": lambda count: parse_headers(b"To: " + b"(" * count + b")" * count, limits=UNBOUNDED),
    "quotes": headers_of(b"To: ", b'"'),
    "escaped quotes": headers_of(b'To: "', b'\\"'),
    "open quotes": headers_of(b"To: ", b'"\\'),
    "angles": headers_of(b"To: ", b"<"),
    "angles with quotes": headers_of(b"To: ", b'<"'),
    "brackets": headers_of(b"To: ", b"["),
    "groups": headers_of(b"To: ", b"a:"),
    "at signs": headers_of(b"To: ", b"@"),
    "backslashes": headers_of(b"To: (", b"\\"),
    "encoded words in names": headers_of(b"To: ", b"=?utf-8?Q?a?= "),
    "half encoded words in names": headers_of(b"To: ", b"=?a"),
    "encoded words": headers_of(b"Subject: ", b"=?utf-8?Q?a?= "),
    "mixed encoded words": headers_of(b"Subject: ", b"=?utf-8?Q?a?= =?iso-8859-1?B?YQ==?= "),
    "half encoded words": headers_of(b"Subject: ", b"=?"),
    "encoded words without end": headers_of(b"Subject: ", b"=?a?q?"),
    "escapes": headers_of(b"Subject: ", b"\x1b$B"),
    "folds": headers_of(b"Subject: ", b"\n "),
    "blank lines": headers_of(b"", b"\n", b"Subject: x"),
    "references": headers_of(b"References: ", b"<a@b>\n "),
    "open references": headers_of(b"References: ", b"<"),
    "list ids": headers_of(b"List-Id: ", b"<"),
    "date": headers_of(b"Date: ", b" 1"),
    "date blanks": headers_of(b"Date: Tue, 14 Jul 2026 ", b" ", b"x"),
    "content type": headers_of(b"Content-Type: ", b"; charset = ", b"\xe9"),
    "fields": headers_of(b"", b"To: a@b\n"),
    "junk lines": headers_of(b"", b"junk\n"),
    "canonical": lambda count: canonical_identity(b"To: a\n\t b\nSubject: x\n" * count),
    "html tags": lambda count: preview(b"<a " * count, subtype="html"),
    "html quotes": lambda count: preview(b'<a "> ' * count, subtype="html", max_bytes=10**9),
    "html comments": lambda count: preview(b"<!-" * count + b"<!--" * count, subtype="html", max_bytes=10**9),
    "html scripts": lambda count: preview(b"<script></script>" * count, subtype="html", max_bytes=10**9),
    "html references": lambda count: preview(b"&#1" * count + b"&am" * count, subtype="html", max_bytes=10**9),
    "delimiters": lambda count: parse_message(b"Content-Type: multipart/a; boundary=b\n\n" + b"--b\n" * count),
    "hyphens": lambda count: parse_message(b"Content-Type: multipart/a; boundary=b\n\n" + b"--" * count),
    "parameters": lambda count: parse_message(b"Content-Type: multipart/a" + b'; x="' * count),
}


def seconds(reader: Callable[[int], object], count: int) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.thread_time()
        reader(count)
        best = min(best, time.thread_time() - started)
    return best


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_case_95_time_is_linear(name: str) -> None:
    reader = HOSTILE[name]
    small, factor = 2_000, 8
    base = max(seconds(reader, small), 0.0005)
    # Linear is a factor of 8, quadratic one of 64.
    assert seconds(reader, small * factor) < base * factor * 3.5


@given(st.lists(FRAGMENTS, max_size=80).map(b"".join))
@settings(max_examples=300)
def test_both_at_once_say_what_each_says(raw: bytes) -> None:
    assert parse_headers_and_identity(raw) == (parse_headers(raw), canonical_identity(raw))


def test_both_at_once_of_a_block_that_limits_cut() -> None:
    raw = b"Subject: a\r\n" + b"X: y\r\n" * 30_000 + b"Message-ID: <m@x>\r\n\r\n"
    assert parse_headers_and_identity(raw) == (parse_headers(raw), canonical_identity(raw))
