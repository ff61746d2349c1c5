"""Parameters of Content-Type and Content-Disposition (RFC 2045 5.1, 2183, 2231, and 2047 where it is misused).

Invariant: at most a fixed number of parameters and of bytes of a field is looked at, and filenames come out clean and
bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from streams.mime.text import clean, collapse, decode_charset, decode_field, decode_words, limit

_MAX_FIELD_CHARS: Final = 16_384
_MAX_PARAMETERS: Final = 256

# Values are one character per byte here: a blank is an ASCII one, lest the end of a UTF-8 character be taken for it.
_BLANKS: Final = " \t\r\n\v\f"
_PARAMETER: Final = re.compile(r';\s*+([^\s=;"]++)\s*+=\s*+("(?:[^"\\]|\\.)*+"|[^;]*+)', re.DOTALL | re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_SECTION: Final = re.compile(r"\*(\d{1,3})(\*?)")


def parse_parameters(body: str) -> tuple[str, dict[str, str]]:
    """The main value in lower case, and the parameters by lower-case name; the first of equal names counts."""
    body = body[:_MAX_FIELD_CHARS]
    found: dict[str, str] = {}
    for match in _PARAMETER.finditer(body):
        name, value = match.groups()
        value = _unquote(value) if value[:1] == '"' else value.strip(_BLANKS)
        found.setdefault(name.lower(), value)
        if len(found) >= _MAX_PARAMETERS:
            break
    return body.partition(";")[0].strip(_BLANKS).lower(), found


def parameter(parameters: Mapping[str, str], name: str, max_chars: int, defects: set[str]) -> str | None:
    """The parameter ``name`` as text, None if it is absent or blank.

    Values are one Latin-1 character per byte. The extended and the continued form (RFC 2231 3 and 4) win over the plain
    one, which senders add for old readers. Encoded words inside a plain value are decoded, though RFC 2047 5 forbids
    them.
    """
    value: str | None = None
    for key in parameters:
        if key.startswith(name) and key[len(name) : len(name) + 1] == "*":
            value = _extended(parameters, name, defects)
            break
    if value is None:
        value = parameters.get(name)
        if value is None:
            return None
        value = decode_words(decode_field(value, None, defects), defects)
    return limit(collapse(clean(value, defects)), max_chars, defects) or None


def _extended(parameters: Mapping[str, str], name: str, defects: set[str]) -> str | None:
    whole = parameters.get(f"{name}*")
    if whole is not None:
        return _decode_extended([(whole, True)], defects)
    sections: dict[int, tuple[str, bool]] = {}
    for key, value in parameters.items():
        if key.startswith(name):
            match = _SECTION.fullmatch(key, len(name))
            if match is not None:
                sections.setdefault(int(match.group(1)), (value, bool(match.group(2))))
    # Sections behind a gap cannot be placed.
    ordered = [sections[number] for number in range(len(sections)) if number in sections]
    return _decode_extended(ordered, defects) if ordered else None


def _decode_extended(sections: list[tuple[str, bool]], defects: set[str]) -> str:
    charset: str | None = None
    pieces: list[bytes] = []
    for number, (value, encoded) in enumerate(sections):
        if encoded and number == 0 and value.count("'") >= 2:
            charset, _language, value = value.split("'", 2)
        data = value.encode("latin-1", "replace")
        pieces.append(unquote_to_bytes(data) if encoded else data)
    return decode_charset(b"".join(pieces), charset or None, defects)


def _unquote(value: str) -> str:
    # A quote that is never closed has been read up to the next semicolon.
    inner = value[1:-1] if len(value) > 1 and value[-1] == '"' else value[1:]
    return _ESCAPE.sub(r"\1", inner) if "\\" in inner else inner
