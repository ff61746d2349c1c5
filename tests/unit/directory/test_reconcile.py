"""S7: reconcile against a directory in memory; the same on PostgreSQL is an integration test."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime

from streams.contracts.account import AccountStateChanged
from streams.contracts.keys import partition_for
from streams.directory.accounts import AccountRow
from streams.directory.reconcile import ReconcileReport, reconcile_once
from streams.domain.ownership import AccountEntry

PARTITIONS = 4
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Directory:
    """Pages as PostgreSQL gives them: in order of id."""

    def __init__(self, rows: Iterable[AccountRow]) -> None:
        self.table = {row.account_id: row for row in rows}
        self.late: dict[str, AccountRow] = {}
        """Rows that appear after the pages were read."""

    async def page(self, after: str | None, limit: int) -> list[AccountRow]:
        ids = sorted(i for i in self.table if after is None or i > after)
        return [self.table[i] for i in ids[:limit]]

    async def rows(self, account_ids: Sequence[str]) -> dict[str, AccountRow]:
        return {i: row for i, row in (self.table | self.late).items() if i in account_ids}


async def entries(known: Iterable[AccountEntry]) -> AsyncIterator[AccountEntry]:
    for entry in known:
        yield entry


async def run(
    directory: Directory, known: Iterable[AccountEntry], partitions: Iterable[int] = range(PARTITIONS)
) -> tuple[ReconcileReport, list[AccountStateChanged]]:
    said: list[AccountStateChanged] = []

    async def publish(event: AccountStateChanged) -> None:
        said.append(event)

    report = await reconcile_once(
        directory, entries(known), publish, 10, list(partitions), partition_count=PARTITIONS, now=lambda: NOW
    )
    return report, said


def account(state: str = "live", version: int = 1) -> AccountRow:
    return AccountRow(str(uuid.uuid4()), "u", state, version)


def heard(row: AccountRow, state: str | None = None, version: int | None = None) -> AccountEntry:
    return AccountEntry(row.account_id, row.user_id, state or row.state, version or row.version)


async def test_s7_missing_live_accounts_are_announced_with_the_rows_version() -> None:
    rows = [account(version=7) for _ in range(35)]
    report, said = await run(Directory(rows), [heard(row) for row in rows[:20]])
    assert {(e.account_id, e.state, e.version) for e in said} == {(r.account_id, "live", 7) for r in rows[20:]}
    assert (report.rows, report.ours, report.announced) == (35, 35, 15)


async def test_s7_accounts_no_longer_live_are_announced_as_what_they_are() -> None:
    row = account("disabled", 3)
    _, said = await run(Directory([row]), [heard(row, "live", 2)])
    assert [(e.state, e.version) for e in said] == [("disabled", 3)]


async def test_s7_an_absence_is_looked_at_twice() -> None:
    gone, late = account(), account(version=2)
    directory = Directory([])
    directory.late[late.account_id] = late
    report, said = await run(directory, [heard(gone), heard(late, version=2)])
    assert [(e.account_id, e.state, e.version) for e in said] == [(gone.account_id, "deleted", None)]
    assert report.absent == 1


async def test_s7_only_our_partitions_are_looked_at() -> None:
    rows = [account() for _ in range(40)]
    _, said = await run(Directory(rows), [], partitions=[1])
    assert {e.account_id for e in said} == {r.account_id for r in rows if partition_for(r.account_id, PARTITIONS) == 1}


async def test_s7_nothing_to_say_says_nothing() -> None:
    rows = [account() for _ in range(25)]
    report, said = await run(Directory(rows), [heard(row) for row in rows])
    assert said == []
    assert report == ReconcileReport(rows=25, ours=25)


async def test_s7_a_hundred_thousand_accounts_do_not_hold_the_loop() -> None:
    """Issue 4 item 7: at most 50 ms at a time. Measured in CPU time, so that a busy machine does not count."""
    rows = sorted((account() for _ in range(100_000)), key=lambda row: row.account_id)

    class Pages:
        async def page(self, after: str | None, limit: int) -> list[AccountRow]:
            first = 0 if after is None else position[after] + 1
            return rows[first : first + limit]

        async def rows(self, account_ids: Sequence[str]) -> dict[str, AccountRow]:
            return {}

    position = {row.account_id: index for index, row in enumerate(rows)}
    known = [heard(row) for row in rows[::2]]

    async def slowly() -> AsyncIterator[AccountEntry]:
        for index, entry in enumerate(known):
            yield entry
            if index % 1000 == 0:
                await asyncio.sleep(0)

    longest, done = 0.0, False

    async def watch() -> None:
        nonlocal longest
        last = time.thread_time()
        while not done:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest = max(longest, now - last)
            last = now

    async def publish(event: AccountStateChanged) -> None:
        return None

    watcher = asyncio.create_task(watch())
    report = await reconcile_once(
        Pages(), slowly(), publish, 1000, range(PARTITIONS), partition_count=PARTITIONS, now=lambda: NOW
    )
    done = True
    await watcher
    assert (report.rows, report.announced) == (100_000, 50_000)
    assert longest < 0.05
