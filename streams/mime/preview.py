"""The first readable text of a message, out of a part that may have been fetched only in part.

Invariant: never raises, linear in a bounded amount of input, and the result is one line of clean text whose UTF-8
form is not longer than asked.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

from streams.mime.charsets import ASCII, codec_for
from streams.mime.html_text import html_to_text
from streams.mime.text import clean
from streams.mime.transfer import decode_transfer
from streams.mime.values import MimePart, ParsedMessage

MAX_SOURCE_BYTES: Final = 262_144
"""Octets of an encoded part that are read for a preview; newsletters begin with up to 100 KB of style sheets."""

# RFC 2045 calls no charset US-ASCII; HTML names its own.
_META_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_META_WITHIN_BYTES: Final = 2_048

# Shown by nobody: soft hyphens, joiners that only fill, marks of direction, byte order marks.
_INVISIBLE: Final = re.compile("[\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
# Joiners mean something inside a word, but senders pad previews with words made of nothing else.
_FILLERS: Final = "\u200c\u200d\u2007"


def preview(
    raw: bytes,
    encoding: str = "7bit",
    charset: str | None = None,
    subtype: str = "plain",
    max_bytes: int = 256,
) -> str:
    """At most ``max_bytes`` octets (as UTF-8) of the text in ``raw``, the beginning of a text part.

    ``encoding`` and ``charset`` are as the part declares them; ``subtype`` is ``html`` or anything else, which is
    read as plain text. White space is collapsed. Returns ``""`` if there is no text.
    """
    data = decode_transfer(raw[:MAX_SOURCE_BYTES], encoding)
    markup = subtype.lower() in ("html", "xhtml", "watch-html")
    if markup and charset is None:
        declared = _META_CHARSET.search(data, 0, _META_WITHIN_BYTES)
        if declared is not None:
            charset = declared.group(1).decode("ascii")
    text = _decode_beginning(data, charset)
    # A character takes one octet at least. Twice as many leave room for what is dropped below.
    text = html_to_text(text, 2 * max_bytes) if markup else text
    words: list[str] = []
    room = max_bytes
    for word in _INVISIBLE.sub("", clean(text, set())).split():
        if not word.strip(_FILLERS):
            continue
        words.append(word)
        room -= len(word) + 1
        if room < 0:
            break
    return " ".join(words).encode("utf-8")[: max(0, max_bytes)].decode("utf-8", "ignore").rstrip()


def message_preview(raw: bytes, message: ParsedMessage, max_bytes: int = 256) -> str:
    """The preview of a message that :func:`streams.mime.message.parse_message` made of ``raw``."""
    part: MimePart | None = message.text
    if part is None:
        return ""
    body = raw[part.start : min(part.end, part.start + MAX_SOURCE_BYTES)]
    return preview(body, part.encoding, part.charset, part.subtype, max_bytes)


def _decode_beginning(data: bytes, charset: str | None) -> str:
    """``data`` as text; a character that is cut off at the end is dropped rather than replaced."""
    codec = ASCII if charset is None else codec_for(charset)
    if codec == ASCII:
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(data)
        except UnicodeDecodeError:
            return data.decode("cp1252", "replace")
    codec = codec or "utf-8"
    try:
        return codecs.getincrementaldecoder(codec)("replace").decode(data)
    except ValueError:  # UTF-16 and UTF-32 without a byte order mark
        return data.decode(codec, "replace")
