"""`accounts remove` against a whole worker (S8): sockets close, the log tells that the mail is gone, the database has
none of it, and an account beside it does not notice.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg

from streams.local.dovecot import Dovecot
from tests.e2e.conftest import AddAccount, NewFleet
from tests.e2e.sessions import sessions
from tests.rig.fleet import Fleet
from tests.rig.letters import ordinary
from tests.storm.checker.log import read_raw

HELD = ("messages", "places", "mailboxes", "unreadable", "sync_status", "tiers")
"""Tables of the projection in which nothing of a removed account may be left."""


async def held(fleet: Fleet, account: str) -> dict[str, int]:
    """Rows that the projection has of an account, by table; tables without any are left out."""
    connection = await asyncpg.connect(fleet.dsn)
    try:
        counts = {
            table: await connection.fetchval(f"SELECT count(*) FROM mail.{table} WHERE account_id = $1::uuid", account)
            for table in HELD
        }
    finally:
        await connection.close()
    return {table: count for table, count in counts.items() if count}


async def last_values(fleet: Fleet, topic: str, account: str) -> bytes | None:
    """What a compacted topic ends up with for an account."""
    found: bytes | None = None
    async for record in read_raw(fleet.kafka, topic):
        if record.key == account.encode():
            found = record.value
    return found


async def test_s8_accounts_remove_with_a_whole_worker(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    fleet = await new_fleet({"TIER_SESSION_GRACE_MIN": "5"})
    leaving, staying = [await add_account(fleet, dovecot, partition=1) for _ in range(2)]
    for mailer in (leaving, staying):
        await asyncio.to_thread(mailer.append_many, "INBOX", [ordinary(number) for number in range(5)])
        await asyncio.to_thread(mailer.create, "Work")
        await asyncio.to_thread(mailer.append, "Work", ordinary(9))
    worker = await fleet.ready_worker("one")
    await fleet.caught_up()
    await fleet.projected()
    gone, kept = leaving.login.account, staying.login.account
    assert {"messages", "places", "mailboxes"} <= (await held(fleet, gone)).keys()
    for mailer in (leaving, staying):
        await asyncio.to_thread(mailer.close)
        await fleet.active(mailer.login.account)

    async def open_sockets() -> list[bool]:
        return [await sessions(dovecot, mailer.login.username) > 0 for mailer in (leaving, staying)]

    await fleet.eventually(open_sockets, lambda found: found == [True, True], what="both are watched")
    folders = {event.body["mailbox_id"] for event in fleet.watch.events if event.account == gone and _is_folder(event)}
    before = await held(fleet, kept)

    code, output = await fleet.run("accounts", "remove", gone, "--yes", "--json")
    assert code == 0, output
    assert json.loads(output)["state"] == "deleted"

    await fleet.eventually(open_sockets, lambda found: found == [False, True], what="the sockets of one are closed")

    def told() -> bool:
        deleted = {
            e.body["mailbox_id"] for e in fleet.watch.events if e.account == gone and e.kind == "mailbox.deleted"
        }
        return deleted == folders

    await fleet.watch.until(told, within_s=30, what="each folder is told to be gone")
    numbers = [event.sequence for event in fleet.watch.events if event.account == gone]
    assert numbers == list(range(1, len(numbers) + 1))

    async def rows() -> dict[str, int]:
        return await held(fleet, gone)

    await fleet.eventually(rows, lambda found: not found, what="nothing of it is in the projection")
    for topic in ("account.sync_status", "account.tier_changed"):
        assert await last_values(fleet, topic, gone) is None, f"{topic} is retracted"
        assert await last_values(fleet, topic, kept) is not None
    code, output = await fleet.run("accounts", "show", gone)
    assert "deleted" in output or code == 1, output

    # The one beside it is as it was, and goes on.
    assert (await held(fleet, kept)) == before
    await asyncio.to_thread(staying.append, "INBOX", ordinary(50))
    await fleet.at_rest(stopped={gone})
    assert await worker.stop() == 0
    for secret in fleet.secrets:
        assert secret not in worker.log_text()


def _is_folder(event: Any) -> bool:
    return bool(event.kind == "mailbox.discovered")
