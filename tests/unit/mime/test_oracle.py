"""The standard library's parser as a second opinion, on mail that is well formed."""

from __future__ import annotations

import email
import email.policy
from datetime import datetime
from email.header import Header, decode_header, make_header
from email.message import EmailMessage, Message
from email.utils import formataddr, getaddresses, parsedate_to_datetime

from hypothesis import given
from hypothesis import strategies as st

from streams.mime import parse_headers, parse_message, part_content

NAMES = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "Zs"), exclude_characters="="), max_size=30
).map(lambda name: " ".join(name.split()))
ATOMS = st.from_regex(r"[a-z0-9!#$%&*+/^_`{|}~-]{1,12}(\.[a-z0-9]{1,5})?", fullmatch=True)
DOMAINS = st.from_regex(r"[a-z0-9]{1,10}(\.[a-z]{2,6}){1,2}", fullmatch=True)
ADDRESSES = st.tuples(NAMES, st.builds("{}@{}".format, ATOMS, DOMAINS))


def unquoted(name: str) -> str:
    """Single quotes round a whole name are dropped by us and kept by the library."""
    return name[1:-1].strip() if len(name) > 2 and name[0] == "'" == name[-1] else name


@given(st.lists(ADDRESSES, min_size=1, max_size=6))
def test_address_lists_read_as_the_library_reads_them(entries: list[tuple[str, str]]) -> None:
    value = ", ".join(formataddr(entry) for entry in entries)
    ours = [(entry.name or "", entry.address) for entry in parse_headers(b"To: " + value.encode()).to]
    theirs = [(unquoted(str(make_header(decode_header(name)))), address) for name, address in getaddresses([value])]
    assert ours == theirs


@given(NAMES, st.sampled_from(["utf-8", "iso-8859-1", "iso-2022-jp", "koi8-r"]))
def test_encoded_subjects_read_as_the_library_reads_them(text: str, charset: str) -> None:
    try:
        text.encode(charset)
    except UnicodeError:
        charset = "utf-8"
    header = Header(text, charset, header_name="Subject").encode()
    raw = b"Subject: " + header.encode() + b"\n"
    library = email.message_from_bytes(raw)["Subject"]
    ours = parse_headers(raw).subject
    assert ours is not None
    assert ours.split() == str(make_header(decode_header(library))).split() == text.split()


@given(
    st.datetimes(min_value=datetime(1000, 1, 2)).map(lambda moment: moment.replace(microsecond=0)),  # noqa: DTZ001 - zones are given apart
    st.sampled_from(["+0000", "-0330", "+1400"]),
)
def test_dates_read_as_the_library_reads_them(moment: datetime, zone: str) -> None:
    value = f"{moment:%a, %d %b} {moment.year:04} {moment:%H:%M:%S} {zone}"
    try:
        theirs = parsedate_to_datetime(value)
        theirs.timestamp()
    except (ValueError, OverflowError):
        return
    ours = parse_headers(b"Date: " + value.encode()).date
    assert ours == theirs


@given(
    st.lists(
        st.tuples(
            st.sampled_from([("text", "plain"), ("text", "html"), ("image", "png"), ("application", "x-y")]),
            NAMES.filter(bool),
            st.binary(max_size=200),
        ),
        max_size=5,
    ),
    NAMES,
    st.text(st.characters(codec="utf-8", categories=("L", "N", "Zs")), max_size=200),
)
def test_messages_read_as_the_library_reads_them(
    attached: list[tuple[tuple[str, str], str, bytes]], subject: str, body: str
) -> None:
    message = EmailMessage()
    message["Subject"] = subject
    message["From"] = "a@example.org"
    message.set_content(body)
    for (main, sub), name, data in attached:
        message.add_attachment(data, maintype=main, subtype=sub, filename=name)
    raw = message.as_bytes(policy=email.policy.SMTP)
    theirs: list[Message] = [part for part in email.message_from_bytes(raw).walk() if not part.is_multipart()]
    ours = parse_message(raw)
    assert [part.content_type for part in ours.parts] == [part.get_content_type() for part in theirs]
    for mine, other in zip(ours.parts, theirs, strict=True):
        payload = other.get_payload(decode=True)
        assert isinstance(payload, bytes)
        assert part_content(raw, mine, len(raw)) == payload
    assert [attachment.filename for attachment in ours.attachments] == [name for _, name, _ in attached]
    assert ours.defects == ()
