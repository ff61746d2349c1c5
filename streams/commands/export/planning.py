"""Which messages are fetched together.

Pure. Invariant: the sizes of a group add up to at most `max_bytes`, unless it is one message alone; groups keep the
order. Memory is bounded by a group, never by a mailbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

MAX_MESSAGES: Final = 200
MAX_BYTES: Final = 16 * 1024 * 1024


def groups(
    sizes: Iterable[tuple[int, int]], *, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
) -> Iterator[list[int]]:
    """UIDs in groups, from pairs of UID and size in bytes."""
    group: list[int] = []
    total = 0
    for uid, size in sizes:
        if group and (len(group) >= max_messages or total + size > max_bytes):
            yield group
            group, total = [], 0
        group.append(uid)
        total += size
    if group:
        yield group


def uid_set(uids: Iterable[int]) -> str:
    """UIDs, rising, as an IMAP sequence set with ranges (RFC 3501 section 9)."""
    parts: list[str] = []
    first = last = None
    for uid in uids:
        if last is not None and uid == last + 1:
            last = uid
            continue
        if first is not None:
            parts.append(f"{first}:{last}" if last != first else f"{first}")
        first = last = uid
    if first is not None:
        parts.append(f"{first}:{last}" if last != first else f"{first}")
    return ",".join(parts)
