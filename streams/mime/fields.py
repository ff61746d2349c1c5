"""Splitting a raw header block into its fields: the one place that knows lines, folding and where the block ends.

Invariant: the same fields come out whether lines end in CRLF, LF or (a block without any LF) CR, however the fields are
folded (RFC 5322 2.2.3), and work is linear in the bytes read, which are bounded.
"""

from __future__ import annotations

import re
from typing import Final

from streams.mime import defects as d
from streams.mime.values import HeaderLimits

_FOLD: Final = re.compile(r"\n[ \t]+")


def unfolded_block(raw: bytes, limits: HeaderLimits, defects: set[str]) -> str:
    """The header block at the start of ``raw``, one field a line, each byte as the Latin-1 character of its number.

    Ends before the first empty line that follows a field; empty lines before the first field are passed over (case 94).
    """
    cut = len(raw) > limits.max_bytes
    text = (raw[: limits.max_bytes] if cut else raw).decode("latin-1")
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        if "\r" in text:
            # A bare CR inside a line is white space; as the only line end there is, it is a line end.
            text = text.replace("\r", " " if "\n" in text else "\n")
    if text[:1] == "\n":
        text = text.lstrip("\n")
    end = text.find("\n\n")
    if end >= 0:
        text = text[:end]
    elif cut:
        # The last line may be half a line.
        text = text[: text.rfind("\n") + 1] or text
        defects.add(d.HEADER_BYTES)
    if len(text) > limits.max_lines and text.count("\n") > limits.max_lines:
        text = "\n".join(text.split("\n", limits.max_lines)[:-1])
        defects.add(d.HEADER_FIELDS)
    if "\n " in text or "\n\t" in text:
        text = _FOLD.sub(" ", text)
    return text


def select(block: str, known: dict[str, str]) -> list[tuple[str, str]]:
    """Name and body of the fields of an unfolded block that are in ``known``, in order; bodies keep their outer blanks.

    ``known`` maps spellings of field names, the lower-case one at least, to the name wanted. Lines that are no field,
    such as the "From " line of an mbox, are passed over; blanks before the colon are obsolete syntax (RFC 5322 4.5).
    """
    found: list[tuple[str, str]] = []
    for line in block.split("\n"):
        written, colon, body = line.partition(":")
        name = known.get(written) or known.get(written.rstrip(" \t").lower())
        if name is not None and colon:
            found.append((name, body))
    return found
