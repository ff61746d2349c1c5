"""Parsing: cases 7, 12, 24, 25, 39, 41, 46 to 68, 89, and P3."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from imapclient.response_parser import parse_fetch_response
from pyroaring import BitMap

from streams.imap.protocol.fetch import internal_date, parse_by_tokens, parse_fetch
from streams.imap.protocol.parser import parse, parse_uid_set
from streams.imap.protocol.responses import (
    Capability,
    Code,
    Continuation,
    Enabled,
    Exists,
    Fetched,
    Found,
    FoundExtended,
    Listed,
    Malformed,
    Namespaces,
    Response,
    ServerId,
    StatusTold,
    Tagged,
    Unknown,
    Untagged,
    Vanished,
)
from streams.imap.protocol.tokens import TokenError
from streams.imap.protocol.utf7 import display_name
from streams.imap.values import FetchedMessage, ListedMailbox, MailboxStatus
from tests.unit.imap.strategies import Spoken, fetches, framed


def one(wire: bytes) -> Response:
    (raw,) = framed([wire + b"\r\n"])
    return parse(raw)


def fetched(wire: bytes) -> FetchedMessage:
    response = one(wire)
    assert isinstance(response, Fetched)
    assert response.message is not None
    return response.message


def listed(wire: bytes) -> ListedMailbox:
    response = one(wire)
    assert isinstance(response, Listed)
    return response.mailbox


@given(fetches())
def test_property_the_short_cut_and_the_tokens_agree(said: Spoken) -> None:
    (raw,) = framed([said.wire])
    assert Fetched(*parse_fetch(raw)) == said.value
    assert Fetched(*parse_by_tokens(raw)) == said.value


@given(fetches())
def test_property_imapclient_reads_the_same(said: Spoken) -> None:
    assert isinstance(said.value, Fetched)
    ours = said.value.message
    assert ours is not None
    (raw,) = framed([said.wire])
    # As imaplib hands it over: without the word FETCH; text, and text with the literal behind it.
    parts: list[Any] = []
    at = raw.data.index(b"FETCH ") + 6
    lead = b"%d " % said.value.sequence
    for first, last in raw.literals:
        parts.append((lead + raw.data[at : first - 2], raw.data[first:last]))
        at, lead = last, b""
    parts.append(lead + raw.data[at:])
    (theirs,) = parse_fetch_response(parts, normalise_times=False).values()
    if ours.flags is not None:
        assert frozenset(theirs[b"FLAGS"]) == ours.flags
    assert theirs.get(b"RFC822.SIZE") == ours.size
    if ours.modseq is not None:
        assert theirs[b"MODSEQ"] == (ours.modseq,)
    if ours.internal_date is not None:
        assert theirs[b"INTERNALDATE"].astimezone(UTC) == ours.internal_date
    for key, section in ((b"BODY[TEXT]<0>", b"TEXT"), (b"BODY[1.MIME]", b"1.MIME"), (b"BODY[]", b"")):
        if section in ours.sections:
            assert theirs[key] == ours.sections[section]


def test_case_39_parentheses_in_a_quoted_string_are_text() -> None:
    wire = b'* 1 FETCH (ENVELOPE ("d" "hi ( there" NIL NIL NIL NIL NIL NIL NIL "<x>") UID 7)\r\n* 2 FETCH (UID 8)\r\n'
    first, second = (parse(raw) for raw in framed([wire]))
    assert isinstance(first, Fetched)
    assert isinstance(second, Fetched)
    assert first.message is not None
    assert first.message.uid == 7
    assert second.message is not None
    assert second.message.uid == 8


def test_case_41_literals_are_bytes() -> None:
    message = fetched(b"* 1 FETCH (UID 1 BODY[] {3}\r\na\x00b)")
    assert type(message.sections[b""]) is bytes


def test_case_42_an_empty_line_after_a_literal() -> None:
    message = fetched(b"* 1 FETCH (UID 1 BODY[] {3}\r\nabc\r\n FLAGS (\\Seen))")
    assert message.sections[b""] == b"abc"
    assert message.flags == frozenset({b"\\Seen"})
    assert fetched(b"* 1 FETCH (UID 1 BODY[] {3}\r\nabc\r\n)").sections[b""] == b"abc"


@pytest.mark.parametrize("header", [b"", b" \r\n", b"\r\n\r\n"])
def test_case_46_headers_that_hold_nothing_are_there_and_empty(header: bytes) -> None:
    message = fetched(b"* 1 FETCH (UID 1 BODY[HEADER] {%d}\r\n%b)" % (len(header), header))
    assert message.sections == {b"HEADER": header}


def test_case_48_a_missing_item_is_no_empty_item() -> None:
    assert fetched(b"* 1 FETCH (UID 1)").sections == {}
    assert fetched(b"* 1 FETCH (UID 1 RFC822 NIL BODY[TEXT] NIL)").sections == {}
    assert fetched(b'* 1 FETCH (UID 1 RFC822 "")').sections == {b"": b""}
    assert fetched(b"* 1 FETCH (UID 1)").flags is None
    assert fetched(b"* 1 FETCH (UID 1 FLAGS ())").flags == frozenset()


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b"* 1 FETCH (UID 7 )", Fetched(1, FetchedMessage(uid=7))),
        (b"* 1 FETCH ( UID  7  FLAGS  ( ) )", Fetched(1, FetchedMessage(uid=7, flags=frozenset()))),
        (b"* CAPABILITY IMAP4rev1 idle ", Capability(frozenset({"IMAP4REV1", "IDLE"}))),
        (b"* SEARCH 1 2 ", Found(BitMap([1, 2]), None)),
        (b"* SEARCH", Found(BitMap(), None)),
        (b"* SEARCH ", Found(BitMap(), None)),
        (b"*  7 EXISTS", Exists(7)),
        (b"* 7  EXISTS ", Exists(7)),
        (b"* 7 exists", Exists(7)),
        (b"* STATUS  INBOX  (MESSAGES  3 )", StatusTold(b"INBOX", MailboxStatus(messages=3))),
    ],
)
def test_case_49_blanks_are_tolerated(wire: bytes, value: Response) -> None:
    assert one(wire) == value


@pytest.mark.parametrize("wire", [b"[COPYUID 1 2 3]", b"hello", b"", b" ", b"* ", b"*", b"* 12", b"* (x)", b"\xff\xfe"])
def test_case_51_an_unknown_line_is_said_to_be_unknown(wire: bytes) -> None:
    responses = [parse(raw) for raw in framed([wire + b"\r\n"])]
    assert all(isinstance(response, Unknown) for response in responses)
    for response in responses:
        assert isinstance(response, Unknown)
        assert response.label.isprintable()
        assert len(response.label) <= 24


@pytest.mark.parametrize(
    "envelope",
    [
        b'("d" "s" NIL NIL NIL NIL NIL NIL NIL)',
        b'("d" "s" ((NIL NIL)) NIL NIL NIL NIL NIL NIL "<x>")',
        b'("d" "s" (((NIL NIL "a" "b"))) NIL NIL NIL NIL NIL NIL "<x>")',
        b'("d" "s" NIL NIL NIL NIL ((("x" (NIL) NIL) NIL NIL NIL "<x>"',
    ],
)
def test_case_52_a_broken_envelope_costs_only_itself(envelope: bytes) -> None:
    message = fetched(b"* 1 FETCH (UID 7 FLAGS (\\Seen) ENVELOPE %b)" % envelope)
    assert (message.uid, message.flags) == (7, frozenset({b"\\Seen"}))


@pytest.mark.parametrize(
    "structure",
    [
        b'("TEXT" "HTML"" ("CHARSET" "x") NIL NIL "7BIT" 1 1)',
        b'("TEXT" "HTML" ("CHARSET" """") NIL NIL "7BIT" 1 1)',
        b'("ALTERNATIVE")',
        b'("TEXT" "PLAIN" () NIL NIL NIL 1 1)',
        b"NIL",
        b"()",
    ],
)
def test_case_53_odd_structures_are_read(structure: bytes) -> None:
    message = fetched(b"* 1 FETCH (BODYSTRUCTURE %b UID 7 FLAGS (\\Seen))" % structure)
    assert message.damaged is None
    assert (message.uid, message.flags) == (7, frozenset({b"\\Seen"}))


@pytest.mark.parametrize(
    "structure", [b'("TEXT" "unclosed', b"(" * 200 + b")" * 200, b'("A" "B")) ', b"{3}", b'"' * 7 + b" x"]
)
def test_case_53_a_broken_structure_is_named_and_costs_only_itself(structure: bytes) -> None:
    message = fetched(b"* 1 FETCH (UID 7 FLAGS (\\Seen) BODYSTRUCTURE %b)" % structure)
    assert message.damaged is not None
    assert (message.uid, message.flags) == (7, frozenset({b"\\Seen"}))
    assert message.structure in (None, (b"A", b"B"))
    late = fetched(b"* 1 FETCH (FLAGS (\\Seen) BODYSTRUCTURE %b UID 7)" % structure)
    assert late.uid == 7


def test_case_94_nesting_does_not_exhaust_the_stack() -> None:
    message = fetched(b"* 1 FETCH (UID 7 BODYSTRUCTURE %b)" % (b"(" * 100_000 + b")" * 100_000))
    assert message.damaged == b"BODYSTRUCTURE"


@pytest.mark.parametrize("text", [b"caf\xc3\xa9", b"caf\xe9", b"\xff\xfe", b"\x80"])
def test_case_54_any_byte_in_quoted_strings_and_text(text: bytes) -> None:
    assert one(b"A1 OK %b" % text) == Tagged(b"A1", "OK", None, text)
    assert listed(b'* LIST () "/" "%b"' % text).wire_name == text
    assert fetched(b'* 1 FETCH (UID 1 X-GM-LABELS ("%b"))' % text).gm_labels == (text,)


def test_case_56_labels_are_strings_and_no_flags() -> None:
    message = fetched(rb'* 1 FETCH (X-GM-LABELS ("a (b" "()" [Box] "\\Inbox" {2}' + b"\r\n" + rb')" NIL2) UID 4)')
    assert message.gm_labels == (b"a (b", b"()", b"[Box]", b"\\Inbox", b')"', b"NIL2")


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (b"* OK [host.example.com] IMAP ready", Code("HOST.EXAMPLE.COM")),
        (b"* OK [ALERT] we move", Code("ALERT")),
        (b"* OK [CAPABILITY IMAP4rev1 IDLE] ready", Code("CAPABILITY", b"IMAP4rev1 IDLE")),
        (b"* OK IMAP [CAPABILITY none] ready", None),
        (b"* OK [ not a code", None),
        (b"* OK []", None),
        (b"* OK [[x]]", None),
        (b"* OK", None),
        (rb"* OK [PERMANENTFLAGS (\Seen a] \*)] ok", Code("PERMANENTFLAGS", rb"(\Seen a] \*)")),
    ],
)
def test_case_59_only_a_leading_code_is_a_code(wire: bytes, code: Code | None) -> None:
    response = one(wire)
    assert isinstance(response, Untagged)
    assert response.code == code


def test_case_61_a_bracket_is_no_part_of_a_capability() -> None:
    response = one(b"A1 OK [CAPABILITY IMAP4rev1 IDLE] logged in")
    assert response == Tagged(b"A1", "OK", Code("CAPABILITY", b"IMAP4rev1 IDLE"), b"logged in")


@pytest.mark.parametrize(
    ("wire_name", "shown"),
    [
        (b"&ZeVnLIqe-", "日本語"),
        (b"R&-D", "R&D"),
        (b"&AOk-t&AOk-", "été"),
        (b"&amp;", "&amp;"),
        (b"&2D3eAA-x", "😀x"),
        (b"&!!!-", "&!!!-"),
        (b"&AOk", "&AOk"),
        (b"&2D0-", "&2D0-"),
        (b"plain \xc3\xa9", "plain é"),
        (b"\xe9", "\ufffd"),
        (b"&AAA-", "\ufffd"),
        (b"a\tb", "a\ufffdb"),
        (b"&-amp;&-", "&amp;&"),
    ],
)
def test_case_62_the_wire_name_is_the_key_and_the_display_name_only_shown(wire_name: bytes, shown: str) -> None:
    mailbox = listed(b'* LIST () "/" "%b"' % wire_name.replace(b"\\", b"\\\\"))
    assert mailbox.wire_name == wire_name
    assert mailbox.display_name == shown == display_name(wire_name)


def test_case_64_nil_is_a_flat_name() -> None:
    assert listed(b'* LIST (\\NoInferiors) NIL "INBOX"').delimiter is None


@pytest.mark.parametrize("name", [b"inbox", b"Inbox", b'"INBOX"', b"{5}\r\niNbOx"])
def test_case_4_inbox_has_one_name(name: bytes) -> None:
    assert listed(b'* LIST () "/" %b' % name).wire_name == b"INBOX"


def test_case_66_containers_are_not_selectable() -> None:
    assert not listed(b'* LIST (\\HasChildren \\Noselect) "." "p"').selectable
    assert not listed(b'* LIST (\\NonExistent) "." "p"').selectable
    assert listed(b'* LIST (\\HasChildren) "." "p"').selectable


def test_case_68_text_is_no_flag_data() -> None:
    assert isinstance(one(b"* 1 FETCH System Error (Failure)"), Malformed)
    assert one(b"* NO System Error (Failure)") == Untagged("NO", None, b"System Error (Failure)")


@pytest.mark.parametrize("name", [b"5* hotels", b"* ", b"a * b", b"* OK [ALERT] x", b"{3}"])
def test_p3_nothing_is_cut_out_of_a_name(name: bytes) -> None:
    assert listed(b'* LIST () "/" "%b"' % name).wire_name == name


@pytest.mark.parametrize(
    "wire",
    [
        b"* SEARCH 1 2 completed",
        b"* SEARCH completed (took 2 ms)",
        b"* SEARCH 0",
        b"* SEARCH 99999999999",
        b"* SEARCH -1",
        b'* ESEARCH (TAG "a") UID ALL 1:x',
        b'* ESEARCH (TAG "a") UID ALL',
        b'* ESEARCH (TAG "a") UID ALL 0',
        b'* ESEARCH (TAG "a") UID MIN 1 MAX 5000000000 COUNT 3',
        b'* ESEARCH (TAG "a") UID MIN 99999999999999999999 MAX 5',
        b'* ESEARCH (TAG "a") UID COUNT 99999999999999999999',
        b'* ESEARCH (TAG "a") UID ALL 5 MODSEQ 99999999999999999999',
        b'* ESEARCH (TAG "a") UID MIN 1:5',
        b"* ESEARCH what",
        b"* VANISHED 1:*",
        b"* VANISHED (EARLIER) 0",
        b"* VANISHED 1,,2",
        b"* VANISHED 5000000000",
        b"* STATUS INBOX",
        b"* STATUS INBOX (MESSAGES)",
        b"* STATUS INBOX (MESSAGES x)",
        b"* LIST (\\A",
        b'* LIST () "/"',
        b'* LIST () "/" ""',
        b"* 1 FETCH",
        b"* 1 FETCH UID 7",
        b"* 1 FETCH (FLAGS",
        b"* 1 FETCH (UID 0)",
        b"* 1 FETCH (UID 5000000000)",
        b"* 1 FETCH (UID x)",
    ],
)
def test_cases_24_25_what_does_not_parse_is_no_answer(wire: bytes) -> None:
    assert isinstance(one(wire), Malformed)


def test_case_25_the_completion_text_holds_no_ids() -> None:
    assert one(b"A1 OK SEARCH completed (took 2 ms)") == Tagged(b"A1", "OK", None, b"SEARCH completed (took 2 ms)")


def test_case_12_an_empty_enabled() -> None:
    assert one(b"* ENABLED") == Enabled(frozenset())


def test_case_20_a_status_without_items() -> None:
    assert one(b'* STATUS "INBOX" ()') == StatusTold(b"INBOX", MailboxStatus())


@pytest.mark.parametrize(
    ("raw", "moment"),
    [
        (b"17-Jul-1996 02:44:25 +0000", datetime(1996, 7, 17, 2, 44, 25, tzinfo=UTC)),
        (b" 1-jan-2026 00:00:00 +0100", datetime(2025, 12, 31, 23, 0, 0, tzinfo=UTC)),
        (b"31-Jun-2005 00:00:00 +0000", None),
        (b"01-Jan-2026 00:00:00 +9900", None),
        (b"01-Jan-0000 00:00:00 +0000", None),
        (b"01-Jan-0001 00:00:00 +0000", datetime(1, 1, 1, tzinfo=UTC)),
        (b"01-Jan-0001 00:00:00 +0100", None),
        (b"31-Dec-9999 23:59:59 +0100", datetime(9999, 12, 31, 22, 59, 59, tzinfo=UTC)),
        (b"31-Dec-9999 23:59:59 -0100", None),
        (b"01-Foo-2026 00:00:00 +0000", None),
        (b"01-Jan-2026 24:00:00 +0000", None),
        (b"6/31/2005", None),
        (b"", None),
    ],
)
def test_case_89_a_date_that_is_none(raw: bytes, moment: datetime | None) -> None:
    assert internal_date(raw) == moment
    assert fetched(b'* 1 FETCH (UID 1 INTERNALDATE "%b" RFC822.SIZE 3)' % raw).internal_date == moment


def test_recent_is_dropped_and_system_flags_have_one_writing() -> None:
    assert fetched(rb"* 1 FETCH (UID 1 FLAGS (\SEEN \Recent $Junk))").flags == frozenset({b"\\Seen", b"$Junk"})


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (
            b'* ESEARCH (TAG "A1") UID MIN 7 MAX 3800 COUNT 3 ALL 7,9:10 MODSEQ 917',
            FoundExtended(
                tag=b"A1", uid=True, numbers=BitMap([7, 9, 10]), minimum=7, maximum=3800, count=3, modseq=917
            ),
        ),
        (
            b'* ESEARCH (TAG "A1") UID',
            FoundExtended(tag=b"A1", uid=True, numbers=None, minimum=None, maximum=None, count=None, modseq=None),
        ),
        (b"* SEARCH 2 5 (MODSEQ 917162500)", Found(BitMap([2, 5]), 917162500)),
        (b"* VANISHED (EARLIER) 41,43:45", Vanished(BitMap([41, 43, 44, 45]), earlier=True)),
        (b"* VANISHED 9:7", Vanished(BitMap([7, 8, 9]), earlier=False)),
        (
            b'* STATUS "a b" (MESSAGES 1 UIDNEXT 2 UIDVALIDITY 3 HIGHESTMODSEQ 4 MAILBOXID (F5) UNSEEN 6 X 7)',
            StatusTold(b"a b", MailboxStatus(1, 2, 3, 4, "F5", 6)),
        ),
        (
            b"* STATUS INBOX (MESSAGES 1 MAILBOXID (F5))",
            StatusTold(b"INBOX", MailboxStatus(messages=1, mailbox_id="F5")),
        ),
        (b"* STATUS INBOX (MESSAGES 1 MAILBOXID (\xa9b\xa25U))", StatusTold(b"INBOX", MailboxStatus(messages=1))),
        (b'* STATUS INBOX (MESSAGES 1 MAILBOXID ("\xa9))', StatusTold(b"INBOX", MailboxStatus(messages=1))),
        (b"* STATUS INBOX (MESSAGES 1 MAILBOXID ())", StatusTold(b"INBOX", MailboxStatus(messages=1))),
        (b"* STATUS My Box (MESSAGES 1)", StatusTold(b"My Box", MailboxStatus(messages=1))),
        (
            b'* NAMESPACE (("" "/")) NIL (("Shared/" "/")("Pub." "."))',
            Namespaces(((b"", "/"),), (), ((b"Shared/", "/"), (b"Pub.", "."))),
        ),
        (b'* ID ("name" "x" "version" NIL)', ServerId({"name": "x"})),
        (b"* ID NIL", ServerId({})),
        (b"+ idling", Continuation(b"idling")),
        (b"+", Continuation(b"")),
        (b"* 3 FETCH (FLAGS (\\Seen))", Fetched(3, None)),
        (
            b"* 3 FETCH (UID 9 EMAILID (M1) THREADID NIL X-GM-THRID 18446744073709551615)",
            Fetched(3, FetchedMessage(uid=9, email_id="M1", gm_thrid=18446744073709551615)),
        ),
        (b"a.b-1 no [NOPERM] x", Tagged(b"a.b-1", "NO", Code("NOPERM"), b"x")),
        (b"A1 OK", Tagged(b"A1", "OK", None, b"")),
    ],
)
def test_each_kind_of_response(wire: bytes, value: Response) -> None:
    assert one(wire) == value


def test_list_tells_special_use_and_the_old_name() -> None:
    assert listed(b'* LIST (\\HasNoChildren \\Sent) "/" Sent').special_use == "\\sent"
    assert listed(b'* XLIST (\\HasNoChildren \\Spam) "/" "[Gmail]/Spam"').special_use == "\\junk"
    assert listed(b'* LIST () "/" "new" ("OLDNAME" ("old"))').old_name == b"old"
    assert listed(b'* LIST () "/" "new" ("CHILDINFO" ("SUBSCRIBED"))').old_name is None
    assert listed(b'* LIST () "/" My Box').wire_name == b"My Box"
    assert listed(b'* LIST () "/" NIL').wire_name == b"NIL"


def test_a_huge_range_takes_no_memory() -> None:
    assert len(parse_uid_set(b"1:4294967295")) == 4294967295
    with pytest.raises(TokenError):
        parse_uid_set(b"1:4294967296")
