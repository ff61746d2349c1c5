"""Owner commands on the data plane: sync_now, resync, backfill, verify; refusals with their codes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest

from streams.commands.operations import Backfill, Resync, SyncNow, Verify
from streams.errors import MailstreamsError
from streams.projection.truths import ProjectedTruths
from streams.sync.operations import Operations
from streams.sync.verification import Places
from tests.fixtures.services import MailUser
from tests.integration.sync.conftest import Plane, eventually
from tests.integration.sync.folding import LogReader
from tests.integration.sync.test_host import agrees, letter


def unheard(fraction: float, *, counts: Mapping[str, int] | None = None, message: str | None = None) -> None:
    """Progress that nobody follows, held to its rules."""
    assert 0.0 <= fraction <= 1.0


class DatabaseLikeTheLog:
    """A database that says what the log says, until a test spoils it."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._log = ProjectedTruths(plane.settings)
        self.spoiled: dict[tuple[str, int, int], frozenset[str] | None] = {}

    async def folded_log(self, account_id: str, partition: int) -> Places:
        return await self._log.folded_log(account_id, partition)

    async def database(self, account_id: str) -> Places:
        places = dict(await self._log.folded_log(account_id, self._plane.partition(account_id)))
        for place, flags in self.spoiled.items():
            if flags is None:
                places.pop(place, None)
            else:
                places[place] = flags
        return places


async def test_sync_now_tells_what_changed(plane: Plane, reader: LogReader, mail_user: MailUser) -> None:
    account = await plane.add(mail_user)
    host = await plane.host(POLL_WARM=3600.0, POLL_COLD=3600.0)
    await eventually(lambda: agrees(reader, account, mail_user))
    operations = Operations(host, DatabaseLikeTheLog(plane))
    with mail_user.client() as client:
        client.append("INBOX", letter(1))
        client.append("INBOX", letter(2))
    result = await operations.sync_now(account, SyncNow(mailbox="inbox"), unheard)
    assert result["changes"] == {"message.added": 2}
    assert (await operations.sync_now(account, SyncNow(), unheard))["changes"] == {}
    assert (await operations.resync(account, Resync(), unheard))["changes"] == {}


async def test_refusals_have_their_codes(plane: Plane, reader: LogReader, mail_user: MailUser) -> None:
    account = await plane.add(mail_user)
    host = await plane.host()
    await eventually(lambda: agrees(reader, account, mail_user))
    operations = Operations(host, DatabaseLikeTheLog(plane))
    with pytest.raises(MailstreamsError) as unknown:
        await operations.sync_now(account, SyncNow(mailbox="No such"), unheard)
    assert unknown.value.code == "mailbox_unknown"
    with pytest.raises(MailstreamsError) as mismatch:
        await operations.sync_now(account, SyncNow(mailbox="INBOX", uidvalidity=1), unheard)
    assert mismatch.value.code == "uidvalidity_mismatch"
    with pytest.raises(MailstreamsError) as not_live:
        await operations.sync_now("00000000-0000-0000-0000-000000000000", SyncNow(), unheard)
    assert not_live.value.code == "not_live"


async def test_s17_history_by_count_then_all(plane: Plane, reader: LogReader, mail_user: MailUser) -> None:
    """S17: a limit at first sight leaves old mail alone; a command fetches the newest few of it, another the rest."""
    with mail_user.client() as client:
        for n in range(30):
            client.append("INBOX", letter(n), msg_time=_day(2020, 1, 1 + n % 28))
        client.append("INBOX", letter(99))
    account = await plane.add(mail_user)
    host = await plane.host(SYNC_SINCE="30")
    operations = Operations(host, DatabaseLikeTheLog(plane))
    runner = await eventually(lambda: host.runner(account))
    await eventually(lambda: runner.phase == "running")
    await eventually(lambda: _inbox(reader, account, 1))
    result = await operations.backfill(account, Backfill(mailbox="INBOX", count=10), unheard)
    assert result["messages_added"] in (9, 10)
    await eventually(lambda: _inbox(reader, account, result["messages_added"] + 1))
    await operations.backfill(account, Backfill(mailbox="INBOX"), unheard)
    await eventually(lambda: agrees(reader, account, mail_user))
    nothing = await operations.backfill(account, Backfill(since=date(2020, 1, 1)), unheard)
    assert nothing["messages_added"] == 0


async def test_verify_finds_what_differs_and_changes_nothing(
    plane: Plane, reader: LogReader, mail_user: MailUser
) -> None:
    with mail_user.client() as client:
        for n in range(5):
            client.append("INBOX", letter(n))
    account = await plane.add(mail_user)
    host = await plane.host()
    await eventually(lambda: agrees(reader, account, mail_user))
    truths = DatabaseLikeTheLog(plane)
    operations = Operations(host, truths)
    clean = await operations.verify(account, Verify(deep=True, recheck_s=0), unheard)
    assert (clean["differences"], clean["messages"]) == (0, 5)
    places = await truths.folded_log(account, plane.partition(account))
    first, second, *_ = sorted(p for p in places)
    truths.spoiled = {first: None, second: frozenset({"\\Flagged"}), (first[0], first[1], 77): frozenset()}
    spoiled: dict[str, Any] = dict(await operations.verify(account, Verify(recheck_s=0.1), unheard))
    kinds = sorted((f["in"], f["kind"], f["uid"]) for f in spoiled["findings"])
    assert kinds == [
        ("database", "extra", 77),
        ("database", "flags", second[2]),
        ("database", "missing", first[2]),
    ]
    assert spoiled["differences"] == 3
    assert await agrees(reader, account, mail_user)


async def _inbox(reader: LogReader, account: str, messages: int) -> bool:
    folds = await reader.read()
    return len(folds[account].by_name()["INBOX"]) == messages


def _day(year: int, month: int, day: int) -> Any:
    from datetime import UTC, datetime

    return datetime(year, month, day, 12, tzinfo=UTC)
