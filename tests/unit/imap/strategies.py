"""Hypothesis strategies for what servers say: responses with their values, and bytes that only look like responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st
from pyroaring import BitMap

from streams.imap.protocol.framing import Framer, Raw
from streams.imap.protocol.responses import Exists, Expunged, Fetched, Found, Response, StatusTold, Vanished
from streams.imap.values import FetchedMessage, MailboxStatus
from tests.scripted_imap.model import date_time

uids = st.integers(1, 0xFFFFFFFF)
modseqs = st.integers(1, (1 << 63) - 1)
keywords = st.from_regex(rb"[$A-Za-z][A-Za-z0-9_.-]{0,12}", fullmatch=True)
flags = st.frozensets(st.one_of(st.sampled_from([b"\\Seen", b"\\Flagged", b"\\Deleted"]), keywords), max_size=5)
zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
dates = st.datetimes(datetime(1970, 1, 2), datetime(2099, 12, 30), timezones=zones).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0)
)
payloads = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"", b"\r\n", b")\r\n", b"A1 OK done\r\n", b"* BYE\r\n", b"{10}\r\n", b'"', b"((", b"\r\n\r\n)"]),
)
object_ids = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)


@dataclass(frozen=True)
class Spoken:
    """A response with the bytes that a server would send for it."""

    wire: bytes
    value: Response


@st.composite
def strings(draw: st.DrawFn, value: bytes) -> bytes:
    """One of the ways to write a string."""
    ways = ["literal"]
    if not set(value) & set(b"\r\n\x00"):
        ways.append("quoted")
    way = draw(st.sampled_from(ways))
    if way == "quoted":
        return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return b"{%d}\r\n%b" % (len(value), value)


@st.composite
def uid_sets(draw: st.DrawFn) -> tuple[bytes, BitMap]:
    """A set and its writing."""
    parts: list[bytes] = []
    numbers = BitMap()
    for _ in range(draw(st.integers(1, 6))):
        low = draw(st.integers(1, 0xFFFFFF00))
        length = draw(st.integers(0, 200))
        numbers.add_range(low, low + length + 1)
        parts.append(b"%d" % low if not length else b"%d:%d" % tuple(draw(st.permutations([low, low + length]))))
    return b",".join(parts), numbers


@st.composite
def fetches(draw: st.DrawFn) -> Spoken:
    """FETCH with any items in any order."""
    fields: dict[str, Any] = {"uid": draw(uids)}
    words = [b"UID %d" % fields["uid"]]
    sections: dict[bytes, bytes] = {}

    def maybe(name: str, strategy: st.SearchStrategy[Any], write: Callable[[Any], bytes]) -> None:
        if draw(st.booleans()):
            fields[name] = draw(strategy)
            words.append(write(fields[name]))

    maybe("flags", flags, lambda value: b"FLAGS (" + b" ".join(sorted(value)) + b")")
    maybe("modseq", modseqs, lambda value: b"MODSEQ (%d)" % value)
    maybe("size", st.integers(0, 1 << 40), lambda value: b"RFC822.SIZE %d" % value)
    maybe("internal_date", dates, lambda value: b'INTERNALDATE "%b"' % date_time(value).encode())
    maybe("email_id", object_ids, lambda value: b"EMAILID (%b)" % value.encode())
    maybe("thread_id", object_ids, lambda value: b"THREADID (%b)" % value.encode())
    maybe("gm_msgid", st.integers(1, (1 << 64) - 1), lambda value: b"X-GM-MSGID %d" % value)
    if draw(st.booleans()):
        labels = draw(st.lists(payloads.filter(lambda label: len(label) < 20), max_size=3))
        fields["gm_labels"] = tuple(labels)
        words.append(b"X-GM-LABELS (" + b" ".join(draw(strings(label)) for label in labels) + b")")
    for spec, key in draw(
        st.lists(
            st.sampled_from(
                [
                    (b"BODY[HEADER.FIELDS (FROM TO)]", b"HEADER.FIELDS"),
                    (b"BODY[]", b""),
                    (b"BODY[TEXT]<0>", b"TEXT"),
                    (b"BODY[1.MIME]", b"1.MIME"),
                    (b"RFC822.HEADER", b"HEADER"),
                ]
            ),
            max_size=2,
            unique=True,
        )
    ):
        sections[key] = draw(payloads)
        words.append(spec + b" " + draw(strings(sections[key])))
    ordered = draw(st.permutations(words))
    sequence = draw(st.integers(1, 99_999))
    return Spoken(
        b"* %d FETCH (%b)\r\n" % (sequence, b" ".join(ordered)),
        Fetched(sequence, FetchedMessage(sections=sections, **fields)),
    )


@st.composite
def vanisheds(draw: st.DrawFn) -> Spoken:
    """VANISHED, earlier or not."""
    wire, numbers = draw(uid_sets())
    earlier = draw(st.booleans())
    return Spoken(b"* VANISHED %b%b\r\n" % (b"(EARLIER) " if earlier else b"", wire), Vanished(numbers, earlier))


@st.composite
def searches(draw: st.DrawFn) -> Spoken:
    """SEARCH with any number of hits."""
    numbers = draw(st.lists(uids, max_size=20))
    return Spoken(b"* SEARCH" + b"".join(b" %d" % number for number in numbers) + b"\r\n", Found(BitMap(numbers), None))


@st.composite
def statuses(draw: st.DrawFn) -> Spoken:
    """STATUS of a mailbox with any name."""
    name = draw(st.binary(min_size=1, max_size=30).filter(lambda name: name.upper() != b"INBOX"))
    messages = draw(st.integers(0, 1 << 31))
    wire = b"* STATUS %b (MESSAGES %d)\r\n" % (draw(strings(name)), messages)
    return Spoken(wire, StatusTold(name, MailboxStatus(messages=messages)))


counts = st.integers(0, 0xFFFFFFFF)
spoken = st.one_of(
    fetches(),
    vanisheds(),
    searches(),
    statuses(),
    counts.map(lambda count: Spoken(b"* %d EXISTS\r\n" % count, Exists(count))),
    counts.map(lambda count: Spoken(b"* %d EXPUNGE\r\n" % count, Expunged(count))),
)

# What a parser meets in the wild: the words of the protocol in no order at all.
fragments = st.sampled_from(
    [
        *(
            b"* ",
            b"*",
            b"1 FETCH (",
            b"FETCH",
            b"UID 7",
            b"FLAGS (",
            b"BODY[",
            b"BODY[] ",
            b"]",
            b"{3}",
            b"{3}\r\n",
            b"{0}\r\n",
        ),
        *(
            b'"',
            b'\\"',
            b"(",
            b")",
            b" ",
            b"\r\n",
            b"\r",
            b"\n",
            b"\\",
            b"NIL",
            b"LIST ",
            b"STATUS ",
            b"SEARCH 1 2",
            b"~{2}\r\nab",
        ),
        *(
            b'ESEARCH (TAG "a") UID ALL 1:3',
            b"VANISHED 1:4",
            b"OK [",
            b"] ",
            b"A1 OK ",
            b"+ ",
            b"BYE ",
            b"\x00",
            b"\xff",
        ),
        *(b"{99999999999999999999}\r\n", b"1", b"99999999999", b'INTERNALDATE "1-Jan-2026 00:00:00 +0000"', b"(" * 120),
    ]
)
soup = st.lists(st.one_of(fragments, st.binary(max_size=4)), max_size=60).map(b"".join)


@st.composite
def splits(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The bytes in pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def framed(pieces: Sequence[bytes], **limits: int) -> list[Raw]:
    """All responses in the pieces."""
    framer = Framer(**limits)
    found: list[Raw] = []
    for piece in pieces:
        framer.feed(piece)
        while (raw := framer.next_response()) is not None:
            found.append(raw)
    return found
