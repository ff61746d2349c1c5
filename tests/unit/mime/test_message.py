"""MIME trees of whole messages, and the caps on them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.mime import Attachment, MessageCaps, attachments_from_structure, parse_message, part_content
from streams.mime.structure import StructureValue, leaves_of_structure

MIXED = (
    b"From: a@example.org\r\n"
    b"Content-Type: multipart/mixed; boundary=outer\r\n"
    b"\r\n"
    b"for old readers\r\n"
    b"--outer\r\n"
    b'Content-Type: multipart/alternative; boundary="in ner"\r\n'
    b"\r\n"
    b"--in ner\r\n"
    b"\r\n"
    b"Hello\r\n"
    b"--in ner  \r\n"
    b"Content-Type: text/html; charset=utf-8\r\n"
    b"\r\n"
    b"<p>Hello</p>\r\n"
    b"\r\n"
    b"--in ner--\r\n"
    b"--outer\r\n"
    b"Content-Type: application/pdf; name=a.pdf\r\n"
    b"Content-Disposition: attachment;\r\n"
    b" filename*0*=utf-8''r%C3%A9;\r\n"
    b' filename*1="sum.pdf"\r\n'
    b"Content-Transfer-Encoding: base64\r\n"
    b"Content-ID: <c@example.org>\r\n"
    b"\r\n"
    b"aGVsbG8=\r\n"
    b"--outer--\r\n"
    b"--outer\r\n"
    b"\r\n"
    b"behind the end\r\n"
)


def test_an_ordinary_tree() -> None:
    message = parse_message(MIXED)
    assert [(part.part, part.content_type, MIXED[part.start : part.end]) for part in message.parts] == [
        ("1.1", "text/plain", b"Hello"),
        ("1.2", "text/html", b"<p>Hello</p>\r\n"),
        ("2", "application/pdf", b"aGVsbG8="),
    ]
    assert message.attachments == (Attachment("2", "résum.pdf", "application/pdf", 8, "c@example.org", False),)
    assert message.text == message.parts[0]
    assert message.defects == ()
    assert message.headers.content_type == "multipart/mixed"
    assert part_content(MIXED, message.parts[2], 1_000) == b"hello"


def test_line_ends_do_not_matter_to_the_tree() -> None:
    shape = [(part.part, part.content_type, part.filename) for part in parse_message(MIXED).parts]
    for end in (b"\n", b"\r"):
        message = parse_message(MIXED.replace(b"\r\n", end))
        assert [(part.part, part.content_type, part.filename) for part in message.parts] == shape


def test_a_message_of_one_part() -> None:
    message = parse_message(b"Subject: x\r\n\r\nbody\r\n--not a delimiter\r\n")
    assert [(part.part, part.start, part.end) for part in message.parts] == [("1", 14, 39)]
    assert parse_message(b"").parts[0].size == 0


def test_a_message_inside_a_message_is_one_attachment() -> None:
    raw = b"Content-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: message/rfc822\n\n" + MIXED + b"\n--a--\n"
    message = parse_message(raw)
    assert [(part.part, part.content_type) for part in message.parts] == [("1", "message/rfc822")]


@pytest.mark.parametrize(
    ("raw", "types", "defects"),
    [
        (b"Content-Type: multipart/mixed\n\nbody", ["text/plain"], ("boundary",)),
        (b"Content-Type: multipart/mixed; boundary=\n\nbody", ["text/plain"], ("boundary",)),
        (b"Content-Type: multipart/mixed; boundary=a\n\n--a\n\nnever closed", ["text/plain"], ("boundary",)),
        (b"Content-Type: multipart/mixed; boundary=a\n\nno part", [], ("boundary",)),
        (b"Content-Type: multipart/mixed; boundary=a\n\n--a--\n", [], ()),
        (b"Content-Type: multipart/mixed; boundary=a\n\n--a\n--a\n--a--\n", ["text/plain"] * 2, ()),
        (b"Content-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: image/png\n--a--\n", ["image/png"], ()),
        (b"Content-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: junk\n\nx\n--a--\n", ["text/plain"], ()),
        (
            b"Content-Type: multipart/mixed; boundary=a\n\n"
            b"--a\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nx\n--a\n\ny\n--a--",
            ["text/plain", "text/plain"],
            (),
        ),
    ],
)
def test_case_53_broken_trees(raw: bytes, types: list[str], defects: tuple[str, ...]) -> None:
    message = parse_message(raw)
    assert [part.content_type for part in message.parts] == types
    assert message.defects == defects


def test_a_character_that_ends_in_what_latin_1_calls_a_blank_is_kept_whole() -> None:
    for written in ("filename=voilà", "filename = voilà ;x=y", 'filename="voilà"'):
        raw = b"Content-Type: image/png\nContent-Disposition: attachment; " + written.encode() + b"\n\nx"
        assert parse_message(raw).parts[0].filename == "voilà"


def test_case_94_a_thousand_nested_multiparts() -> None:
    raw = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1_000))
    message = parse_message(raw)
    assert "part_depth" in message.defects
    assert len(message.parts) == 1


def test_case_94_a_hundred_thousand_empty_parts() -> None:
    message = parse_message(b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\n" * 100_000)
    assert message.defects == ("part_count",)
    assert len(message.parts) == MessageCaps().max_parts - 1


def test_case_94_thousands_of_leading_blank_lines() -> None:
    raw = b"\r\n" * 500_000 + MIXED
    message = parse_message(raw)
    assert len(message.parts) == 3
    assert message.headers.from_[0].address == "a@example.org"
    assert raw[message.parts[0].start : message.parts[0].end] == b"Hello"


def test_case_94_time_is_capped() -> None:
    raw = b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\nfound\n" + b"--c\n" * 10_000
    ticks = itertools.count()
    message = parse_message(raw, caps=MessageCaps(max_seconds=5), clock=lambda: float(next(ticks)))
    assert message.defects == ("parse_time",)
    assert len(message.parts) == 1
    assert next(ticks) < 20


def test_case_94_time_is_capped_in_header_blocks_too() -> None:
    raw = (b"Content-Type: multipart/mixed; boundary=b\n\n--b\n" + b"--c\n" * 10_000) * 20
    ticks = itertools.count()
    assert "parse_time" in parse_message(raw, caps=MessageCaps(max_seconds=5), clock=lambda: float(next(ticks))).defects
    assert next(ticks) < 20


def test_case_95_a_part_with_a_huge_header_block() -> None:
    raw = b"Content-Type: multipart/mixed; boundary=b\n\n--b\nX: " + b"x" * 200_000 + b"\n\nbody\n--b--\n"
    message = parse_message(raw)
    assert "header_bytes" in message.defects
    assert len(message.parts) == 1


def test_case_96_bytes_are_capped() -> None:
    message = parse_message(MIXED + b"x" * 10_000, caps=MessageCaps(max_bytes=MIXED.index(b"aGVs") + 4))
    assert message.defects == ("message_bytes",)
    assert [part.size for part in message.parts] == [5, 14, 4]


# Trees as a structure and as bytes at once.

LEAVES = st.builds(
    lambda kind, name, attached, body: (kind, name, attached, body),
    st.sampled_from([("text", "plain"), ("text", "html"), ("image", "png"), ("application", "pdf")]),
    st.sampled_from([None, "a.bin", "report final.pdf"]),
    st.sampled_from([None, "attachment", "inline"]),
    st.text(alphabet="ab \n-", max_size=40).map(lambda text: text.encode().replace(b"\n", b"\r\n")),
)
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=12)


def build(tree: object, boundaries: itertools.count[int]) -> tuple[StructureValue, bytes]:
    if isinstance(tree, list):
        boundary = b"=_%d" % next(boundaries)
        built = [build(item, boundaries) for item in tree]
        raw = b"Content-Type: multipart/mixed; boundary=" + b'"' + boundary + b'"\r\n\r\n'
        raw += b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for _, part in built) + b"--" + boundary + b"--"
        return (*(structure for structure, _ in built), b"MIXED", (b"BOUNDARY", boundary), None, None), raw
    assert isinstance(tree, tuple)
    (main, sub), name, disposition, body = tree
    raw = f"Content-Type: {main}/{sub}\r\n".encode()
    parameters: StructureValue = None
    disposed: StructureValue = None
    if disposition is not None:
        raw += (
            f"Content-Disposition: {disposition}".encode() + (f'; filename="{name}"' if name else "").encode() + b"\r\n"
        )
        disposed = (disposition.encode(), (b"filename", name.encode()) if name else None)
    elif name is not None:
        raw = raw[:-2] + f'; name="{name}"\r\n'.encode()
        parameters = (b"name", name.encode())
    lines: tuple[StructureValue, ...] = (b"1",) if main == "text" else ()
    structure: tuple[StructureValue, ...] = (
        main.encode(),
        sub.encode(),
        parameters,
        None,
        None,
        b"7BIT",
        len(body),
        *lines,
    )
    return (*structure, None, disposed, None, None), raw + b"\r\n" + body


@given(TREES)
def test_structure_and_message_tell_the_same(tree: object) -> None:
    structure, raw = build(tree, itertools.count())
    message = parse_message(raw)
    assert message.attachments == attachments_from_structure(structure)
    leaves = leaves_of_structure(structure)
    assert leaves is not None
    assert [(leaf.part, leaf.content_type, leaf.size) for leaf in leaves] == [
        (part.part, part.content_type, part.size) for part in message.parts
    ]
    assert message.defects == ()
