"""The header block as values: what ordinary mail gives, and what each odd case gives instead of an error."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from streams.mime import HEADER_FIELDS, Address, HeaderLimits, Headers, parse_headers

ORDINARY = (
    b'From: "Alice Example" <alice@example.org>\r\n'
    b"To: Bob Builder <bob@example.com>, carol@example.net\r\n"
    b"Cc: team: dan@example.org, Erin <erin@example.org>;\r\n"
    b"Subject: Re: =?utf-8?Q?R=C3=A9sum=C3=A9?= of the\r\n"
    b"\tquarter\r\n"
    b"Date: Tue, 14 Jul 2026 09:12:33 +0200\r\n"
    b"Message-ID: <one@mail.example.org>\r\n"
    b"In-Reply-To: <zero@example.com>\r\n"
    b"References: <first@example.com>\r\n"
    b" <zero@example.com>\r\n"
    b"List-Id: The readers <readers.example.org>\r\n"
    b'Content-Type: Multipart/Mixed; boundary="x"\r\n'
    b"\r\n"
)


def test_an_ordinary_header_block() -> None:
    assert parse_headers(ORDINARY) == Headers(
        from_=(Address("Alice Example", "alice@example.org"),),
        to=(Address("Bob Builder", "bob@example.com"), Address(None, "carol@example.net")),
        cc=(Address(None, "dan@example.org"), Address("Erin", "erin@example.org")),
        subject="Re: Résumé of the quarter",
        date=datetime(2026, 7, 14, 7, 12, 33, tzinfo=UTC),
        message_id="one@mail.example.org",
        in_reply_to=("zero@example.com",),
        references=("first@example.com", "zero@example.com"),
        list_id="readers.example.org",
        content_type="multipart/mixed",
    )


def test_headers_serialise_to_json_as_they_are() -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(parse_headers(ORDINARY)))
    assert decoded["from"] == [{"name": "Alice Example", "address": "alice@example.org"}]
    assert decoded["date"] == "2026-07-14T07:12:33Z"
    assert msgspec.json.decode(msgspec.json.encode(parse_headers(ORDINARY)), type=Headers) == parse_headers(ORDINARY)


def test_line_ends_and_trailing_body_do_not_matter() -> None:
    expected = parse_headers(ORDINARY)
    assert parse_headers(ORDINARY.replace(b"\r\n", b"\n")) == expected
    assert parse_headers(ORDINARY.replace(b"\r\n", b"\r")) == expected
    assert parse_headers(ORDINARY + b"Subject: not a header but the body\r\n") == expected
    assert parse_headers(b"\r\n\r\n" + ORDINARY) == expected
    assert parse_headers(b"From someone@example.org Tue Jul 14 09:12:33 2026\n" + ORDINARY) == expected


def test_every_requested_field_is_read() -> None:
    read = {
        b"FROM": "from_",
        b"TO": "to",
        b"CC": "cc",
        b"BCC": "bcc",
        b"REPLY-TO": "reply_to",
        b"SUBJECT": "subject",
        b"DATE": "date",
        b"MESSAGE-ID": "message_id",
        b"IN-REPLY-TO": "in_reply_to",
        b"REFERENCES": "references",
        b"LIST-ID": "list_id",
        b"CONTENT-TYPE": "content_type",
    }
    assert set(read) == set(HEADER_FIELDS)
    for name, attribute in read.items():
        body = {b"DATE": b"1 Jan 2026 00:00:00 +0000", b"CONTENT-TYPE": b"text/plain"}.get(name, b"<a@example.org>")
        for spelling in (name, name.lower(), name.title(), name + b" "):
            assert getattr(parse_headers(spelling + b":" + body), attribute), (spelling, attribute)


@pytest.mark.parametrize("raw", [b"", b"\r\n", b"\r\n\r\n", b"   ", b" \r\n \r\n", b"\n" * 5_000, b"no colon at all"])
def test_case_46_a_blank_header_is_empty_headers(raw: bytes) -> None:
    assert parse_headers(raw) == Headers()


def test_case_52_an_unparsable_cc_does_not_hide_the_rest() -> None:
    headers = parse_headers(b'From: a@example.org\r\nCc: ((((, "<>;:@,,, <b@, \\\r\nSubject: kept\r\n')
    assert headers.from_ == (Address(None, "a@example.org"),)
    assert headers.subject == "kept"


@pytest.mark.parametrize(
    ("raw", "subject", "defects"),
    [
        (b"caf\xc3\xa9", "café", ()),  # RFC 6532
        ("voilà".encode(), "voilà", ()),  # its last byte is a blank in Latin-1
        (b"caf\xe9", "café", ("eight_bit",)),
        (b"\x93quoted\x94", "“quoted”", ("eight_bit",)),  # Windows-1252
        (b"\xc1\xbe", "Á¾", ("eight_bit",)),  # case 86: an overlong pair is no UTF-8
    ],
)
def test_case_54_raw_eight_bit_text(raw: bytes, subject: str, defects: tuple[str, ...]) -> None:
    headers = parse_headers(b"Subject: " + raw + b"\r\n")
    assert (headers.subject, headers.defects) == (subject, defects)


def test_case_54_raw_eight_bit_text_follows_the_charset_of_the_message() -> None:
    raw = b"Subject: " + "Привет".encode("koi8-r") + b"\r\nContent-Type: text/plain; charset=KOI8-R\r\n"
    assert parse_headers(raw).subject == "Привет"


def test_raw_iso_2022_jp_is_read() -> None:
    raw = b"Subject: " + "日本".encode("iso2022_jp") + b"\r\n"
    assert parse_headers(raw).subject == "日本"


def test_case_85_nul_is_replaced_and_flagged() -> None:
    for raw in (b"Subject: =?utf-8?Q?a=00b?=", b"Subject: =?utf-8?B?YQBi?=", b"Subject: a\0b"):
        headers = parse_headers(raw)
        assert headers.subject == "a\ufffdb"
        assert headers.defects == ("nul",)


def test_case_85_nul_everywhere() -> None:
    raw = b"\r\n".join(name + b": x\0y <a\0b@example.org>" for name in HEADER_FIELDS)
    text = msgspec.json.encode(parse_headers(raw)).decode()
    assert "\\u0000" not in text
    assert "\0" not in text


def test_case_86_a_raw_byte_in_a_display_name() -> None:
    headers = parse_headers(b"From: Ren\xe9 <rene@example.org>\r\nTo: =?utf-8?Q?=C1=BE?= <b@example.org>\r\n")
    assert headers.from_ == (Address("René", "rene@example.org"),)
    assert headers.to == (Address("\ufffd\ufffd", "b@example.org"),)
    assert headers.defects == ("charset", "eight_bit")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"=?x-none?B?SGk=?=", "Hi"),
        (b"=?x-none?Q?caf=C3=A9?=", "café"),
        (b"=??Q?Hi=E9?=", "Hi\ufffd"),
        (b"=?utf-8?Q?=E9?=", "\ufffd"),
        (b"=?unicode_escape?Q?=5Cx41?=", "\\x41"),
        (b"=?punycode?Q?a-b?=", "a-b"),
        (b"=?zlib?B?SGk=?=", "Hi"),
    ],
)
def test_case_87_unknown_and_wrong_charsets(written: bytes, text: str) -> None:
    headers = parse_headers(b"Subject: " + written)
    assert (headers.subject, headers.defects) == (text, ("charset",))


def test_case_87_a_lone_surrogate_never_comes_out() -> None:
    headers = parse_headers(b"Subject: =?utf-7?Q?a+2AA-b?=")
    assert headers.subject is not None
    headers.subject.encode()
    assert headers.defects == ("charset",)


def test_case_89_dates_that_are_none() -> None:
    for written in (
        b"Tue, 14 Jul 2026 09:12:33 +9900",
        b"Tue, 14 Jul 2026123456 09:12:33 +0000",
        b"6/31/2005",
        b"Fri, 31 Jun 2005 10:00:00 +0000",
        b"whenever",
    ):
        headers = parse_headers(b"From: a@example.org\r\nDate: " + written + b"\r\nSubject: kept\r\n")
        assert headers.date is None
        assert headers.defects == ("date",)
        assert headers.subject == "kept"
    assert parse_headers(b"Date:  \r\n").defects == ()


def test_case_91_no_message_id() -> None:
    assert parse_headers(b"From: a@example.org\r\n").message_id is None
    assert parse_headers(b"Message-ID:\r\n").message_id is None
    assert parse_headers(b"Message-ID: <>\r\n").message_id is None


def test_case_93_an_absent_subject_is_none_and_an_empty_one_is_empty() -> None:
    assert parse_headers(b"From: a@example.org\r\n").subject is None
    assert parse_headers(b"Subject:\r\n").subject == ""
    assert parse_headers(b"Subject:\r\n").defects == ()


@pytest.mark.parametrize(
    ("written", "message_id"),
    [
        (b"<a@b>", "a@b"),
        (b"  <a@b> (comment)", "a@b"),
        (b"a@b", "a@b"),
        (b"<a@\r\n b>", "a@b"),
        (b"<a@b> <c@d>", "a@b"),
        (b"<[uuid]/@b>", "[uuid]/@b"),
    ],
)
def test_message_ids_as_they_are_written(written: bytes, message_id: str) -> None:
    assert parse_headers(b"Message-ID: " + written).message_id == message_id


def test_references_without_brackets_and_among_text() -> None:
    assert parse_headers(b"In-Reply-To: Your mail of Tuesday <a@b>").in_reply_to == ("a@b",)
    assert parse_headers(b"References: a@b c@d").references == ("a@b", "c@d")
    assert parse_headers(b"References: <a@b><c@d>,<e@f>").references == ("a@b", "c@d", "e@f")
    assert parse_headers(b"In-Reply-To: Tuesday").in_reply_to == ()


def test_repeated_fields_are_merged_or_the_first_one_counts() -> None:
    headers = parse_headers(b"To: a@example.org\nTo: b@example.org\nSubject: one\nSubject: two\n")
    assert [address.address for address in headers.to] == ["a@example.org", "b@example.org"]
    assert headers.subject == "one"
    assert headers.defects == ("duplicate_field",)


def test_encoded_words_are_joined_before_they_are_decoded() -> None:
    # A character split between two words, which RFC 2047 forbids and many senders do.
    assert parse_headers(b"Subject: =?utf-8?B?w6nD?= =?UTF-8?B?qQ==?=").subject == "éé"
    assert parse_headers(b"Subject: a =?utf-8?Q?b?= c").subject == "a b c"
    assert parse_headers(b"Subject: =?utf-8?Q?b?=\r\n =?iso-8859-1?Q?=E9?=").subject == "bé"
    assert parse_headers(b"Subject: =?utf-8*en?Q?b_c?=").subject == "b c"
    assert parse_headers(b"Subject: =?utf-8?Q?with blanks inside?=").subject == "with blanks inside"


def test_damaged_encoded_words_are_kept_and_flagged() -> None:
    headers = parse_headers(b"Subject: =?utf-8?Q?never closed")
    assert (headers.subject, headers.defects) == ("=?utf-8?Q?never closed", ("encoded_word",))
    assert parse_headers(b"Subject: =?utf-8?B?SGk?=").subject == "Hi"  # padding alone is missing
    headers = parse_headers(b"Subject: =?utf-8?B?SGkgd?=")
    assert (headers.subject, headers.defects) == ("Hi ".strip(), ("encoded_word",))


def test_an_encoded_line_break_cannot_add_a_line() -> None:
    headers = parse_headers(b"Subject: =?utf-8?Q?a=0D=0ABcc:_x@example.org?=")
    assert headers.subject == "a  Bcc: x@example.org"
    assert headers.bcc == ()


def test_control_characters_become_replacements() -> None:
    headers = parse_headers(b"Subject: a\x1b[31mb\x7f\x08")
    assert headers.subject == "a\ufffd[31mb\ufffd\ufffd"
    assert headers.defects == ("control",)


def test_case_95_header_bytes_are_capped_before_parsing() -> None:
    limits = HeaderLimits(max_bytes=64)
    headers = parse_headers(b"Subject: kept\r\nX-Long: " + b"x" * 1_000 + b"\r\nFrom: a@example.org\r\n", limits=limits)
    assert headers.subject == "kept"
    assert headers.from_ == ()
    assert headers.defects == ("header_bytes",)


def test_case_95_a_short_block_before_a_long_body_is_not_cut() -> None:
    assert parse_headers(b"Subject: kept\r\n\r\n" + b"x" * 500_000).defects == ()


def test_case_95_lines_are_capped() -> None:
    headers = parse_headers(b"Subject: kept\n" + b"X: y\n" * 10_000 + b"From: a@example.org\n")
    assert headers.subject == "kept"
    assert headers.from_ == ()
    assert headers.defects == ("header_fields",)


def test_case_95_addresses_are_capped_over_all_fields() -> None:
    limits = HeaderLimits(max_addresses=5)
    many = b", ".join(b"a%d@example.org" % number for number in range(8))
    headers = parse_headers(b"From: f@example.org\r\nTo: " + many + b"\r\nCc: " + many + b"\r\n", limits=limits)
    assert len(headers.from_) == 1
    assert len(headers.to) == 4
    assert headers.cc == ()
    assert headers.defects == ("too_many_addresses",)


def test_case_95_references_keep_the_root_and_the_newest() -> None:
    limits = HeaderLimits(max_references=3)
    headers = parse_headers(b"References: <1@x> <2@x> <3@x> <4@x> <5@x>", limits=limits)
    assert headers.references == ("1@x", "4@x", "5@x")
    assert headers.defects == ("too_many_references",)


def test_long_values_are_cut_and_flagged() -> None:
    limits = HeaderLimits(max_value_chars=10, max_id_chars=10)
    headers = parse_headers(
        b"Subject: "
        + b"s" * 20
        + b"\r\nFrom: "
        + b"n" * 20
        + b" <"
        + b"a" * 20
        + b"@x>\r\nMessage-ID: <"
        + b"i" * 20
        + b">",
        limits=limits,
    )
    assert headers.subject == "s" * 10
    assert headers.from_ == (Address("n" * 10, "a" * 10),)
    assert headers.message_id == "i" * 10
    assert headers.defects == ("value_length",)


def test_content_type_is_a_media_type_or_none() -> None:
    assert parse_headers(b"Content-Type: TEXT/Plain; charset=x").content_type == "text/plain"
    assert parse_headers(b"Content-Type: text").content_type is None
    assert parse_headers(b"Content-Type: ;;;").content_type is None


def test_list_ids() -> None:
    assert parse_headers(b"List-Id: <a.example.org>").list_id == "a.example.org"
    assert parse_headers(b"List-Id: a.example.org").list_id == "a.example.org"
    assert parse_headers(b"List-Id:").list_id is None
