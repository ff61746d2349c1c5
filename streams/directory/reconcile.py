"""The safety net of the live set (row S7): what a worker has heard of its accounts, against PostgreSQL.

Invariants: nothing is started, stopped or taken here; an absence is announced only when the row is still absent at a
second look; the event loop is never held for long, whatever the number of accounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Protocol, TypeVar, cast

from streams.contracts.account import AccountState, AccountStateChanged
from streams.contracts.keys import partition_for
from streams.directory.accounts import AccountRow
from streams.domain.ownership import AccountEntry
from streams.domain.reconciliation import Finding, compare

T = TypeVar("T")

_AT_ONCE: Final = 200
"""Accounts compared between two turns of the event loop: under 5 ms, most of it the partition's hash."""

Publish = Callable[[AccountStateChanged], Awaitable[object]]


class Rows(Protocol):
    """What is needed of `AccountStore`."""

    async def page(self, after: str | None, limit: int) -> list[AccountRow]: ...
    async def rows(self, account_ids: Sequence[str]) -> dict[str, AccountRow]: ...


@dataclass(slots=True)
class ReconcileReport:
    """What one comparison found."""

    rows: int = 0
    ours: int = 0
    announced: int = 0
    absent: int = 0
    ahead: int = 0


async def reconcile_once(
    store: Rows,
    own_entries: AsyncIterable[AccountEntry],
    publish: Publish,
    page_size: int,
    partitions: Collection[int],
    *,
    partition_count: int,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> ReconcileReport:
    """Compare every account of `partitions` and `publish` an `AccountStateChanged` for each difference.

    `own_entries`: what this worker has heard of the accounts of its partitions. Raises `ServiceUnavailable` when
    PostgreSQL goes away, and what `publish` raises; what was announced by then stays true.
    """
    report = ReconcileReport()
    ours = frozenset(partitions)
    known = {entry.account_id: entry async for entry in own_entries}
    after: str | None = None
    while True:
        page = await store.page(after, page_size)
        for part in _in_parts(page):
            for row in part:
                report.rows += 1
                if partition_for(row.account_id, partition_count) not in ours:
                    continue
                report.ours += 1
                match compare(row, known.pop(row.account_id, None)):
                    case Finding.ANNOUNCE:
                        await publish(_row_says(row, now()))
                        report.announced += 1
                    case Finding.AHEAD:
                        report.ahead += 1
                    case Finding.SAME | Finding.ABSENT:
                        pass
            await asyncio.sleep(0)
        if len(page) < page_size:
            break
        after = page[-1].account_id
    await _announce_absences(store, known.values(), publish, page_size, report, now)
    return report


async def _announce_absences(
    store: Rows,
    left: Iterable[AccountEntry],
    publish: Publish,
    page_size: int,
    report: ReconcileReport,
    now: Callable[[], datetime],
) -> None:
    """`left` was in no page. It may have been added since its page was read, so look again before saying so."""
    suspects = [entry for entry in left if compare(None, entry) is Finding.ABSENT]
    for first in range(0, len(suspects), page_size):
        part = suspects[first : first + page_size]
        found = await store.rows([entry.account_id for entry in part])
        for entry in part:
            row = found.get(entry.account_id)
            if row is not None:
                if compare(row, entry) is Finding.ANNOUNCE:
                    await publish(_row_says(row, now()))
                    report.announced += 1
                continue
            # No row has no version: an event without one is taken as it comes.
            await publish(
                AccountStateChanged(
                    account_id=entry.account_id,
                    user_id=entry.user_id,
                    state="deleted",
                    at=now(),
                    reason="the account is not in the database",
                )
            )
            report.absent += 1
        await asyncio.sleep(0)


def _row_says(row: AccountRow, at: datetime) -> AccountStateChanged:
    return AccountStateChanged(
        account_id=row.account_id,
        user_id=row.user_id,
        state=cast(AccountState, row.state),
        at=at,
        version=row.version,
        reason="reconcile",
    )


def _in_parts(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, _AT_ONCE)):
        yield part
