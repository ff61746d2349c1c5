"""From bytes and encoded words to clean text.

Invariant: whatever goes in, what comes out holds no NUL, no control character and no lone surrogate, hence always
encodes to UTF-8; every replacement is recorded in the set of defects that the caller passes. All functions are
linear.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

from streams.mime import defects as d
from streams.mime.charsets import ASCII, codec_for

_UNCLEAN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_BLANKS: Final = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x1f\x85")
_REPLACEMENT: Final = "\ufffd"

# RFC 2047 2, with the language of RFC 2231 5. More tolerant in the text: blanks are not allowed there but are common.
# Each attempt reads to the third next "?" at most, so a search is linear however often "=?" occurs.
_ENCODED_WORD: Final = re.compile(r"=\?([^?*\s]*)(?:\*[^?\s]*)?\?([bBqQ])\?([^?]*)\?=")

_BASE64_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NOT_BASE64: Final = bytes(set(range(256)) - set(_BASE64_ALPHABET))

_ISO2022_ESCAPE: Final = re.compile("\x1b[$(]")


def clean(text: str, defects: set[str]) -> str:
    """``text`` without control characters and lone surrogates (case 85).

    White space becomes a blank, all else U+FFFD.
    """
    if text.isprintable() or not _UNCLEAN.search(text):
        return text

    def replace(match: re.Match[str]) -> str:
        char = match.group()
        if char in _BLANKS:
            return " "
        if char == "\0":
            defects.add(d.NUL)
        elif "\ud800" <= char <= "\udfff":
            defects.add(d.CHARSET)
        else:
            defects.add(d.CONTROL)
        return _REPLACEMENT

    return _UNCLEAN.sub(replace, text)


def decode_charset(data: bytes, label: str | None, defects: set[str]) -> str:
    """``data`` in the charset a message names, not yet cleaned.

    An unknown charset and bytes that are invalid in it lead to replacement characters and to the defect ``charset``
    (case 87). No charset, or ASCII, with bytes above 127 is guessed as in :func:`guess`.
    """
    codec = ASCII if label is None else codec_for(label)
    if codec == ASCII:
        return guess(data, None, defects)
    if codec is None:
        if label is not None and not (data.isascii() and label.lower().startswith("x-unknown")):
            defects.add(d.CHARSET)
        return data.decode("utf-8", "replace")
    try:
        return data.decode(codec)
    except ValueError:
        defects.add(d.CHARSET)
        return data.decode(codec, "replace")


def guess(data: bytes, hint: str | None, defects: set[str]) -> str:
    """``data`` that declares no charset, as text, not yet cleaned.

    UTF-8 (RFC 6532) if it is valid, else in the charset ``hint`` names, else Windows-1252, else Latin-1.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        defects.add(d.EIGHT_BIT)
    for codec in (codec_for(hint) if hint else None, "cp1252"):
        if codec and codec != "utf_8":
            try:
                return data.decode(codec)
            except ValueError:
                continue
    return data.decode("latin-1")


def decode_field(value: str, hint: str | None, defects: set[str]) -> str:
    """A field body that was read as Latin-1 (one character per byte), as the text its bytes stand for."""
    if not value.isascii():
        value = guess(value.encode("latin-1"), hint, defects)
    elif "\x1b" in value and _ISO2022_ESCAPE.search(value):
        # Old Japanese mail has ISO-2022-JP in headers without encoded words.
        try:
            value = value.encode("ascii").decode("iso2022_jp_ext")
        except ValueError:
            defects.add(d.CHARSET)
    return value


def decode_words(text: str, defects: set[str]) -> str:
    """``text`` with its RFC 2047 encoded words decoded, and cleaned.

    Neighbouring words of one charset are joined before they are decoded, since many senders split a character between
    two of them. Blanks between encoded words vanish (RFC 2047 6.2).
    """
    if "=?" not in text:
        return clean(text, defects)
    out: list[str] = []
    pending: list[bytes] = []
    pending_label = ""
    end = 0
    for match in _ENCODED_WORD.finditer(text):
        label, encoding, body = match.groups()
        label = label.lower()
        gap = text[end : match.start()]
        end = match.end()
        if pending and (label != pending_label or (gap and not gap.isspace())):
            out.append(decode_charset(b"".join(pending), pending_label, defects))
            if not gap.isspace():
                out.append(gap)
            pending.clear()
        elif not pending:
            out.append(gap)
        pending_label = label
        pending.append(_decode_base64_word(body, defects) if encoding in "bB" else _decode_q_word(body))
    if pending:
        out.append(decode_charset(b"".join(pending), pending_label, defects))
    tail = text[end:]
    if "=?" in tail:
        defects.add(d.ENCODED_WORD)
    out.append(tail)
    return clean("".join(out), defects)


def collapse(text: str) -> str:
    """``text`` with each run of white space as one blank and none at its ends."""
    return " ".join(text.split())


def limit(text: str, max_chars: int, defects: set[str]) -> str:
    """``text``, cut to ``max_chars`` characters."""
    if len(text) <= max_chars:
        return text
    defects.add(d.VALUE_LENGTH)
    return text[:max_chars].rstrip()


def decode_base64(data: bytes) -> tuple[bytes, bool]:
    """Base64 decoded as far as it goes, and whether it was damaged (foreign characters are ignored, RFC 2045 6.8)."""
    try:
        return binascii.a2b_base64(data), False
    except binascii.Error:
        digits = data.translate(None, _NOT_BASE64)
        if len(digits) % 4 == 1:
            digits = digits[:-1]
        return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4)), True


def _decode_base64_word(body: str, defects: set[str]) -> bytes:
    decoded, damaged = decode_base64(body.encode("ascii", "ignore"))
    # Missing padding alone loses nothing and is everywhere.
    if damaged and len(body.rstrip("=")) % 4 == 1:
        defects.add(d.ENCODED_WORD)
    return decoded


def _decode_q_word(body: str) -> bytes:
    return binascii.a2b_qp(body.encode("utf-8", "replace"), header=True)
