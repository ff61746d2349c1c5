"""Which event about an account's life counts (row S8). Owns the order of events; the accounts table keeps the outcome.

The order comes from `version`, which the database bumps with every change of the account's row; clocks decide nothing:

=============================  ==========================================================================
first event of the account     applies
older version than known       is overtaken: nothing happens
newer version than known       applies
same version, same content     repeats: nothing changes, so that it may be announced again
same version, other content    applies: a record without a version came between, and the row is the truth
no version                     applies, in order of arrival; the known version stays in force
tombstone                      forgets the account, its version too
=============================  ==========================================================================

Invariant: any order and any repetition of events that all carry a version ends at the one with the highest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Life:
    """Whose an account is and whether it lives, as of `version` (None: never stated)."""

    user_id: str
    state: str
    version: int | None

    @property
    def live(self) -> bool:
        """Whether the account is to be synchronised."""
        return self.state == "live"


class Verdict(Enum):
    """What an event means for what is known."""

    APPLIES = auto()
    REPEATS = auto()
    OVERTAKEN = auto()


def judge(known: Life | None, event: Life) -> tuple[Verdict, Life]:
    """Verdict about `event`, and what is known of the account after it."""
    if known is None:
        return Verdict.APPLIES, event
    if event.version is None:
        event = replace(event, version=known.version)
    elif known.version is not None and event.version < known.version:
        return Verdict.OVERTAKEN, known
    if event == known:
        return Verdict.REPEATS, known
    return Verdict.APPLIES, event
