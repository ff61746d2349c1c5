"""Messages to append: ordinary ones and odd ones, each with a Message-ID of its own unless that is the odd part."""

from __future__ import annotations

import random
from typing import Final

ODD: Final = (
    "no_message_id",
    "no_subject",
    "no_date",
    "bad_date",
    "raw_latin1",
    "nul_word",
    "unknown_charset",
    "looks_like_imap",
    "deep_nesting",
    "long_references",
    "no_header",
    "many_addresses",
)


def ordinary(number: int, *, subject: str | None = None, body: str = "Hello.") -> bytes:
    """A plain message."""
    lines = [
        f"From: Ana {number} <ana{number}@example.org>",
        "To: Team <team@example.org>, ben@example.org",
        f"Subject: {subject if subject is not None else f'Message {number}'}",
        f"Message-ID: <{number}@example.org>",
        "Date: Mon, 30 Nov 2026 09:15:00 +0000",
        "Content-Type: text/plain; charset=utf-8",
        "",
        body,
        "",
    ]
    return "\r\n".join(lines).encode()


def odd(kind: str, number: int) -> bytes:
    """A message of which some mail program has died. `kind` is one of `ODD`."""
    head = [f"From: odd{number}@example.org", f"Message-ID: <odd-{kind}-{number}@example.org>"]
    match kind:
        case "no_message_id":
            lines = [f"From: odd{number}@example.org", f"Subject: without id {number}"]
        case "no_subject":
            lines = head
        case "no_date":
            lines = [*head, "Subject: no date"]
        case "bad_date":
            lines = [*head, "Date: 6/31/2005 99:99 +9900", "Subject: bad date"]
        case "raw_latin1":
            return _close([*head, "Subject: x"]).replace(b"Subject: x", b"Subject: caf\xe9 \xc1\xbe")
        case "nul_word":
            lines = [*head, "Subject: =?utf-8?Q?a=00b?="]
        case "unknown_charset":
            lines = [*head, "Subject: =?x-none?B?SGk=?=", "Content-Type: text/plain; charset=x-none"]
        case "looks_like_imap":
            lines = [*head, 'Subject: hi ( there") * 5 EXISTS {10}', 'From: "a (b" <c@example.org>']
        case "deep_nesting":
            return _nested(head, 60)
        case "long_references":
            lines = [*head, "References: " + "\r\n ".join(f"<{n}.{number}@example.org>" for n in range(200))]
        case "no_header":
            return b"\r\nonly a body, number " + str(number).encode() + b"\r\n"
        case "many_addresses":
            lines = [*head, "Cc: " + ",\r\n ".join(f"p{n}@example.org" for n in range(300))]
        case _:
            raise ValueError(f"unknown kind {kind}")
    return _close(lines)


def drawn(random_: random.Random, number: int) -> bytes:
    """An ordinary message mostly, an odd one now and then."""
    if random_.random() < 0.25:
        return odd(random_.choice(ODD), number)
    return ordinary(number, body="x" * random_.choice((0, 10, 500, 20_000)))


def _close(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "", "body", ""]).encode()


def _nested(head: list[str], depth: int) -> bytes:
    parts = [f"Content-Type: multipart/mixed; boundary=b0\r\nSubject: nested {depth}\r\n"]
    for level in range(depth):
        parts.append(f"--b{level}\r\nContent-Type: multipart/mixed; boundary=b{level + 1}\r\n")
    return ("\r\n".join(head) + "\r\n" + "\r\n".join(parts) + "\r\n").encode()
