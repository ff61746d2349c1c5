"""Address lists (RFC 5322 3.4, with the obsolete forms of 4.4), read forgivingly and in linear time.

Two readers: a regular expression for lists as nearly all senders write them, and a scanner for the rest, which takes
over at the first entry that is not so. Structure is found before encoded words are decoded, so a decoded comma or
bracket never changes who is addressed.

Invariant: nesting is counted, never recursed into, and no character is looked at more than a fixed number of times,
however the field is built (case 95).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from streams.mime import defects as d
from streams.mime.text import clean, collapse, decode_words, limit
from streams.mime.values import Address, HeaderLimits

_REMEMBERED: Final = 2_048
"""Values kept of each kind: in most mailboxes the same people write to the same people again and again."""
_REMEMBERED_CHARS: Final = 200

# One entry up to and with its comma: [name] <address>, or a bare address. All quantifiers are possessive.
_PLAIN_ENTRY: Final = re.compile(
    r"[ \t]*+(?:"
    r'(?:"([^"\\]*+)"[ \t]*+|([^"\\<>()@,;:\[\]]*+))<([!#-\'*+\-./-9=?A-Z\^-~]++@[!#-\'*+\-./-9=?A-Z\^-~]++)>'
    r"|([!#-\'*+\-./-9=?A-Z\^-~]++@[!#-\'*+\-./-9=?A-Z\^-~]++)"
    r")[ \t]*+(?:,|$)"
)

_TOKEN: Final = re.compile(
    r'(?P<quoted>"(?:[^"\\]|\\.)*+")'
    r"|(?P<word>=\?[^?\s]*+\?[bBqQ]\?[^?]*+\?=)"
    r'|(?P<angle><(?:[^<>"]|"(?:[^"\\<>]|\\.)*+")*+>)'
    r"|(?P<literal>\[[^\[\]<>,]*+\])"
    r"|(?P<special>[,;:(<])"
    r"|(?P<blank>\s++)"
    r'|(?P<text>\\?[^\s,;:(<\[="\\]++|\\.|.)',
    re.DOTALL,
)
_COMMENT_EDGE: Final = re.compile(r"\\.|[()]", re.DOTALL)
# Obsolete syntax allows blanks there (RFC 5322 4.4). For collapsed text only.
_AROUND_DOTS: Final = re.compile(r" ?([@.]) ?")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
# The second branch steps over escapes, so that an open quote is met, and searched for its end, only once.
_QUOTES: Final = re.compile(r'"((?:[^"\\]|\\.)*+)"|\\.', re.DOTALL)


def parse_addresses(
    value: str, limits: HeaderLimits, defects: set[str], max_addresses: int | None = None
) -> tuple[Address, ...]:
    """The mailboxes of an unfolded address field, groups flattened, at most ``max_addresses`` of them."""
    room = limits.max_addresses if max_addresses is None else max_addresses
    found: list[Address] = []
    position, end = 0, len(value)
    match = _PLAIN_ENTRY.match
    most = limits.max_value_chars
    longest = limits.max_id_chars
    while position < end:
        entry = match(value, position)
        if entry is None:
            break
        if len(found) >= room:
            defects.add(d.TOO_MANY_ADDRESSES)
            return tuple(found)
        position = entry.end()
        quoted, name, address, bare = entry.groups()
        if quoted is not None:
            name = quoted
        elif name:
            name = name.rstrip(" \t")
        if address is None:
            address = bare
        # What the expression lets through as an address needs no cleaning, and most names need none.
        if "=?" in entry.group() or len(address) > longest:
            found.append(_address(name, address, limits, defects))
        elif not name:
            found.append(Address(None, address))
        elif name.isprintable() and "  " not in name and name[0] not in " '" and name[-1] != " " and len(name) <= most:
            found.append(Address(name, address))
        else:
            found.append(_address(name, address, limits, defects))
    if position < end and not value.isspace():
        _Scan(value, position, limits, defects, found, room).run()
    return tuple(found)


@lru_cache(maxsize=_REMEMBERED)
def _decoded(name: str) -> str | None:
    """The name, decoded; None if that lost something, which is for each message to tell."""
    defects: set[str] = set()
    decoded = decode_words(name, defects)
    return None if defects else decoded


def _address(name: str | None, address: str | None, limits: HeaderLimits, defects: set[str]) -> Address:
    if name:
        if "=?" in name or not name.isprintable():
            name = (_decoded(name) if len(name) <= _REMEMBERED_CHARS else None) or decode_words(name, defects)
        if name[-1:] == " " or name[:1] in (" ", "'") or "  " in name:
            name = collapse(name)
            # Outlook puts single quotes round names, sometimes inside double ones.
            if len(name) > 2 and name[0] == "'" == name[-1]:
                name = name[1:-1]
        if len(name) > limits.max_value_chars:
            name = limit(name, limits.max_value_chars, defects)
    if address:
        if "=?" in address:
            address = decode_words(address, defects)
        if not address.isprintable():
            address = clean(address, defects)
        if " " in address and '"' not in address:
            address = "".join(address.split())
        if len(address) > limits.max_id_chars:
            address = limit(address, limits.max_id_chars, defects)
    return Address(name or None, address or None)


class _Scan:
    """The scanner for everything that is not plain: quotes with escapes, comments, groups, routes, junk."""

    def __init__(
        self, value: str, start: int, limits: HeaderLimits, defects: set[str], found: list[Address], room: int
    ) -> None:
        self._value = value
        self._start = start
        self._limits = limits
        self._defects = defects
        self._found = found
        self._room = room

    def run(self) -> None:
        """Append the entries of the value to the list given."""
        value, end = self._value, len(self._value)
        position = self._start
        comments = True
        words: list[str] = []
        comment: list[str] = []
        angle: str | None = None
        match = _TOKEN.match
        while position < end:
            token = match(value, position)
            assert token is not None  # the last alternative takes any character
            position = token.end()
            kind, text = token.lastgroup, token.group()
            if kind == "blank":
                words.append(" ")
            elif kind == "quoted":
                words.append(text)
            elif kind == "angle" and angle is None:
                angle = text[1:-1]
            elif kind == "special":
                if text == "," or text == ";":
                    if not self._finish(words, angle, comment):
                        return
                    words, comment, angle = [], [], None
                elif text == ":" and angle is None:
                    # A group's name (RFC 5322 3.4), or a scheme such as "mailto:"; neither is part of a mailbox.
                    words, comment = [], []
                elif text == "(" and comments:
                    close = self._comment_end(position)
                    if close < 0:
                        # It would swallow every address behind it: from here on parentheses are plain text.
                        comments = False
                        words.append(text)
                        continue
                    comment.append(value[position : close - 1])
                    words.append(" ")
                    position = close
                elif text == "<":
                    self._defects.add(d.ADDRESS)
                    stop = _next_separator(value, position)
                    angle, position = value[position:stop], stop
                else:
                    words.append(text)
            else:
                words.append(text)
        self._finish(words, angle, comment)

    def _comment_end(self, position: int) -> int:
        """The index behind the parenthesis that closes the comment opened before ``position``; -1 if there is none."""
        depth = 1
        for edge in _COMMENT_EDGE.finditer(self._value, position):
            char = edge.group()
            if char == "(":
                depth += 1
                if depth > self._limits.max_comment_depth:
                    self._defects.add(d.COMMENT_DEPTH)
                    return -1
            elif char == ")":
                depth -= 1
                if not depth:
                    return edge.end()
        self._defects.add(d.ADDRESS)
        return -1

    def _finish(self, words: list[str], angle: str | None, comment: list[str]) -> bool:
        """Add the entry read; False once there is no room for it."""
        text = "".join(words).strip()
        if not text and not comment and not (angle and angle.strip()):
            return True
        if len(self._found) >= self._room:
            self._defects.add(d.TOO_MANY_ADDRESSES)
            return False
        name: str | None = text
        address = angle
        if angle is None:
            name, address = self._split_bare(text)
        elif angle.startswith("@") and ":" in angle:
            address = angle[angle.rindex(":") + 1 :]  # obsolete route, RFC 5322 4.4
        if name:
            name = collapse(_QUOTES.sub(_unquote, name))
        if not name and comment:
            name = collapse(_ESCAPE.sub(r"\1", " ".join(comment)))
        entry = _address(name, address, self._limits, self._defects)
        if entry.name is not None or entry.address is not None:
            self._found.append(entry)
        return True

    def _split_bare(self, text: str) -> tuple[str | None, str | None]:
        """Name and address of an entry without angle brackets."""
        if "@" not in text:
            return text, None
        squeezed = _AROUND_DOTS.sub(r"\1", collapse(text)) if " " in text else text
        if " " not in squeezed:
            return None, squeezed
        last = squeezed.rsplit(None, 1)
        if "@" in last[-1] and '"' not in last[-1]:
            return last[0], last[-1]
        if squeezed[0] == '"' and '"@' in squeezed:
            return None, squeezed  # a quoted local part with blanks
        self._defects.add(d.ADDRESS)
        return squeezed, None


def _unquote(match: re.Match[str]) -> str:
    inner: str | None = match.group(1)
    if inner is None:
        return match.group()
    return _ESCAPE.sub(r"\1", inner) if "\\" in inner else inner


def _next_separator(value: str, position: int) -> int:
    comma = value.find(",", position)
    return comma if comma >= 0 else len(value)
