"""Framing: cases 40, 42, 44 and P1, P2, P4, P6."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.imap.errors import LineTooLong, LiteralTooLong, ProtocolViolation, ResponseTooLong
from streams.imap.protocol.framing import Framer, Raw
from streams.imap.protocol.parser import parse
from tests.unit.imap.strategies import Spoken, framed, soup, splits, spoken


@given(st.data(), st.lists(spoken, max_size=6))
def test_case_40_property_any_split_gives_the_same_responses(data: st.DataObject, said: list[Spoken]) -> None:
    stream = b"".join(response.wire for response in said)
    whole = framed([stream])
    assert len(whole) == len(said)
    assert framed(data.draw(splits(stream))) == whole
    assert framed([stream[at : at + 1] for at in range(len(stream))]) == whole
    assert [parse(raw) for raw in whole] == [response.value for response in said]


def _outcome(pieces: list[bytes]) -> list[Raw | type[BaseException]]:
    framer = Framer(max_line=200, max_literal=50, max_response=400)
    found: list[Raw | type[BaseException]] = []
    for piece in pieces:
        framer.feed(piece)
        try:
            while (raw := framer.next_response()) is not None:
                found.append(raw)
        except ProtocolViolation:
            found.append(ProtocolViolation)
            break
    return found


@given(st.data(), soup)
def test_case_40_property_any_split_of_nonsense_gives_the_same_nonsense(data: st.DataObject, stream: bytes) -> None:
    whole = _outcome([stream])
    assert _outcome(data.draw(splits(stream))) == whole
    assert _outcome([stream[at : at + 1] for at in range(len(stream))]) == whole


@given(soup)
def test_property_no_bytes_make_the_parser_raise(stream: bytes) -> None:
    for raw in _outcome([stream + b"\r\n"]):
        if isinstance(raw, Raw):
            parse(raw)


@pytest.mark.parametrize(
    "line",
    [
        b"* OK still here {10}",
        b"* NO quota is {10}",
        b"* BAD what {10}",
        b"* BYE see you {10}",
        b"* OK [ALERT] (look {10}",
        b"A1 OK done {10}",
        b"+ go on {10}",
        b"* GOSSIP about things {10}",
        b"* SEARCH 1 2 {10}",
        b'* LIST () "/" "unclosed {10}',
        b"* 5 GOSSIP {10}",
        b"[COPYUID 1 2 {10}",
        b"* FLAGS x{10}",
    ],
)
def test_p6_text_that_ends_like_a_literal_is_text(line: bytes) -> None:
    assert framed([line + b"\r\n* 1 EXISTS\r\n"]) == [Raw(line, ()), Raw(b"* 1 EXISTS", ())]


@pytest.mark.parametrize(
    ("stream", "literals"),
    [
        (b'* LIST () "/" {3}\r\nQ"x\r\n', [b'Q"x']),
        (
            b"* 1 FETCH (BODY[1] {2}\r\nab BODY[2] {0}\r\n BODY[3] {4}\r\n(\r\n))\r\n",
            [b"ab", b"", b"(\r\n)"],
        ),
        (b"* 1 FETCH (BODY[] {5}\r\na\r\nb) UID 3)\r\n", [b"a\r\nb)"]),
        (b"* STATUS {5}\r\nINBOX (MESSAGES 1)\r\n", [b"INBOX"]),
        (b"* 1 FETCH (BODY[]{2}\r\nab)\r\n", [b"ab"]),
        (b"* 1 FETCH (BINARY[1] ~{2}\r\n\x00b)\r\n", [b"\x00b"]),
        (b"* GOSSIP (about {2}\r\nab)\r\n", [b"ab"]),
        (b'* 1 FETCH (BODYSTRUCTURE ("HTML"" NIL "x) BODY[] {2}\r\nab)\r\n', [b"ab"]),
        (b'* 1 FETCH (X-GM-LABELS ("\\\\Inbox" {3}\r\na"b) BODY[] {2}\r\nab)\r\n', [b'a"b', b"ab"]),
    ],
)
def test_case_44_literals_anywhere_and_several(stream: bytes, literals: list[bytes]) -> None:
    (raw, after) = framed([stream + b"* 2 EXISTS\r\n"])
    assert [raw.data[first:last] for first, last in raw.literals] == literals
    assert after.data == b"* 2 EXISTS"


def test_case_42_an_empty_line_after_a_literal_belongs_to_the_open_list() -> None:
    stream = b"* 1 FETCH (BODY[] {2}\r\nab\r\n\r\n UID 7)\r\n* 1 EXISTS\r\n"
    raw, after = framed([stream])
    assert raw.data.endswith(b"UID 7)")
    assert after.data == b"* 1 EXISTS"
    # Outside of a list it is the end of the line.
    name, after = framed([b'* LIST () "/" {2}\r\nab\r\n* 1 EXISTS\r\n'])
    assert name.data.endswith(b"ab")
    assert after.data == b"* 1 EXISTS"


def test_blank_lines_between_responses_mean_nothing() -> None:
    assert [raw.data for raw in framed([b"\r\n\r\n* 1 EXISTS\r\n\r\n* 2 EXISTS\r\n"])] == [b"* 1 EXISTS", b"* 2 EXISTS"]


def test_p4_a_line_without_an_end_is_refused() -> None:
    framer = Framer(max_line=1000)
    framer.feed(b"* OK " + b"x" * 995)
    assert framer.next_response() is None
    framer.feed(b"x" * 100)
    with pytest.raises(LineTooLong):
        framer.next_response()


def test_p4_an_announced_size_is_refused_before_its_bytes_come() -> None:
    framer = Framer(max_literal=1000)
    framer.feed(b"* 1 FETCH (BODY[] {1001}\r\n")
    with pytest.raises(LiteralTooLong):
        framer.next_response()
    framer = Framer(max_literal=1000, max_response=1500)
    framer.feed(b"* 1 FETCH (BODY[1] {900}\r\n" + b"x" * 900 + b" BODY[2] {900}\r\n")
    with pytest.raises(ResponseTooLong):
        framer.next_response()


def test_blank_lines_without_end_in_an_open_list_are_refused() -> None:
    framer = Framer(max_response=10_000)
    framer.feed(b"* 1 FETCH (BODY[] {0}\r\n" + b"\r\n" * 6000)
    with pytest.raises(ResponseTooLong):
        framer.next_response()


def _seconds(stream: bytes, piece: int) -> float:
    framer = Framer()
    started = time.process_time()
    for at in range(0, len(stream), piece):
        framer.feed(stream[at : at + piece])
        while (raw := framer.next_response()) is not None:
            parse(raw)
    return time.process_time() - started


@pytest.mark.parametrize(
    ("make", "piece"),
    [
        pytest.param(lambda n: b"* 7 FETCH (UID 7 FLAGS (\\Seen))\r\n" * n, 1 << 18, id="P1 P2 lines in one read"),
        pytest.param(lambda n: b"* 7 FETCH (UID 7 FLAGS (\\Seen))\r\n" * (n // 20), 1, id="byte by byte"),
        pytest.param(lambda n: b"* OK " + b"x" * (n * 200), 4096, id="P4 a line that does not end"),
        pytest.param(lambda n: b"* 1 FETCH (" + b"X {1}\r\na " * n, 4096, id="literals without end"),
        pytest.param(lambda n: b"* 1 FETCH (" + b"X {1}\r\na\r\n\r\n" * n, 4096, id="literals with empty lines"),
        pytest.param(lambda n: b"* X " + b'"' * (n * 4) + b"{1}\r\n", 4096, id="quotes"),
        pytest.param(lambda n: b'* LIST () "/" ' + b"(" * (n * 4) + b"\r\n", 4096, id="lists in lists"),
        pytest.param(lambda n: b"* OK [" + b"(" * (n * 4) + b"\r\n", 4096, id="a code that does not end"),
        pytest.param(lambda n: b"* 1 FETCH (FLAGS (" + b"\\Seen " * n + b"\r\n", 4096, id="flags that do not end"),
        pytest.param(lambda n: b"* VANISHED 1" + b",1" * n + b"x\r\n", 4096, id="a set that goes wrong"),
        pytest.param(lambda n: b"* ESEARCH (TAG " + b" " * (n * 4) + b"\r\n", 4096, id="blanks"),
        pytest.param(lambda n: b"* SEARCH" + b" 1" * n + b" x\r\n", 4096, id="a search that goes wrong"),
    ],
)
def test_time_is_linear_in_the_bytes(make: Callable[[int], bytes], piece: int) -> None:
    small, large = make(5_000), make(40_000)
    base = min(_seconds(small, piece) for _ in range(3))
    # Eight times the bytes; a quadratic part would show as 64. The floor keeps noise out of tiny measurements.
    assert min(_seconds(large, piece) for _ in range(3)) < max(base, 0.003) * 30
