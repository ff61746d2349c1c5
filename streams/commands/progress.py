"""Which reports of progress are worth publishing (row W12).

Pure. Invariants: within an attempt the fractions that go out rise strictly; between two `take` calls only the newest
report is kept; after the end nothing goes out. Whatever is dropped is dropped for one of `DROP_REASONS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

INVALID_FRACTION: Final = "invalid_fraction"
INVALID_PAYLOAD: Final = "invalid_payload"
NOT_INCREASING: Final = "not_increasing"
COALESCED: Final = "coalesced"
CONCLUDED: Final = "concluded"
NOT_PUBLISHED: Final = "not_published"
DROP_REASONS: Final = (INVALID_FRACTION, INVALID_PAYLOAD, NOT_INCREASING, COALESCED, CONCLUDED, NOT_PUBLISHED)

MAX_COUNTS: Final = 50
MAX_NAME_CHARS: Final = 100
MAX_MESSAGE_CHARS: Final = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt is. `fraction` is from 0 to 1."""

    fraction: float
    counts: Mapping[str, int] = field(default_factory=dict)
    message: str | None = None


class ProgressGate:
    """Judges the reports of one attempt. `offer` returns the reason why something was dropped, or None."""

    __slots__ = ("_closed", "_pending", "_reached")

    def __init__(self) -> None:
        self._reached = -1.0
        self._pending: Progress | None = None
        self._closed = False

    @property
    def pending(self) -> bool:
        """Whether a report waits for `take`."""
        return self._pending is not None

    def offer(self, fraction: Any, counts: Any = None, message: Any = None) -> str | None:
        """Take a report from a handler, of whatever types it gave.

        The reason returned is about this report, except `coalesced`: then this one is kept and the older one, which
        had not gone out yet, was dropped.
        """
        if self._closed:
            return CONCLUDED
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
            return INVALID_FRACTION
        if not math.isfinite(fraction) or not 0.0 <= fraction <= 1.0:
            return INVALID_FRACTION
        if not _valid_counts(counts) or not _valid_message(message):
            return INVALID_PAYLOAD
        if fraction <= self._reached:
            return NOT_INCREASING
        replaced = self._pending is not None
        self._reached = float(fraction)
        self._pending = Progress(float(fraction), dict(counts or {}), message)
        return COALESCED if replaced else None

    def take(self) -> Progress | None:
        """The report to publish now, if there is one."""
        pending, self._pending = self._pending, None
        return pending

    def close(self) -> str | None:
        """The attempt is over: what was not taken is dropped, with the reason returned."""
        self._closed = True
        dropped, self._pending = self._pending, None
        return CONCLUDED if dropped is not None else None


def _valid_counts(counts: Any) -> bool:
    if counts is None:
        return True
    return (
        isinstance(counts, Mapping)
        and len(counts) <= MAX_COUNTS
        and all(
            isinstance(name, str)
            and 0 < len(name) <= MAX_NAME_CHARS
            and isinstance(count, int)
            and not isinstance(count, bool)
            and -(2**63) <= count < 2**63
            and _encodable(name)
            for name, count in counts.items()
        )
    )


def _valid_message(message: Any) -> bool:
    return message is None or (isinstance(message, str) and len(message) <= MAX_MESSAGE_CHARS and _encodable(message))


def _encodable(text: str) -> bool:
    """Lone surrogates cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
