"""Cuts the byte stream into complete responses.

Owns the unparsed bytes of one connection. Invariants: the responses do not depend on how the bytes were cut into reads;
every byte is looked at a bounded number of times; what is buffered never passes the limits by more than one read.

A response ends at the CRLF of its last line. A line that ends in `{n}` is followed by n literal bytes and goes on after
them, but only where a literal can stand (RFC 3501 section 4.3): not in human text, not in tagged or continuation lines,
not inside quotes. Blank lines between responses mean nothing; some servers put one after a literal inside an open list
(case 42), where it is part of the response.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from streams.imap.errors import LineTooLong, LiteralTooLong, ResponseTooLong

_LITERAL_TAIL = re.compile(rb"~?\{(\d{1,19})\+?\}\Z")
_LITERAL_TAIL_BYTES = 24  # "~{" + 19 digits + "+}" and the byte before
_MAY_PRECEDE_LITERAL = b" (]>"  # "]" and ">": servers that leave out the blank after BODY[...]
_SMALL_BYTES = 8192  # below it two copies cost less than a view
_FETCH = re.compile(rb"\* \d{1,10} FETCH ")
_KIND = re.compile(rb"\* *(?:\d+ +)?([A-Za-z][A-Za-z0-9.-]*)")

# Text follows these, so nothing in them is a literal (RFC 3501 section 7.1; case P6).
_TEXT_KINDS = frozenset({b"OK", b"NO", b"BAD", b"BYE", b"PREAUTH", b"CAPABILITY", b"ENABLED", b"SEARCH", b"FLAGS"})
# Strings can stand anywhere in these. In every other kind only inside a parenthesised list.
_DATA_KINDS = frozenset(
    {
        *(b"FETCH", b"LIST", b"LSUB", b"XLIST", b"STATUS", b"NAMESPACE", b"ID", b"METADATA", b"ANNOTATION"),
        *(b"ACL", b"LISTRIGHTS", b"MYRIGHTS", b"QUOTA", b"QUOTAROOT", b"GENURLAUTH", b"URLFETCH", b"LANGUAGE"),
    }
)
# An item whose value is a literal in practice: decides even where broken quoting came before it (case 53).
_BODY_ITEM = re.compile(rb"[ (](?:BODY|BINARY|RFC822)(?:\.[A-Z]+)?(?:\[[^\]\r\n]*\])?(?:<\d+>)? ?~?\{\d+\+?\}\Z")
_BODY_ITEM_BYTES = 2048
_SHAPE = re.compile(rb'"(?:[^"\\]|\\.)*"(?:"+(?=[ )]))?|["()]', re.DOTALL)


class Raw(NamedTuple):
    """One response without its final CRLF. `literals`: start and end in `data` of each literal's content."""

    data: bytes
    literals: tuple[tuple[int, int], ...]


class Framer:
    """`feed` bytes, then take responses with `next_response` until it gives None."""

    __slots__ = (
        "_buffer",
        "_depth",
        "_depth_at",
        "_depth_literals",
        "_literals",
        "_max_line",
        "_max_literal",
        "_max_response",
        "_need",
        "_quote_open",
        "_scan",
        "_segment",
        "_start",
    )

    def __init__(self, *, max_line: int = 16 << 20, max_literal: int = 64 << 20, max_response: int = 80 << 20) -> None:
        self._max_line = max_line
        self._max_literal = max_literal
        self._max_response = max_response
        self._buffer = bytearray()
        self._start = 0  # of the response being collected
        self._segment = 0  # of the line being collected: the response's start, or the end of its last literal
        self._scan = 0  # no CRLF begins in the segment before this
        self._need = 0  # end of the literal being collected; 0 outside
        self._literals: list[tuple[int, int]] = []
        self._depth = 0  # of parentheses, in the response up to _depth_at
        self._depth_at = 0
        self._depth_literals = 0  # literals of the response already passed by the count
        self._quote_open = False

    def feed(self, data: bytes) -> None:
        """Append what was read."""
        start = self._start
        if start:
            del self._buffer[:start]  # moves an offset, copies nothing
            self._start = 0
            self._segment -= start
            self._scan -= start
            self._depth_at -= start
            if self._need:
                self._need -= start
        self._buffer += data

    @property
    def buffered(self) -> int:
        """Bytes that are not part of a response handed out."""
        return len(self._buffer) - self._start

    def take_rest(self) -> bytes:
        """Take away what is not part of a response handed out: it belongs to another stream (RFC 4978)."""
        rest = bytes(self._buffer[self._start :])
        self._buffer.clear()
        self._need = 0
        self._begin(0)
        return rest

    def next_response(self) -> Raw | None:
        """The next complete response, or None until more is fed. Raises `ProtocolViolation` when a limit is passed."""
        buffer = self._buffer
        while True:
            if self._need:
                if len(buffer) < self._need:
                    return None
                self._segment = self._scan = self._need
                self._need = 0
            segment = self._segment
            end = buffer.find(b"\r\n", self._scan)
            if end < 0:
                self._scan = max(segment, len(buffer) - 1)
                self._check_line(len(buffer) - segment, len(buffer) - self._start)
                return None
            self._check_line(end - segment, end - self._start)
            if end == segment:
                if not self._literals:  # blank line between responses
                    self._begin(end + 2)
                    continue
                if self._open_list(end):  # case 42
                    self._segment = self._scan = end + 2
                    continue
            elif buffer[end - 1] == 0x7D:  # }
                size = self._literal_size(segment, end)
                if size is not None:
                    if size > self._max_literal:
                        raise LiteralTooLong(
                            f"a literal of {size} bytes was announced, {self._max_literal} are allowed"
                        )
                    first = end + 2 - self._start
                    if first + size > self._max_response:
                        raise ResponseTooLong(f"a response of more than {self._max_response} bytes was announced")
                    self._literals.append((first, first + size))
                    self._need = end + 2 + size
                    continue
            start = self._start
            if end - start <= _SMALL_BYTES:
                data = bytes(buffer[start:end])
            else:
                with memoryview(buffer) as view:
                    data = bytes(view[start:end])
            raw = Raw(data, tuple(self._literals) if self._literals else ())
            self._begin(end + 2)
            return raw

    def _begin(self, at: int) -> None:
        self._start = self._segment = self._scan = self._depth_at = at
        if self._literals:
            self._literals = []
            self._depth_literals = 0
        self._depth = 0

    def _check_line(self, line: int, response: int) -> None:
        if line > self._max_line:
            raise LineTooLong(f"a line of more than {self._max_line} bytes")
        if response > self._max_response:
            raise ResponseTooLong(f"a response of more than {self._max_response} bytes")

    def _literal_size(self, segment: int, end: int) -> int | None:
        """Size of the literal that the line ending at `end` announces; None where its `{n}` is only text."""
        buffer = self._buffer
        tail_at = max(segment, end - _LITERAL_TAIL_BYTES)
        tail = _LITERAL_TAIL.search(buffer, tail_at, end)
        if tail is None:
            return None
        before = tail.start()
        if before > segment and buffer[before - 1] not in _MAY_PRECEDE_LITERAL:
            return None
        if self._literals:
            kind = b""
        elif _FETCH.match(buffer, self._start, end) is not None:
            kind = b"FETCH"
        else:
            kind_match = _KIND.match(buffer, self._start, end)
            if kind_match is None:
                return None
            kind = kind_match[1].upper()
            if kind in _TEXT_KINDS:
                return None
        if kind == b"FETCH" or not kind:
            # The common shape, without looking at every byte: an even number of quotes and none escaped.
            if not buffer.count(b'"', segment, end) & 1 and buffer.find(b'\\"', segment, end) < 0:
                return int(tail[1])
            if _BODY_ITEM.search(buffer, max(segment, end - _BODY_ITEM_BYTES), end) is not None:
                return int(tail[1])
        is_open = self._open_list(end)
        if self._quote_open or not (is_open or kind in _DATA_KINDS or not kind):
            return None
        return int(tail[1])

    def _open_list(self, end: int) -> bool:
        """Whether more parentheses were opened than closed up to `end`. Looks at each byte outside literals once."""
        at = self._depth_at
        for first, last in self._literals[self._depth_literals :]:
            self._count(at, self._start + first)
            at = self._start + last
        self._depth_literals = len(self._literals)
        self._count(at, end)
        self._depth_at = end
        return self._depth > 0

    def _count(self, at: int, end: int) -> None:
        self._quote_open = False
        for match in _SHAPE.finditer(self._buffer, at, end):
            token = match[0]
            if token == b"(":
                self._depth += 1
            elif token == b")":
                self._depth -= 1
            elif token == b'"':
                self._quote_open = True  # up to the end of the line: a quoted string does not cross one
                break
