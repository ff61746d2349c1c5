"""Target: bytes of a server. Whatever they are, framing does not depend on their cuts, and parsing never raises."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

with atheris.instrument_imports():
    from streams.imap.errors import ProtocolViolation
    from streams.imap.protocol.fetch import parse_by_tokens, parse_fetch
    from streams.imap.protocol.framing import Framer, Raw
    from streams.imap.protocol.parser import parse
    from streams.imap.protocol.tokens import TokenError
    from streams.imap.values import FetchedMessage


def frame(data: bytes, piece: int) -> list[Raw | str]:
    """All responses in the data, read in pieces of that size."""
    framer = Framer(max_line=300, max_literal=200, max_response=1000)
    found: list[Raw | str] = []
    for at in range(0, len(data), piece):
        framer.feed(data[at : at + piece])
        try:
            while (raw := framer.next_response()) is not None:
                found.append(raw)
        except ProtocolViolation:
            return [*found, "violation"]
    return found


def both_ways(raw: Raw) -> None:
    """The short cut for FETCH gives what the tokens give."""
    outcomes: list[tuple[int, FetchedMessage | None] | None] = []
    for way in (parse_fetch, parse_by_tokens):
        try:
            outcomes.append(way(raw))
        except (TokenError, ValueError):
            outcomes.append(None)
    assert outcomes[0] == outcomes[1], raw


def one_input(data: bytes) -> None:
    """What atheris calls."""
    cut, stream = (data[0] if data else 0), data[1:] + b"\r\n"
    whole = frame(stream, len(stream))
    assert frame(stream, 1 + cut % 17) == whole
    assert frame(stream, 1) == whole
    for raw in whole:
        if isinstance(raw, Raw):
            parse(raw)
            if b" FETCH " in raw.data[:20]:
                both_ways(raw)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
