"""Mail for end-to-end runs: ordinary conversations, and every kind of odd message that has stopped a synchroniser.

Everything comes out of a seed: the same seed gives the same bytes, so that a failing run can be run again. Messages are
made here, none is copied from anyone's mailbox; all names and domains are reserved ones.
"""

from __future__ import annotations

import base64
import itertools
import quopri
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random
from typing import Final

_PEOPLE: Final = (
    "Alice Example <alice@example.org>",
    '"Builder, Bob" <bob@example.com>',
    "=?utf-8?Q?J=C3=A9r=C3=B4me_Dupr=C3=A9?= <jerome@example.net>",
    "=?iso-2022-jp?B?GyRCRnxLXBsoQg==?= <nihon@example.jp.example>",
    "carol@example.org (Carol C.)",
    "<dan@example.com>",
    '"Erin \\"Ems\\" E." <erin@example.net>',
)
_WORDS: Final = (
    *("report", "invoice", "meeting", "lunch", "Grüße", "résumé", "日本語", "привет", "notes", "about", "the"),
    *("next", "week", "order", "shipped", "question", "draft", "final", "( hi there", "5* hotels", "* EXISTS"),
)
_START: Final = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)


def appendable(raw: bytes) -> bool:
    """Whether an IMAP client may send the message in a plain literal, which holds no NUL (RFC 9051 4.3)."""
    return b"\0" not in raw


def realistic_messages(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """``count`` ordinary messages as (name, bytes): threads, lists, plain, HTML, attachments, forwarded mail."""
    random = Random(seed)
    thread: list[str] = []
    for number in range(count):
        if not thread or random.random() < 0.4:
            thread = []
        identifier = f"<{random.getrandbits(64):016x}.{number}@mail.example.org>"
        subject = " ".join(random.choices(_WORDS, k=random.randint(1, 7)))
        lines = [
            f"Received: from mx{random.randrange(4)}.example.org by imap.example.org; {_date(random, number)}",
            f"Date: {_date(random, number)}",
            f"From: {random.choice(_PEOPLE)}",
            f"To: {', '.join(random.sample(_PEOPLE, random.randint(1, 4)))}",
            f"Subject: {_encoded('Re: ' + subject if thread else subject)}",
            f"Message-ID: {identifier}",
        ]
        if thread:
            lines += [f"In-Reply-To: {thread[-1]}", "References: " + "\r\n ".join(thread[-8:])]
        if random.random() < 0.2:
            lines += ["List-Id: The readers <readers.example.org>", "Precedence: list"]
        thread.append(identifier)
        kind, body = random.choice(_BODIES)(random)
        yield f"ordinary-{number}-{kind}", "\r\n".join(lines).encode() + b"\r\nMIME-Version: 1.0\r\n" + body


def odd_messages(seed: int = 0, *, large_bytes: int = 3_000_000) -> Iterator[tuple[str, bytes]]:
    """Every odd message once, as (name, bytes); the large ones are of about ``large_bytes``.

    Names are unique and say what is odd.
    """
    random = Random(seed)
    for make in (_odd_headers, _odd_addresses, _odd_dates, _odd_trees, _odd_bytes):
        yield from make(random)
    yield from _large(random, large_bytes)
    # The same message twice is two messages in two places (one identity).
    twin = _message(random, "twin", [], b"the same bytes twice\r\n")
    yield "duplicate-first", twin
    yield "duplicate-second", twin
    # Equal to the eye, told apart by one header only.
    yield "near-duplicate", twin.replace(b"Subject: twin", b"Subject: Twin")


def mail_stream(seed: int, *, odd_share: float = 0.1, large_bytes: int = 300_000) -> Iterator[tuple[str, bytes]]:
    """Messages without end: ordinary ones, with odd ones in between in a share of ``odd_share``."""
    random = Random(seed)
    for turn in itertools.count():
        odd = list(odd_messages(seed + turn, large_bytes=large_bytes))
        random.shuffle(odd)
        ordinary = realistic_messages(seed * 1_000 + turn, round(len(odd) * (1 - odd_share) / odd_share))
        for name, raw in ordinary:
            yield f"{turn}-{name}", raw
            if odd and random.random() < odd_share / (1 - odd_share):
                odd_name, odd_raw = odd.pop()
                yield f"{turn}-{odd_name}", odd_raw


def _date(random: Random, number: int) -> str:
    return format_datetime(_START + timedelta(minutes=number * 7, seconds=random.randrange(60)))


def _encoded(text: str) -> str:
    if text.isascii():
        return text
    words = (text[at : at + 12] for at in range(0, len(text), 12))
    return "\r\n ".join(f"=?utf-8?B?{base64.b64encode(word.encode()).decode()}?=" for word in words)


def _message(random: Random, subject: str, lines: list[bytes], body: bytes) -> bytes:
    """A message with sound headers; fields in ``lines`` take the place of those of like name."""
    given = {line.split(b":", 1)[0].strip().lower() for line in lines}
    sound = [
        b"From: Alice Example <alice@example.org>",
        b"To: bob@example.com",
        b"Subject: " + subject.encode(),
        b"Date: " + _date(random, random.randrange(10_000)).encode(),
        b"Message-ID: <%016x@odd.example.org>" % random.getrandbits(64),
        b"MIME-Version: 1.0",
    ]
    kept = [line for line in sound if line.split(b":", 1)[0].lower() not in given]
    return b"\r\n".join([*kept, *lines]) + b"\r\n\r\n" + body


def _without(field: bytes, raw: bytes) -> bytes:
    head, _, body = raw.partition(b"\r\n\r\n")
    kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(field.lower() + b":")]
    return b"\r\n".join(kept) + b"\r\n\r\n" + body


def _odd_headers(random: Random) -> Iterator[tuple[str, bytes]]:
    body = b"body\r\n"
    subjects = {
        "nul-in-encoded-word": b"=?utf-8?Q?a=00b?=",
        "nul-in-base64-word": b"=?utf-8?B?YQBi?=",
        "line-break-in-encoded-word": b"=?utf-8?Q?a=0D=0ABcc:_victim@example.org?=",
        "escape-in-encoded-word": b"=?utf-8?Q?=1B[2Jcleared?=",
        "unknown-charset": b"=?x-none?B?SGk=?=",
        "empty-charset": b"=??Q?Hi=E9?=",
        "codec-that-is-no-charset": b"=?unicode_escape?Q?=5Cx00?=",
        "wrong-charset": b"=?utf-8?Q?caf=E9?=",
        "surrogate-in-utf-7": b"=?utf-7?Q?+2AA-?=",
        "split-character": b"=?utf-8?B?w6nD?=\r\n =?utf-8?B?qQ==?=",
        "unclosed-encoded-word": b"=?utf-8?Q?never closed",
        "blanks-in-encoded-word": b"=?utf-8?Q?with blanks inside?=",
        "damaged-base64-word": b"=?utf-8?B?SGk$$$gd?=",
        "raw-utf-8": "Grüße aus Köln 日本".encode(),
        "raw-latin-1": b"Gr\xfc\xdfe aus K\xf6ln",
        "raw-windows-1252": b"\x93quoted\x94 \x80 5",
        "overlong-utf-8": b"\xc1\xbe",
        "encoded-surrogate": b"\xed\xa0\x80",
        "raw-shift-jis": "日本語".encode("shift_jis"),
        "raw-iso-2022-jp": "日本語".encode("iso2022_jp"),
        "looks-like-imap": b'* 3 EXISTS ( "hi ( there" {10}',
        "very-long": b"long " * 2_000,
        "folded-everywhere": b"\r\n ".join([b"a"] * 300),
        "folded-with-blank-lines": b"a\r\n \r\n \r\n b",
        "empty": b"",
        "only-blanks": b"   ",
    }
    for name, subject in subjects.items():
        yield f"subject-{name}", _message(random, "", [b"Subject: " + subject], body)
    plain = _message(random, "a field is missing", [], body)
    for field in (b"Message-ID", b"Subject", b"Date", b"From", b"To"):
        yield f"no-{field.decode().lower()}", _without(field, plain)
    yield "no-message-id-again", _without(b"Message-ID", _message(random, "a field is missing", [], body))
    yield "message-id-empty", _message(random, "x", [b"Message-ID: <>"], body)
    yield "message-id-without-brackets", _message(random, "x", [b"Message-ID: bare@example.org"], body)
    yield "message-id-folded", _message(random, "x", [b"Message-ID:\r\n <folded\r\n @example.org>"], body)
    shared = [b"Message-ID: <shared@example.org>"]
    yield "message-id-shared-1", _message(random, "one of two", shared, b"first\r\n")
    yield "message-id-shared-2", _message(random, "two of two", shared, b"second\r\n")
    references = b"\r\n ".join(b"<%d@example.org>" % number for number in range(1_500))
    yield "references-many", _message(random, "x", [b"References: " + references], body)
    yield (
        "fields-repeated",
        _message(random, "x", [b"Subject: one", b"Subject: two", b"To: a@x.example", b"To: b@x.example"], body),
    )
    yield "fields-many", _message(random, "x", [b"X-Field-%d: y" % number for number in range(5_000)], body)
    yield "field-of-64-kib", _message(random, "x", [b"X-Long: " + b"x" * 65_536], body)
    yield (
        "field-names-odd",
        _message(random, "x", [b"SUBJECT : odd", b": no name", b"no colon", b"X\xe9: y", b"\tfolded junk"], body),
    )
    yield "blank-header", b"\r\n" + body
    yield "no-header-end", b"Subject: the header never ends\r\nFrom: a@example.org\r\n"
    yield "blanks-for-header", b"  \r\n \r\n" + body
    yield "nothing-but-a-line-end", b"\r\n"
    yield "blank-lines-first", b"\r\n" * 5_000 + plain
    yield "mbox-line-first", b"From alice@example.org Tue Jul 14 09:12:33 2026\r\n" + plain


def _odd_addresses(random: Random) -> Iterator[tuple[str, bytes]]:
    many = b",\r\n ".join(b"Person %d <person.%d@example.org>" % (number, number) for number in range(8_000))
    values = {
        "many": many,
        "undisclosed": b"undisclosed-recipients:;",
        "group": b"team: a@example.org, B <b@example.org>;, c@example.org",
        "nested-comments": b"(" * 600 + b")" * 600 + b" a@example.org",
        "unclosed-comment": b"A (never closed <a@example.org>, b@example.org",
        "unclosed-quote": b'"never closed <a@example.org>, b@example.org',
        "unclosed-angle": b"A <a@example.org, b@example.org",
        "nil": b"NIL <NIL@NIL>, <>, ,,",
        "semicolons": b"a@example.org; b@example.org",
        "route": b"<@relay.example,@other.example:a@example.org>",
        "encoded-comma": b"=?utf-8?Q?Doe=2C_Joe?= <joe@example.org>",
        "raw-latin-1": b"Ren\xe9 <rene@example.org>",
        "raw-nul": b"A\0B <a\0b@example.org>",
        "names-only": b"everyone, you and me",
        "international": "Dörte <dörte@exämple.example>".encode(),
        "literal": b"a@[192.0.2.1], b@[IPv6:2001:db8::1]",
        "quoted-local": b'"a b"@example.org, "x@y"@example.org',
        "long-name": b'"' + b"n" * 20_000 + b'" <a@example.org>',
        "quotes": b'"' * 5_000,
        "encoded-words": b" ".join([b"=?utf-8?Q?a?="] * 3_000) + b" <a@example.org>",
    }
    for name, value in values.items():
        yield f"to-{name}", _message(random, f"to {name}", [b"To: " + value], b"body\r\n")
        if len(value) < 2_000:
            yield f"from-{name}", _message(random, f"from {name}", [b"From: " + value], b"body\r\n")


def _odd_dates(random: Random) -> Iterator[tuple[str, bytes]]:
    for number, value in enumerate(
        (
            b"Tue, 14 Jul 2026 09:12:33 +9900",
            b"Tue, 14 Jul 2026123456 09:12:33 +0000",
            b"6/31/2005",
            b"Fri, 31 Jun 2005 10:00:00 +0000",
            b"Thu, 01 Jan 1970 00:00:00 +0000",
            b"Mon, 01 Jan 0001 00:00:00 +0100",
            b"Fri, 31 Dec 9999 23:59:59 -1200",
            b"Tue, 14 Jul 26 09:12 EST",
            b"Tue Jul 14 09:12:33 2026",
            b"2026-07-14T09:12:33Z",
            b"Tue, 14 Jul 2026 25:61:61 +0000",
            b"\xe9t\xe9 2026",
            b"1" * 5_000,
            b"",
        )
    ):
        yield f"date-{number}", _message(random, f"date {number}", [b"Date: " + value], b"body\r\n")


def _odd_trees(random: Random) -> Iterator[tuple[str, bytes]]:
    def tree(name: str, content_type: bytes, body: bytes) -> tuple[str, bytes]:
        return f"mime-{name}", _message(random, f"mime {name}", [b"Content-Type: " + content_type], body)

    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(1_000))
    mixed = b"multipart/mixed; boundary=b"
    leaf = b"\r\n--b\r\nContent-Type: text/plain\r\n\r\ntext\r\n"
    yield tree("nested-1000", b"multipart/mixed; boundary=top", b"--top\r\n" + nested + b"\r\ndeep\r\n")
    yield tree("empty-parts", mixed, b"--b\r\n\r\n" * 20_000 + b"--b--\r\n")
    yield tree("never-closed", mixed, leaf)
    yield tree("no-boundary", b"multipart/mixed", b"--b\r\n\r\ntext\r\n")
    yield tree("no-parts", mixed, b"only a preamble\r\n")
    yield tree("empty-boundary", b'multipart/mixed; boundary=""', b"--\r\n\r\ntext\r\n----\r\n")
    yield tree(
        "same-boundary-twice", mixed, b"--b\r\nContent-Type: " + mixed + b"\r\n\r\n" + leaf + b"--b--\r\n--b--\r\n"
    )
    yield tree("behind-the-end", mixed, leaf + b"--b--\r\nepilogue\r\n--b\r\n\r\nnot a part\r\n")
    yield tree("no-type", b"", b"text\r\n")
    yield tree("type-junk", b";;; charset==;=", b"text\r\n")
    yield tree("alternative-without-parts", b"multipart/alternative; boundary=b", b"--b--\r\n")
    yield tree("unknown-charset", b"text/plain; charset=x-none", b"caf\xe9\r\n")
    yield tree("empty-charset", b'text/plain; charset=""', b"caf\xe9\r\n")
    yield tree("message-in-message", b"message/rfc822", _message(random, "inner", [], b"inner body\r\n"))
    bomb = b"message/rfc822\r\n\r\nContent-Type: " * 500 + b"text/plain\r\n\r\nend\r\n"
    yield tree("messages-in-messages", b"message/rfc822", b"Content-Type: " + bomb)
    names = {
        "continued": b"filename*0*=utf-8''r%C3%A9; filename*1*=sum%C3%A9; filename*2=\".pdf\"",
        "encoded-word": b'filename="=?utf-8?B?csOpc3Vtw6kucGRm?="',
        "raw-latin-1": b"filename=r\xe9sum\xe9.pdf",
        "nul": b"filename=a\0b.pdf",
        "path": b'filename="../../../etc/passwd"',
        "unclosed": b'filename="never closed.pdf',
        "long": b"filename=" + b"x" * 5_000 + b".pdf",
    }
    for name, parameter in names.items():
        part = b"\r\n--b\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; " + parameter
        yield tree(
            f"filename-{name}",
            mixed,
            leaf + part + b"\r\nContent-Transfer-Encoding: base64\r\n\r\nJVBERg==\r\n--b--\r\n",
        )


def _odd_bytes(random: Random) -> Iterator[tuple[str, bytes]]:
    plain = _message(random, "line ends", [], b"first line\r\nsecond line\r\n")
    yield "line-ends-lf", plain.replace(b"\r\n", b"\n")
    yield "line-ends-cr", plain.replace(b"\r\n", b"\r")
    yield "line-ends-mixed", plain.replace(b"\r\n", b"\n", 3)
    yield "line-ends-doubled", plain.replace(b"\r\n", b"\r\r\n")
    yield "no-final-line-end", plain.rstrip()
    yield "line-of-1-mib", _message(random, "long line", [], b"x" * 1_048_576 + b"\r\n")
    yield "body-nul", _message(random, "nul", [], b"a\0b\r\n" * 10)
    yield "body-all-bytes", _message(random, "bytes", [b"Content-Transfer-Encoding: binary"], bytes(range(1, 256)) * 4)
    yield "body-empty", _message(random, "empty", [], b"")
    yield "body-like-imap", _message(random, "imap", [], b"A1 OK done\r\n* BYE\r\n)\r\n{100}\r\n+ idling\r\n.\r\n")
    yield (
        "body-damaged-base64",
        _message(random, "b64", [b"Content-Transfer-Encoding: base64"], b"!!!SGVs bG8=\r\n=\r\nx"),
    )
    yield "body-unknown-encoding", _message(random, "cte", [b"Content-Transfer-Encoding: x-none"], b"text\r\n")
    yield "noise", random.randbytes(2_000).replace(b"\0", b"\1")
    yield "noise-with-nul", b"Subject: noise\r\n\r\n" + random.randbytes(2_000) + b"\0"


def _large(random: Random, size: int) -> Iterator[tuple[str, bytes]]:
    data = base64.encodebytes(random.randbytes(size * 3 // 4)).replace(b"\n", b"\r\n")
    part = b"--b\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n"
    part += b"Content-Disposition: attachment; filename=large.bin\r\n\r\n" + data + b"--b--\r\n"
    yield "large-attachment", _message(random, "large", [b"Content-Type: multipart/mixed; boundary=b"], part)
    yield "large-text", _message(random, "large text", [], b"All work and no play.\r\n" * (size // 46))
    style = b"<style>" + b"p { margin: 0 }\r\n" * 8_000 + b"</style><p>text at last</p>"
    yield "html-behind-styles", _message(random, "html", [b"Content-Type: text/html"], style)


def _plain(random: Random) -> tuple[str, bytes]:
    text = "\r\n".join(" ".join(random.choices(_WORDS, k=9)) for _ in range(random.randint(1, 20)))
    if random.random() < 0.5:
        encoded = quopri.encodestring(text.encode()).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        return (
            "plain",
            b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n" + encoded,
        )
    return (
        "plain",
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + text.encode(),
    )


def _multipart(random: Random, subtype: bytes, *parts: bytes) -> bytes:
    boundary = b"=_%08x" % random.getrandbits(32)
    head = b"Content-Type: multipart/" + subtype + b'; boundary="' + boundary + b'"\r\n\r\n'
    return head + b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


def _alternative(random: Random) -> tuple[str, bytes]:
    text = " ".join(random.choices(_WORDS, k=12)).encode()
    plain = b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + text
    markup = b"Content-Type: text/html; charset=utf-8\r\n\r\n<p>" + text + b"</p>"
    return "alternative", _multipart(random, b"alternative", plain, markup)


def _attached(random: Random) -> tuple[str, bytes]:
    head = b"Content-Type: application/pdf; name=report.pdf\r\nContent-Transfer-Encoding: base64\r\n"
    head += b"Content-Disposition: attachment; filename=report.pdf\r\n\r\n"
    data = base64.encodebytes(random.randbytes(random.randint(10, 8_000))).replace(b"\n", b"\r\n")
    return "attachment", _multipart(random, b"mixed", _alternative(random)[1], head + data)


def _forwarded(random: Random) -> tuple[str, bytes]:
    inner = _message(random, "forwarded", [], b"the forwarded text\r\n")
    return "forwarded", _multipart(random, b"mixed", b"\r\nsee below", b"Content-Type: message/rfc822\r\n\r\n" + inner)


_BODIES: Final[tuple[Callable[[Random], tuple[str, bytes]], ...]] = (
    _plain,
    _plain,
    _alternative,
    _attached,
    _forwarded,
)
