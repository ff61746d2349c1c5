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
# A field name is printable ASCII without a colon (RFC 5322 2.2); blanks before the colon are obsolete syntax (4.5).
# Anything else, such as the "From " line of an mbox, is junk between fields and passed over.
_FIELD: Final = re.compile(r"^([!-9;-~]+)[ \t]*:(.*)", re.MULTILINE)


def unfolded_block(raw: bytes, limits: HeaderLimits, defects: set[str]) -> str:
    """The header block at the start of ``raw``, one field a line, each byte as the Latin-1 character of its number.

    Ends before the first empty line that follows a field; empty lines before the first field are passed over (case 94).
    """
    if len(raw) > limits.max_bytes:
        raw, cut = raw[: limits.max_bytes], True
    else:
        cut = False
    text = raw.decode("latin-1")
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
    if text.count("\n") > limits.max_lines:
        text = "\n".join(text.split("\n", limits.max_lines)[:-1])
        defects.add(d.HEADER_FIELDS)
    if "\n " in text or "\n\t" in text:
        text = _FOLD.sub(" ", text)
    return text


def fields_of(block: str) -> list[tuple[str, str]]:
    """Name as written and body of each field of an unfolded block, in order; bodies keep their outer blanks."""
    return _FIELD.findall(block)
