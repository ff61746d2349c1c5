"""The readable text of an HTML part, for previews.

A scanner of its own instead of the standard library's ``html.parser``, whose time is quadratic on some malformed input
and which has to see all of a document. Invariant: the position only moves forward and every search for a terminator
that fails ends the scan or is never repeated, so the time is linear; nothing is executed, resolved or fetched.
"""

from __future__ import annotations

import html
import re
from typing import Final

# Their content is no text to read. What never ends hides the rest, as in a browser.
_HIDDEN: Final = frozenset({"script", "style", "svg", "template", "title"})
_HIDDEN_END: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE | re.ASCII) for name in _HIDDEN}
# Tags that do not break a word: "<b>W</b>ord" is one.
# fmt: off
_WITHIN_WORDS: Final = frozenset({
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "dfn", "em", "font", "i", "ins", "kbd", "label",
    "mark", "o:p", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "tt", "u", "var", "wbr",
})
# fmt: on
_TAG_NAME: Final = re.compile(r"</?([A-Za-z][A-Za-z0-9:]{0,30})")
# html.unescape converts the digits to a number, which Python refuses (ValueError) when there are thousands of them.
_HUGE_REFERENCE: Final = re.compile(r"&#[xX]?[0-9a-fA-F]{9,}+;?")


def html_to_text(source: str, max_chars: int) -> str:
    """The text of ``source``, blanks where blocks end, not yet collapsed.

    Stops at the end of the run of text that takes it beyond ``max_chars``.
    """
    out: list[str] = []
    visible = 0
    position, end = 0, len(source)
    quotes_pair = True
    while position < end and visible <= max_chars:
        start = source.find("<", position)
        if start < 0:
            start = end
        if start > position:
            text = _unescape(source[position:start])
            out.append(text)
            visible += len(text) if not text.isspace() else 0
        if start >= end:
            break
        if source.startswith("<!--", start):
            close = source.find("-->", start + 4)
            if close < 0:
                break
            position = close + 3
            continue
        name = _TAG_NAME.match(source, start)
        if name is None and source[start + 1 : start + 2] not in ("!", "?", "/"):
            out.append("<")  # "a < b"
            position = start + 1
            continue
        close = source.find(">", start)
        if close < 0:
            break
        if quotes_pair:
            # A ">" inside a quoted attribute does not end the tag.
            for quote in ('"', "'"):
                if source.count(quote, start, close) % 2:
                    paired = source.find(quote, close)
                    longer = source.find(">", paired) if paired >= 0 else -1
                    if longer < 0:
                        quotes_pair = False
                    else:
                        close = longer
                    break
        position = close + 1
        if name is None:
            continue
        tag = name.group(1).lower()
        if tag in _HIDDEN and source[start + 1] != "/" and source[close - 1] != "/":
            over = _HIDDEN_END[tag].search(source, position)
            if over is None:
                break
            position = over.start()
        elif tag not in _WITHIN_WORDS:
            out.append(" ")
    return "".join(out)


def _unescape(text: str) -> str:
    if "&" not in text:
        return text
    return html.unescape(_HUGE_REFERENCE.sub("\ufffd", text))
