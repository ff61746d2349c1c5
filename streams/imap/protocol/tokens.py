"""Tokens of a complete response: atoms, quoted strings, literals, NIL and lists.

Invariant: no recursion and a bounded depth, so that no nesting exhausts the stack (P1, case 94). What servers get wrong
in practice is accepted where the meaning is plain: blanks anywhere between tokens (49), stray quotes behind a quoted
string (53), any byte in it (54), brackets in atoms (56), a blank line behind a literal (42).
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

# Strings and atoms as bytes, NIL as None, lists as tuples.
Value: TypeAlias = "bytes | tuple[Value, ...] | None"

MAX_DEPTH: Final = 100  # lists in lists; a multipart nests two

_TOKEN = re.compile(
    rb"[ \t\r\n]*(?:"
    rb"(?P<open>\()|"
    rb"(?P<close>\))|"
    rb'"(?P<quoted>(?:[^"\\]|\\.)*+)"(?:"++(?=[ )]|\Z))?|'
    rb"(?P<literal>~?\{\d+\+?\}\r\n)|"
    rb'(?P<atom>[^ \t\r\n()"]++)'
    rb")",
    re.DOTALL,
)
_OPEN, _CLOSE, _QUOTED, _LITERAL, _ATOM = 1, 2, 3, 4, 5
_BLANKS = re.compile(rb"[ \t\r\n]*")
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class TokenError(ValueError):
    """The bytes at this place are not the value that should stand there."""


class Cursor:
    """A place in one response, moved by what is taken. `at` is the offset of the next byte."""

    __slots__ = ("_literals", "at", "data")

    def __init__(self, data: bytes, at: int = 0, literals: tuple[tuple[int, int], ...] = ()) -> None:
        self.data = data
        self.at = at
        self._literals = literals

    def _literal_from(self, start: int) -> int | None:
        for first, last in self._literals:
            if first == start:
                return last
        return None

    def skip_blanks(self) -> None:
        """Go to the next byte that is no blank."""
        match = _BLANKS.match(self.data, self.at)
        assert match is not None
        self.at = match.end()

    @property
    def ended(self) -> bool:
        """Nothing but blanks is left."""
        self.skip_blanks()
        return self.at >= len(self.data)

    def peek(self) -> int:
        """The next byte that is no blank; -1 at the end."""
        self.skip_blanks()
        return self.data[self.at] if self.at < len(self.data) else -1

    def value(self) -> Value:
        """Take one value: a string, NIL, or a list with all that is in it."""
        data = self.data
        at = self.at
        stack: list[list[Value]] = []
        scan = _TOKEN.match
        while True:
            match = scan(data, at)
            if match is None:
                raise TokenError("a value is missing or its quotes are not closed")
            at = match.end()
            kind = match.lastindex
            item: Value
            if kind == _ATOM:
                atom = match[_ATOM]
                item = None if len(atom) == 3 and atom.upper() == b"NIL" else atom
            elif kind == _QUOTED:
                item = match[_QUOTED]
                if b"\\" in item:
                    item = _ESCAPED.sub(rb"\1", item)
            elif kind == _OPEN:
                if len(stack) >= MAX_DEPTH:
                    raise TokenError("lists are nested too deeply")
                stack.append([])
                continue
            elif kind == _CLOSE:
                if not stack:
                    raise TokenError("a list is closed that was not opened")
                item = tuple(stack.pop())
            else:
                end = self._literal_from(at)
                if end is None:
                    raise TokenError("braces that announce no literal")
                item = data[at:end]
                at = end
            if stack:
                stack[-1].append(item)
            else:
                self.at = at
                return item

    def items(self) -> tuple[Value, ...]:
        """Take a list."""
        value = self.value()
        if not isinstance(value, tuple):
            raise TokenError("a list is missing")
        return value

    def string(self) -> bytes | None:
        """Take a string, an atom or NIL."""
        value = self.value()
        if isinstance(value, tuple):
            raise TokenError("a list stands where a string should")
        return value
