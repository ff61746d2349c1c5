"""Previews out of parts that are cut off, damaged or hostile."""

from __future__ import annotations

import base64
import quopri
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.mime import decode_transfer, message_preview, parse_message, preview

TEXT = "Grüße aus Köln, 日本 and elsewhere. " * 20


@pytest.mark.parametrize("encode", [base64.encodebytes, quopri.encodestring, bytes])
def test_any_cut_of_any_encoding_is_a_beginning_of_the_text(encode: object) -> None:
    assert callable(encode)
    encoding = {base64.encodebytes: "base64", quopri.encodestring: "quoted-printable"}.get(encode, "8bit")
    raw = encode(TEXT.encode())
    for length in range(200):
        shown = preview(raw[:length], encoding, "utf-8", "plain", 1_000)
        assert TEXT.startswith(shown)
        assert "\ufffd" not in shown
    assert preview(raw, encoding.upper(), "UTF-8", "PLAIN", 10_000) == TEXT.strip()


@given(st.text(max_size=300), st.integers(0, 100))
def test_the_length_is_in_octets_and_characters_stay_whole(text: str, max_bytes: int) -> None:
    shown = preview(text.encode("utf-8", "replace"), "8bit", "utf-8", "plain", max_bytes)
    assert len(shown.encode()) <= max_bytes
    assert preview(shown.encode(), "8bit", "utf-8", "plain", max_bytes) == shown


@given(
    st.binary(max_size=500),
    st.sampled_from(["7bit", "base64", "quoted-printable", "x-uuencode", "nonsense", ""]),
    st.sampled_from(
        [None, "", "utf-8", "us-ascii", "x-none", "utf-7", "utf-16", "iso-2022-jp", "hz", "gb2312", "punycode"]
    ),
    st.sampled_from(["plain", "html"]),
)
def test_never_raises_and_is_clean(raw: bytes, encoding: str, charset: str | None, subtype: str) -> None:
    shown = preview(raw, encoding, charset, subtype, 120)
    assert len(shown.encode()) <= 120
    assert "\0" not in shown
    assert shown == " ".join(shown.split())


def test_without_a_charset_the_bytes_decide() -> None:
    assert preview("Köln".encode()) == "Köln"
    assert preview("Köln".encode("cp1252")) == "Köln"
    assert preview("Köln".encode()[:2], charset="us-ascii") == "K"
    assert preview("Köln".encode("cp1252"), charset="iso-8859-1") == "Köln"
    assert preview(b"caf\xe9s", charset="x-none") == "caf\ufffds"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("<p>one</p><p>two</p>", "one two"),
        ("<b>W</b>ord <span>by</span> wo<wbr>rd<br>line", "Word by word line"),
        ("<style>p{a>b}</style>x<script>if (a<b) '</p>'</script >y", "x y"),
        ("<html><head><title>T</title><body>text", "text"),
        ("<!-- hidden > --> shown <!-- never closed", "shown"),
        ("a &lt; b &amp;&nbsp;c &#8364; &#x41;", "a < b & c € A"),
        ("a < b", "a < b"),
        ("<img alt='a > b' src=x>after", "after"),
        ('<a title="x">in</a>side', "inside"),
        ("<!DOCTYPE html><?xml x?>text", "text"),
        ("text <unfinished", "text"),
        ("x&#" + "9" * 5_000 + ";y", "x\ufffdy"),
        ("x&#xD800;y&#0;z", "x\ufffdy\ufffdz"),
        ("offer&zwnj;&nbsp;&#847; &zwnj; &zwnj;&nbsp;ends", "offer\u200c ends"),
    ],
)
def test_markup_is_dropped(source: str, shown: str) -> None:
    assert preview(source.encode(), subtype="html") == shown


def test_html_names_its_own_charset() -> None:
    source = '<html><head><meta http-equiv=x content="text/html; charset=koi8-r"></head>Привет'.encode("koi8-r")
    assert preview(source, subtype="html") == "Привет"


def test_uuencoded_text() -> None:
    assert decode_transfer(b"begin 644 a.txt\n%:&5L;&\\\n`\nend\n", "x-uuencode") == b"hello"
    assert decode_transfer(b"no begin", "x-uuencode") == b"no begin"


@given(st.binary(max_size=300))
def test_whole_encodings_are_undone_exactly(data: bytes) -> None:
    assert decode_transfer(base64.encodebytes(data), "base64") == data
    assert decode_transfer(base64.b64encode(data).rstrip(b"="), "BASE64") == data


def test_a_large_part_costs_little() -> None:
    raw = b"<p>text</p>" + zlib.compress(b"x") * 10 + b"<div>" * 10_000_000
    assert preview(raw, subtype="html").startswith("text")


def test_the_preview_of_a_message_at_hand() -> None:
    raw = b"Subject: x\nContent-Type: text/html\nContent-Transfer-Encoding: base64\n\n" + base64.encodebytes(
        b"<p>hello</p>"
    )
    assert message_preview(raw, parse_message(raw)) == "hello"
    assert message_preview(b"Content-Type: image/png\n\nx", parse_message(b"Content-Type: image/png\n\nx")) == ""
