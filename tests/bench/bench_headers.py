"""Header blocks per second, beside the standard library on the same blocks in the same run; one JSON line.

``python -m tests.bench.bench_headers [--blocks N]``. The ratios are what to compare between machines: ``to_compat32``
to the library's fastest policy doing no more than split fields, ``to_compat32_read`` to the same with addresses,
dates and encoded words read, which is what ``parse_headers`` does.
"""

from __future__ import annotations

import argparse
import email
import json
import sys
import time
from collections.abc import Callable, Sequence
from email.header import decode_header, make_header
from email.utils import getaddresses, parsedate_to_datetime
from random import Random

from streams.mime import canonical_identity, parse_headers

_WORDS = ("report", "the", "of", "quarter", "meeting", "Re:", "and", "notes", "for", "next", "week", "invoice", "order")
_NAMES = ("Alice Example", "Bob Builder", "Carol", "Dan Dee", "Erin Ems", "Frank")
_ROUNDS = 5


def ordinary_blocks(count: int, random: Random) -> list[bytes]:
    """Header blocks of 300 to 600 bytes as HEADER.FIELDS answers them; one in eight with encoded words."""

    def mailbox() -> str:
        name = random.choice(_NAMES)
        address = f"{name.split()[0].lower()}.{random.randrange(1000)}@example{random.randrange(50)}.org"
        return random.choice((f"{name} <{address}>", f'"{name}" <{address}>', address))

    def identifier() -> str:
        return f"<{random.getrandbits(80):x}@mail{random.randrange(50)}.example.org>"

    blocks = []
    for number in range(count):
        subject = " ".join(random.choices(_WORDS, k=random.randint(3, 9)))
        if number % 8 == 0:
            subject = f"=?utf-8?Q?R=C3=A9sum=C3=A9?= {subject}"
        lines = [
            f"Date: Tue, {random.randint(1, 28)} Jul 2026 09:{random.randrange(60):02}:33 +0200",
            f"From: {mailbox()}",
            f"To: {', '.join(mailbox() for _ in range(random.randint(1, 3)))}",
            f"Subject: {subject}",
            f"Message-ID: {identifier()}",
        ]
        if number % 2:
            parent = identifier()
            lines += [f"In-Reply-To: {parent}", f"References: {identifier()}\r\n {parent}"]
        lines += ['Content-Type: multipart/alternative; boundary="000000000000abcdef"', "", ""]
        blocks.append("\r\n".join(lines).encode())
    return blocks


def compat32(raw: bytes) -> object:
    """The library's fastest policy, fields split only."""
    return email.message_from_bytes(raw)


def compat32_read(raw: bytes) -> object:
    """The library's fastest policy, with what ``parse_headers`` gives read by the library's functions."""
    message = email.message_from_bytes(raw)
    people = [getaddresses(message.get_all(name, [])) for name in ("from", "to", "cc", "bcc", "reply-to")]
    named = [[(str(make_header(decode_header(name))), address) for name, address in group] for group in people]
    subject = str(make_header(decode_header(message.get("subject", ""))))
    references = (message.get("references", "") + message.get("in-reply-to", "")).split()
    return named, subject, parsedate_to_datetime(message["date"]), references, message.get_content_type()


def rate(reader: Callable[[bytes], object], blocks: Sequence[bytes]) -> float:
    """Blocks per second of the thread's own time, the best of some rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.thread_time()
        for raw in blocks:
            reader(raw)
        best = min(best, time.thread_time() - started)
    return len(blocks) / best


def measure(count: int) -> dict[str, float | int | str]:
    """All figures of one run."""
    blocks = ordinary_blocks(count, Random(7))
    ours = rate(parse_headers, blocks)
    few = blocks[: max(1, count // 8)]
    return {
        "bench": "headers",
        "blocks": count,
        "mean_bytes": round(sum(map(len, blocks)) / count),
        "parse_headers_per_s": round(ours),
        "canonical_identity_per_s": round(rate(canonical_identity, blocks)),
        "to_compat32": round(ours / rate(compat32, few), 2),
        "to_compat32_read": round(ours / rate(compat32_read, few), 2),
    }


def main() -> None:
    """Print the figures as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20_000)
    sys.stdout.write(json.dumps(measure(parser.parse_args().blocks)) + "\n")


if __name__ == "__main__":
    main()
