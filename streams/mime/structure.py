"""Attachments and the text part from an IMAP BODYSTRUCTURE (RFC 9051 7.5.2), which servers get wrong in many ways.

The value is what a tokenizer makes of it: lists as tuples, strings as bytes, numbers as bytes or int, NIL as None. It
is optional data (case 53): where it cannot be trusted the answer is None, and the caller reads the message itself.

Invariant: an explicit stack with caps instead of recursion, so that no nesting exhausts anything (case 94).
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias, Union

from streams.mime.leaves import attachments_of, text_leaf_of
from streams.mime.parameters import parameter
from streams.mime.text import clean, decode_field
from streams.mime.values import Attachment, Leaf, MessageCaps

StructureValue: TypeAlias = Union[bytes, int, tuple["StructureValue", ...], None]  # noqa: UP007 - recursive

DEFAULT_CAPS: Final = MessageCaps()

# Where the disposition stands: behind the seven basic fields, what the type adds (lines for text; envelope, structure
# and lines for a message) and the MD5.
_DISPOSITION_AT: Final = {"text": 9, "message/rfc822": 11, "message/global": 11}
_DISPOSITION_AT_OTHERWISE: Final = 8

_TOKEN: Final = re.compile(r"[a-z0-9!#$&^_.+-]{1,127}")
_MAX_SIZE: Final = 2**63 - 1


def attachments_from_structure(
    structure: StructureValue, *, caps: MessageCaps = DEFAULT_CAPS
) -> tuple[Attachment, ...] | None:
    """The attachments a BODYSTRUCTURE tells of; None if it is absent, unusable or over the caps. Never raises."""
    leaves = leaves_of_structure(structure, caps=caps)
    return None if leaves is None else attachments_of(leaves)


def text_part(structure: StructureValue, *, caps: MessageCaps = DEFAULT_CAPS) -> Leaf | None:
    """The part to fetch for a preview: first plain text, else first HTML; None if there is none. Never raises."""
    leaves = leaves_of_structure(structure, caps=caps)
    return None if leaves is None else text_leaf_of(leaves)


def leaves_of_structure(structure: StructureValue, *, caps: MessageCaps = DEFAULT_CAPS) -> tuple[Leaf, ...] | None:
    """The leaves in order; None if the value is no BODYSTRUCTURE, or over the caps on parts or depth."""
    structure = _unwrapped(structure)
    if not isinstance(structure, tuple) or not structure:
        return None
    leaves: list[Leaf] = []
    seen = 0
    # Parts still to visit, the next one last: value, part number, depth, subtype of the multipart around it.
    pending: list[tuple[StructureValue, str, int, str]] = [(structure, "", 0, "")]
    while pending:
        value, number, depth, parent = pending.pop()
        seen += 1
        if seen > caps.max_parts or depth > caps.max_depth:
            return None
        value = _unwrapped(value)
        if not isinstance(value, tuple) or not value:
            return None
        if isinstance(value[0], tuple):
            children = _children(value)
            rest = value[len(children)] if len(children) < len(value) else None
            subtype = _token(rest) or "mixed"
            if seen + len(pending) + len(children) > caps.max_parts:
                return None
            prefix = f"{number}." if number else ""
            pending.extend(
                (child, f"{prefix}{index}", depth + 1, subtype)
                for index, child in zip(range(len(children), 0, -1), reversed(children), strict=True)
            )
        else:
            leaf = _leaf(value, number or "1", parent, caps)
            if leaf is None:
                return None
            leaves.append(leaf)
    return tuple(leaves)


def _unwrapped(value: StructureValue) -> StructureValue:
    """``value`` without doubled parentheses; a multipart always has its subtype behind its parts."""
    while isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], tuple):
        value = value[0]
    return value


def _children(value: tuple[StructureValue, ...]) -> list[StructureValue]:
    children: list[StructureValue] = []
    for item in value:
        if not isinstance(item, tuple):
            break
        children.append(item)
    return children


def _leaf(value: tuple[StructureValue, ...], number: str, parent: str, caps: MessageCaps) -> Leaf | None:
    # A list without a subtype is a multipart whose parts the server lost, as in ("ALTERNATIVE"): not to be trusted.
    if len(value) < 2 or isinstance(value[1], tuple):
        return None
    main, sub = _token(value[0]), _token(value[1])
    if main is None:
        return None
    if sub is None:
        main, sub = ("text", "plain") if main == "text" else ("application", "octet-stream")
    content_type = f"{main}/{sub}"
    own = _parameters(_at(value, 2))
    disposition, disposed = _disposition(value, main, content_type)
    defects: set[str] = set()
    longest = caps.max_filename_chars
    filename = parameter(disposed, "filename", longest, defects) or parameter(own, "name", longest, defects)
    return Leaf(
        part=number,
        content_type=content_type,
        charset=parameter(own, "charset", 64, defects),
        encoding=_token(_at(value, 5)) or "7bit",
        size=_size(_at(value, 6)),
        disposition=disposition,
        filename=filename,
        content_id=_content_id(_at(value, 3)),
        parent=parent,
    )


def _disposition(value: tuple[StructureValue, ...], main: str, content_type: str) -> tuple[str | None, dict[str, str]]:
    at = _DISPOSITION_AT.get(content_type) or _DISPOSITION_AT.get(main, _DISPOSITION_AT_OTHERWISE)
    candidates = (_at(value, at), *value[7:14])  # some servers leave out a field or add one
    for item in candidates:
        if isinstance(item, tuple) and item and isinstance(item[0], bytes):
            kind = _token(item[0])
            if kind in ("attachment", "inline") or (item is candidates[0] and kind is not None and len(item) == 2):
                return kind, _parameters(_at(item, 1))
        elif isinstance(item, bytes) and item.lower() in (b"attachment", b"inline"):
            return item.decode("ascii").lower(), {}
    return None, {}


def _parameters(value: StructureValue) -> dict[str, str]:
    found: dict[str, str] = {}
    if isinstance(value, tuple):
        for name, body in zip(value[0:256:2], value[1:256:2], strict=False):
            if isinstance(name, bytes) and isinstance(body, bytes | int):
                text = str(body) if isinstance(body, int) else body[:16_384].decode("latin-1")
                found.setdefault(name.decode("latin-1").strip().lower(), text)
    return found


def _at(value: tuple[StructureValue, ...], index: int) -> StructureValue:
    return value[index] if index < len(value) else None


def _token(value: StructureValue) -> str | None:
    """A type, subtype or the like in lower case, without the stray quotes some servers add; None if it is none."""
    if not isinstance(value, bytes):
        return None
    text = value[:256].decode("latin-1").strip(' "').lower()
    return text if _TOKEN.fullmatch(text) else None


def _size(value: StructureValue) -> int | None:
    if isinstance(value, bytes):
        if not value.isdigit() or len(value) > 19:
            return None
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= _MAX_SIZE else None


def _content_id(value: StructureValue) -> str | None:
    if not isinstance(value, bytes):
        return None
    return content_id(value[:1_024].decode("latin-1"))


def content_id(written: str) -> str | None:
    """A Content-ID, one character per byte, without brackets and blanks (RFC 2045 7); None if nothing is left."""
    text = clean(decode_field(written, None, set()), set())
    return "".join(text.strip().strip("<>").split()) or None
