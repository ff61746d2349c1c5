"""Attachments and the text part out of BODYSTRUCTURE values, right and wrong ones."""

from __future__ import annotations

import pytest

from streams.mime import (
    Attachment,
    MessageCaps,
    StructureValue,
    attachments_from_structure,
    leaves_of_structure,
    text_part,
)

PLAIN: StructureValue = (
    b"TEXT",
    b"PLAIN",
    (b"CHARSET", b"UTF-8"),
    None,
    None,
    b"7BIT",
    b"12",
    b"1",
    None,
    None,
    None,
    None,
)
HTML: StructureValue = (b"text", b"html", (b"charset", b"iso-8859-1"), None, None, b"quoted-printable", b"90", b"3")
ATTACHED: StructureValue = (b"ATTACHMENT", (b"FILENAME", b"b.pdf"))
PDF: StructureValue = (b"APPLICATION", b"PDF", (b"NAME", b"a.pdf"), None, None, b"BASE64", b"999", None, ATTACHED, None)
LOGO: StructureValue = (
    b"IMAGE",
    b"PNG",
    None,
    b"<logo@example.org>",
    None,
    b"BASE64",
    512,
    None,
    (b"INLINE", None),
    None,
)
ENVELOPE: StructureValue = (b"date", b"subject")
FORWARDED: StructureValue = (b"attachment", (b"filename", b"forwarded.eml"))
NESTED: StructureValue = (
    *(b"MESSAGE", b"RFC822", None, None, None, b"7BIT", b"700"),
    *(ENVELOPE, PLAIN, b"20", None, FORWARDED),
)


def test_a_message_of_one_part() -> None:
    assert attachments_from_structure(PLAIN) == ()
    part = text_part(PLAIN)
    assert part is not None
    assert (part.part, part.content_type, part.charset, part.encoding, part.size) == (
        "1",
        "text/plain",
        "UTF-8",
        "7bit",
        12,
    )
    assert attachments_from_structure(PDF) == (Attachment("1", "b.pdf", "application/pdf", 999, None, False),)
    assert text_part(PDF) is None


def test_part_numbers_follow_the_nesting() -> None:
    structure: StructureValue = (
        ((PLAIN, HTML, b"ALTERNATIVE"), LOGO, b"RELATED", (b"BOUNDARY", b"x"), None, None),
        PDF,
        NESTED,
        b"MIXED",
    )
    assert attachments_from_structure(structure) == (
        Attachment("1.2", None, "image/png", 512, "logo@example.org", True),
        Attachment("2", "b.pdf", "application/pdf", 999, None, False),
        Attachment("3", "forwarded.eml", "message/rfc822", 700, None, False),
    )
    part = text_part(structure)
    assert part is not None
    assert (part.part, part.parent) == ("1.1.1", "alternative")


def test_html_is_the_text_where_there_is_no_plain_one() -> None:
    part = text_part((HTML, PDF, b"MIXED"))
    assert part is not None
    assert (part.part, part.subtype, part.charset, part.encoding) == ("1", "html", "iso-8859-1", "quoted-printable")


def test_an_empty_plain_text_does_not_win_over_html() -> None:
    empty = (b"TEXT", b"PLAIN", None, None, None, b"7BIT", b"0", b"0")
    part = text_part((empty, HTML, b"ALTERNATIVE"))
    assert part is not None
    assert part.part == "2"


def test_text_that_is_attached_is_no_text_of_the_message() -> None:
    attached = (b"TEXT", b"PLAIN", None, None, None, b"7BIT", b"5", b"1", None, (b"attachment", None))
    named = (b"TEXT", b"PLAIN", (b"NAME", b"log.txt"), None, None, b"7BIT", b"5", b"1")
    structure: StructureValue = (attached, named, b"MIXED")
    assert text_part(structure) is None
    found = attachments_from_structure(structure)
    assert found is not None
    assert [(item.part, item.filename) for item in found] == [("1", None), ("2", "log.txt")]


@pytest.mark.parametrize(
    ("parameters", "filename"),
    [
        ((b"filename", b"plain.txt"), "plain.txt"),
        ((b"FILENAME*", b"utf-8''r%C3%A9sum%C3%A9.pdf"), "résumé.pdf"),
        ((b"filename*", b"iso-8859-1'en'r%E9sum%E9.pdf", b"filename", b"old.pdf"), "résumé.pdf"),
        ((b"filename*0", b"one ", b"filename*1", b"two"), "one two"),
        ((b"filename*1*", b"%A9.pdf", b"filename*0*", b"utf-8''r%C3"), "ré.pdf"),
        ((b"filename*0*", b"utf-8''a", b"filename*2", b"c"), "a"),
        ((b"filename", b"=?utf-8?B?csOpc3Vtw6kucGRm?="), "résumé.pdf"),
        ((b"filename", "résumé.pdf".encode()), "résumé.pdf"),
        ((b"filename", "voilà".encode()), "voilà"),
        ((b"filename", b"r\xe9sum\xe9.pdf"), "résumé.pdf"),
        ((b"filename*", b"x-none''%41%FF"), "A\ufffd"),
        ((b"filename*", b"%ZZ'"), "%ZZ'"),
        ((b"filename", b"a\0b\r\nc.txt"), "a\ufffdb c.txt"),
        ((b"filename", b"   "), None),
        ((b"filename", b"../../etc/passwd"), "../../etc/passwd"),
        ((b"filename", b"x" * 5_000), "x" * 512),
    ],
)
def test_file_names(parameters: StructureValue, filename: str | None) -> None:
    leaf = (b"APPLICATION", b"X", None, None, None, b"BASE64", b"1", None, (b"attachment", parameters))
    assert attachments_from_structure(leaf) == (Attachment("1", filename, "application/x", 1, None, False),)


@pytest.mark.parametrize(
    "structure",
    [
        None,
        b"",
        7,
        (),
        ((),),
        (None,),
        (b"ALTERNATIVE",),
        (b"MIXED", (b"BOUNDARY", b"x"), None, None),
        ((b"ALTERNATIVE",), PDF, b"MIXED"),
        (PLAIN, (), b"MIXED"),
        (b"not a type", b"x"),
    ],
)
def test_case_53_what_is_unusable_is_none(structure: StructureValue) -> None:
    assert attachments_from_structure(structure) is None
    assert text_part(structure) is None


@pytest.mark.parametrize(
    "structure",
    [
        (b"TEXT", b'HTML"', (), None, None, None, None),
        (b"TEXT", b"HTML"),
        (b"TEXT", b"HTML", None, None, None, None, b"5", None, None, None),
        (b"TEXT", b"HTML", (b"CHARSET",), None, None, b"", b"-1"),
        (b"TEXT", b"HTML", (b"CHARSET", None), None, None, b"7BIT", b"9" * 400),
        (b"TEXT", b"HTML", ((b"CHARSET", b"x"),), None, None, (b"7BIT",), (b"1",)),
        (((b"TEXT", b"HTML", None, None, None, b"7BIT", b"5"),),),
    ],
)
def test_case_53_what_is_usable_is_used(structure: StructureValue) -> None:
    assert attachments_from_structure(structure) == ()
    part = text_part(structure)
    assert part is not None
    assert (part.part, part.content_type, part.encoding) == ("1", "text/html", "7bit")


def test_case_53_a_disposition_in_the_wrong_place_is_found() -> None:
    # No line count, as some gateways answer for text, so that all that follows is one place early.
    leaf = (b"TEXT", b"CSV", None, None, None, b"7BIT", b"5", None, (b"attachment", (b"filename", b"a.csv")))
    assert attachments_from_structure(leaf) == (Attachment("1", "a.csv", "text/csv", 5, None, False),)
    bare = (b"TEXT", b"PLAIN", None, None, None, b"7BIT", b"5", b"1", None, b"attachment")
    assert attachments_from_structure(bare) == (Attachment("1", None, "text/plain", 5, None, False),)


def test_case_94_depth_and_parts_are_capped_without_recursion() -> None:
    deep: StructureValue = PLAIN
    for _ in range(100_000):
        deep = (deep, b"MIXED")
    try:
        assert attachments_from_structure(deep) is None
    finally:
        # Deallocating it at once would recurse a hundred thousand levels deep in the interpreter.
        while isinstance(deep, tuple) and isinstance(deep[0], tuple):
            deep = deep[0]
    assert attachments_from_structure((*([PDF] * 1_001), b"MIXED")) is None
    few = leaves_of_structure((*([PDF] * 9), b"MIXED"), caps=MessageCaps(max_parts=10))
    assert few is not None
    assert len(few) == 9


def test_doubled_parentheses_around_everything_are_no_depth() -> None:
    wrapped: StructureValue = PDF
    for _ in range(1_000):
        wrapped = (wrapped,)
    assert attachments_from_structure(wrapped) == (Attachment("1", "b.pdf", "application/pdf", 999, None, False),)
