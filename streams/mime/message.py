"""The MIME tree of a message at hand (RFC 2045, 2046), found by its delimiter lines.

One pass over the bytes: a regular expression jumps from one line that begins with two hyphens to the next, a dictionary
tells whether it is a delimiter of a multipart that is open, and a stack of open multiparts takes the place of
recursion. Bodies are not copied or decoded; parts are offsets.

Invariant: bytes, parts, depth, header size and time are capped (cases 94 to 96); what is reached before a cap is kept
and the defect says which cap it was. Never raises on content. Large messages belong off the event loop: the caller
decides.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

import msgspec

from streams.mime import defects as d
from streams.mime.fields import select, unfolded_block
from streams.mime.headers import DEFAULT_LIMITS, media_type, parse_headers
from streams.mime.leaves import attachments_of, text_leaf_of
from streams.mime.parameters import parameter, parse_parameters
from streams.mime.structure import content_id
from streams.mime.transfer import decode_transfer
from streams.mime.values import HeaderLimits, MessageCaps, MimePart, ParsedMessage

DEFAULT_CAPS: Final = MessageCaps()

_BOUNDARY_CHARS: Final = 200  # RFC 2046 5.1.1 allows 70; senders do not count

_KNOWN: Final = {
    spelling: name
    for name in ("content-type", "content-disposition", "content-id", "content-transfer-encoding")
    for spelling in (name, name.title(), name.upper())
} | {"Content-ID": "content-id"}

_DELIMITER: Final = re.compile(rb"^--([^\r\n]{1,202})", re.MULTILINE)
# The end of a header block: an empty line, or a line that may be a delimiter because the empty line is missing.
_HEADER_STOP: Final = re.compile(rb"^(?:\r?\n|--)", re.MULTILINE)
_EMPTY_LINES: Final = re.compile(rb"(?:\r?\n)*+")
_DISPOSITION: Final = re.compile(r"[a-z0-9_.+-]{1,64}")
_TIME_CHECK_EVERY: Final = 256  # candidate lines; some hundred microseconds


class _Open(msgspec.Struct):
    """A multipart that has not been closed yet."""

    boundary: bytes
    number: str
    subtype: str
    children: int = 0


class _Entity(msgspec.Struct, frozen=True):
    """What the header block of a part says, and where its body starts."""

    content_type: str
    boundary: bytes | None
    charset: str | None
    encoding: str
    disposition: str | None
    filename: str | None
    content_id: str | None
    start: int


def parse_message(
    raw: bytes,
    *,
    caps: MessageCaps = DEFAULT_CAPS,
    limits: HeaderLimits = DEFAULT_LIMITS,
    clock: Callable[[], float] = time.monotonic,
) -> ParsedMessage:
    """Headers and MIME leaves of the message ``raw``, whose offsets the parts name.

    ``clock`` gives seconds and is read every few hundred lines to keep ``caps.max_seconds``.
    """
    walk = _Walk(raw, caps, clock)
    walk.run()
    # One byte more than the limit, so that a longer block shows.
    headers = parse_headers(raw[walk.start : walk.start + limits.max_bytes + 1], limits=limits)
    parts = tuple(walk.parts)
    return ParsedMessage(
        headers=headers,
        parts=parts,
        attachments=attachments_of(parts),
        text=text_leaf_of(parts),
        defects=tuple(sorted(walk.defects)),
    )


def part_content(raw: bytes, part: MimePart, max_bytes: int) -> bytes:
    """The decoded content of a part, out of at most ``max_bytes`` octets of its encoded form."""
    return decode_transfer(raw[part.start : min(part.end, part.start + max_bytes)], part.encoding)


class _Walk:
    """One pass over one message."""

    def __init__(self, raw: bytes, caps: MessageCaps, clock: Callable[[], float]) -> None:
        # Offsets stay true: one byte takes the place of one byte.
        self._raw = raw if b"\n" in raw or b"\r" not in raw else raw.replace(b"\r", b"\n")
        self._caps = caps
        leading = _EMPTY_LINES.match(self._raw)
        self.start = leading.end() if leading is not None else 0
        self._clock = clock
        self._deadline = clock() + caps.max_seconds
        self._end = min(len(raw), caps.max_bytes)
        self._stack: list[_Open] = []
        self._open: dict[bytes, int] = {}
        self._leaf: tuple[_Entity, str, str] | None = None
        self._seen = 0
        self._candidates = 0
        self._header_limits = HeaderLimits(max_bytes=caps.max_header_bytes)
        self.parts: list[MimePart] = []
        self.defects: set[str] = set()
        if self._end < len(raw):
            self.defects.add(d.MESSAGE_BYTES)

    def run(self) -> None:
        """Read the message and fill ``parts`` and ``defects``."""
        position = self._begin(self.start, "", "")
        while self._stack:
            found = self._next_delimiter(position)
            if found is None:
                if self._end == len(self._raw) and d.PARSE_TIME not in self.defects:
                    self.defects.add(d.BOUNDARY)  # never closed
                break
            line_start, line_end, level, closes = found
            self._finish_leaf(line_start)
            self._close_above(level)
            position = line_end
            if closes:
                self._close_above(level - 1)
                continue
            if self._seen >= self._caps.max_parts:
                self.defects.add(d.PART_COUNT)
                return
            parent = self._stack[level]
            parent.children += 1
            number = f"{parent.number}.{parent.children}" if parent.number else str(parent.children)
            position = self._begin(line_end, number, parent.subtype)
        self._finish_leaf(self._end)

    def _begin(self, position: int, number: str, parent: str) -> int:
        """Read the header block of a part; returns where to look for the next delimiter."""
        self._seen += 1
        self._late()
        entity = self._entity(position)
        if entity.content_type.startswith("multipart/"):
            if entity.boundary is None:
                self.defects.add(d.BOUNDARY)
                entity = msgspec.structs.replace(entity, content_type="text/plain")
            elif len(self._stack) >= self._caps.max_depth:
                self.defects.add(d.PART_DEPTH)
            else:
                self._open[entity.boundary] = len(self._stack)
                self._stack.append(_Open(entity.boundary, number, entity.content_type.partition("/")[2]))
                return entity.start
        self._leaf = (entity, number or "1", parent)
        return entity.start

    def _entity(self, position: int) -> _Entity:
        stop, start = self._header_end(position)
        defects = self.defects
        block = unfolded_block(self._raw[position:stop], self._header_limits, defects)
        fields: dict[str, str] = {}
        for name, body in select(block, _KNOWN):
            fields.setdefault(name, body)
        written_type = fields.get("content-type", "")
        content_type = media_type(written_type)
        parameters: dict[str, str] = {}
        if content_type is not None:
            parameters = parse_parameters(written_type)[1]
        disposition, disposed = parse_parameters(fields.get("content-disposition", ""))
        longest = self._caps.max_filename_chars
        boundary = parameters.get("boundary", "").rstrip(" \t")[:_BOUNDARY_CHARS].encode("latin-1")
        return _Entity(
            content_type=content_type or "text/plain",  # RFC 2045 5.2
            boundary=boundary or None,
            charset=parameter(parameters, "charset", 64, defects),
            encoding=fields.get("content-transfer-encoding", "7bit").partition(";")[0].strip().lower()[:64] or "7bit",
            disposition=disposition if _DISPOSITION.fullmatch(disposition) else None,
            filename=parameter(disposed, "filename", longest, defects)
            or parameter(parameters, "name", longest, defects),
            content_id=content_id(fields["content-id"][:1_024]) if "content-id" in fields else None,
            start=start,
        )

    def _header_end(self, position: int) -> tuple[int, int]:
        """Where the header block at ``position`` ends, and where the body starts."""
        furthest = min(self._end, position + self._caps.max_header_bytes)
        search_from = position
        while (match := _HEADER_STOP.search(self._raw, search_from, furthest)) is not None:
            if not match.group().startswith(b"--"):
                return match.start(), match.end()
            if self._late() or (self._stack and self._level_of(match.start()) is not None):
                return match.start(), match.start()
            search_from = match.end()
        if furthest < self._end:
            self.defects.add(d.HEADER_BYTES)
        return furthest, furthest

    def _next_delimiter(self, position: int) -> tuple[int, int, int, bool] | None:
        """Start and end of the next delimiter line, the open multipart it belongs to, and whether it closes that
        one."""
        for match in _DELIMITER.finditer(self._raw, position, self._end):
            if self._late():
                return None
            level = self._open_level(match.group(1))
            if level is not None:
                line_end = self._raw.find(b"\n", match.end(), self._end)
                return match.start(), line_end + 1 if line_end >= 0 else self._end, *level
        return None

    def _level_of(self, position: int) -> tuple[int, bool] | None:
        match = _DELIMITER.match(self._raw, position, self._end)
        return None if match is None else self._open_level(match.group(1))

    def _open_level(self, line: bytes) -> tuple[int, bool] | None:
        line = line.rstrip(b" \t")
        level = self._open.get(line)
        if level is not None:
            return level, False
        if line.endswith(b"--"):
            level = self._open.get(line[:-2])
            if level is not None:
                return level, True
        return None

    def _late(self) -> bool:
        self._candidates += 1
        if self._candidates % _TIME_CHECK_EVERY == 0 and self._clock() > self._deadline:
            self.defects.add(d.PARSE_TIME)
        return d.PARSE_TIME in self.defects

    def _finish_leaf(self, end: int) -> None:
        if self._leaf is None:
            return
        entity, number, parent = self._leaf
        self._leaf = None
        # The line end before a delimiter belongs to the delimiter (RFC 2046 5.1.1).
        if end > entity.start and self._raw[end - 1] == 10 and self._raw.startswith(b"--", end):
            end -= 1
            if end > entity.start and self._raw[end - 1] == 13:
                end -= 1
        end = max(end, entity.start)
        self.parts.append(
            MimePart(
                part=number,
                content_type=entity.content_type,
                charset=entity.charset,
                encoding=entity.encoding,
                size=end - entity.start,
                disposition=entity.disposition,
                filename=entity.filename,
                content_id=entity.content_id,
                parent=parent,
                start=entity.start,
                end=end,
            )
        )

    def _close_above(self, level: int) -> None:
        """Close every multipart inside that of ``level``."""
        if len(self._stack) > level + 1:
            del self._stack[level + 1 :]
            self._open = {multipart.boundary: index for index, multipart in enumerate(self._stack)}
