"""What a worker has heard of accounts, against what the database says (row S7). Pure.

===========================  ============================  ==========================================================
the database says            we know                       then
===========================  ============================  ==========================================================
live                         nothing                       announce it
not live                     nothing                       nothing: there is nothing to stop
version v, state, user       another, of a version ≤ v     announce the row
version v                    a newer version               nothing: the row was read before that change, or the
                                                           database is an older one; counted, since a person may care
no such row                  anything but `deleted`        read again; when it is still absent, announce `deleted`
===========================  ============================  ==========================================================

The database is the truth, and this is a safety net: it only *says* again what is so; who owns an account, and when a
runner starts or stops, is decided where the announcement is heard.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol


class Known(Protocol):
    """An account as some side knows it."""

    @property
    def user_id(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def version(self) -> int | None: ...


class Finding(Enum):
    """What comparing one account gave."""

    SAME = auto()
    ANNOUNCE = auto()
    AHEAD = auto()
    ABSENT = auto()


def compare(row: Known | None, known: Known | None) -> Finding:
    """Compare the database's `row` of an account with what is `known` of it; None where a side knows nothing."""
    if row is None:
        return Finding.SAME if known is None or known.state == "deleted" else Finding.ABSENT
    if known is None:
        return Finding.ANNOUNCE if row.state == "live" else Finding.SAME
    if known.version is not None and row.version is not None and known.version > row.version:
        return Finding.AHEAD
    if (known.user_id, known.state, known.version) == (row.user_id, row.state, row.version):
        return Finding.SAME
    return Finding.ANNOUNCE
