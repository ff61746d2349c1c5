"""Rows turned on their side: one list per column, as `unnest` takes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from streams.projection.rows import FlagsRow, GoneRow, MessageRow, PlaceRow

_JSON: Final = msgspec.json.Encoder()
_AS_THEY_ARE: Final = attrgetter(
    "account_id",
    "message_id",
    "thread_id",
    "subject",
    "from_name",
    "from_address",
    "sent_at",
    "sort_at",
    "size",
    "internet_message_id",
)


def of_messages(rows: Collection[MessageRow]) -> list[Sequence[Any]]:
    """Columns in the order of `queries.UPSERT_MESSAGES`."""
    return [
        *zip(*map(_AS_THEY_ARE, rows), strict=True),
        [array_literal(row.in_reply_to) for row in rows],
        [array_literal(row.references) for row in rows],
        [_JSON.encode(row.headers).decode() for row in rows],
        [None if row.attachments is None else _JSON.encode(row.attachments).decode() for row in rows],
        [row.preview for row in rows],
        [array_literal(row.defects) for row in rows],
        [row.truncated for row in rows],
        [row.cleaned for row in rows],
        [row.first_seen_at for row in rows],
    ]


def of_places(rows: Sequence[PlaceRow] | Sequence[FlagsRow] | Sequence[GoneRow]) -> list[Sequence[Any]]:
    """Columns of places in the order of their struct; flags and labels as literals."""
    columns: list[Sequence[Any]] = [[getattr(row, name) for row in rows] for name in rows[0].__struct_fields__]
    for index, name in enumerate(rows[0].__struct_fields__):
        if name in ("flags", "labels"):
            columns[index] = [None if texts is None else _few(texts) for texts in columns[index]]
    return columns


def of_keys(rows: Sequence[PlaceRow | GoneRow]) -> list[Sequence[Any]]:
    """The four columns of a place's key."""
    return [[getattr(row, name) for row in rows] for name in ("account_id", "mailbox_id", "uidvalidity", "uid")]


def array_literal(texts: tuple[str, ...]) -> str:
    """A text[] as PostgreSQL writes it (its manual, 8.15.6): quoted, a backslash before quotes and backslashes."""
    if not texts:
        return "{}"
    return "{" + ",".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts) + "}"


_few = lru_cache(maxsize=1024)(array_literal)
"""For flags: there are few sets of them."""
