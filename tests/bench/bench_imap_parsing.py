"""FETCH answers parsed, beside imapclient's parser on the same bytes in the same run; JSON lines.

`python -m tests.bench.bench_imap_parsing [--messages N]`. Both are timed from the bytes of the stream to their values;
imapclient's framing (imaplib's) is not counted against it, ours is. Target: at least twice its rate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from imapclient.response_parser import parse_fetch_response

from streams.imap.protocol.framing import Framer
from streams.imap.protocol.parser import parse

READ_BYTES = 256 << 10  # what asyncio reads at once
ROUNDS = 5


def headers(number: int) -> bytes:
    """The usual: what backfill asks for."""
    block = (
        b"Date: Mon, 30 Nov 2026 10:00:00 +0000\r\nFrom: Alice Example <alice@example.org>\r\n"
        b"To: Bob <bob@example.com>\r\n"
        b"Subject: =?utf-8?q?R=C3=A9sum=C3=A9?= of the week %d\r\nMessage-ID: <m%d@mail.example.org>\r\n"
        b"References: <a@mail.example.org>\r\n <b@mail.example.org>\r\n\r\n" % (number, number)
    )
    return (
        b"* %d FETCH (UID %d FLAGS (\\Seen $Label1) MODSEQ (%d) RFC822.SIZE %d "
        b'INTERNALDATE "30-Nov-2026 10:00:%02d +0000" BODY[HEADER.FIELDS (DATE FROM TO SUBJECT MESSAGE-ID REFERENCES)] '
        b"{%d}\r\n%b)\r\n" % (number, number, number + 7, 2000 + number, number % 60, len(block), block)
    )


def flags(number: int) -> bytes:
    """A flag scan."""
    return b"* %d FETCH (UID %d FLAGS (\\Seen \\Answered))\r\n" % (number, number)


def structures(number: int) -> bytes:
    """With a BODYSTRUCTURE, which goes by tokens."""
    return (
        b'* %d FETCH (UID %d BODYSTRUCTURE (("TEXT" "PLAIN" ("CHARSET" "utf-8") NIL NIL "7BIT" 100 4 NIL NIL NIL NIL)'
        b'("APPLICATION" "PDF" ("NAME" "a %d.pdf") NIL NIL "BASE64" 9000 NIL ("ATTACHMENT" ("FILENAME" "a")) NIL NIL)'
        b' "MIXED" ("BOUNDARY" "x") NIL NIL NIL))\r\n' % (number, number, number)
    )


def ours(stream: bytes) -> int:
    """Framed and parsed."""
    framer = Framer()
    count = 0
    for at in range(0, len(stream), READ_BYTES):
        framer.feed(stream[at : at + READ_BYTES])
        while (raw := framer.next_response()) is not None:
            parse(raw)
            count += 1
    return count


def for_imapclient(stream: bytes) -> list[bytes | tuple[bytes, bytes]]:
    """As imaplib hands it over: without the word FETCH; text, and text with the literal behind it."""
    parts: list[bytes | tuple[bytes, bytes]] = []
    framer = Framer()
    framer.feed(stream)
    while (raw := framer.next_response()) is not None:
        number, _, rest = raw.data[2:].partition(b" FETCH ")
        at = len(raw.data) - len(rest)
        lead = number + b" "
        for first, last in raw.literals:
            parts.append((lead + raw.data[at : first - 2], raw.data[first:last]))
            at, lead = last, b""
        parts.append(lead + raw.data[at:])
    return parts


def best(run: Callable[[], object]) -> float:
    """Processor seconds of the quickest round: the machine may be busy with other things."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)


def main() -> int:
    """1 when a target is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    count = parser.parse_args().messages
    missed = False
    for shape in (headers, flags, structures):
        stream = b"".join(shape(number) for number in range(1, count + 1))
        parts = for_imapclient(stream)
        our_s = best(lambda stream=stream: ours(stream))  # type: ignore[misc]
        their_s = best(lambda parts=parts: parse_fetch_response(parts))  # type: ignore[misc]
        ratio = their_s / our_s
        missed |= ratio < 2
        print(
            json.dumps(
                {
                    "bench": "imap_parsing",
                    "shape": shape.__name__,
                    "messages_per_s": round(count / our_s),
                    "mb_per_s": round(len(stream) / our_s / 1e6, 1),
                    "imapclient_messages_per_s": round(count / their_s),
                    "ratio": round(ratio, 2),
                }
            )
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
