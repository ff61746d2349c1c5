"""The main job, shard by shard: arrivals, flags, removals, folders; fold of the log = server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from streams.domain.ownership import AccountEntry, ShardPhase
from streams.local.dovecot import Dovecot
from tests.fixtures.services import MailUser
from tests.integration.sync.conftest import Plane, TestMembership, eventually
from tests.integration.sync.folding import LogReader, server_view
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import QRESYNC, ImapServer


def letter(n: int, *, size: int = 200) -> bytes:
    return (
        f"From: A <a{n}@example.test>\r\nTo: b@example.test\r\nSubject: letter {n}\r\n"
        f"Message-ID: <{n}@example.test>\r\nDate: Mon, 30 Nov 2026 10:00:00 +0000\r\n\r\n".encode()
        + b"x" * size
        + b"\r\n"
    )


async def agrees(reader: LogReader, account: str, user: MailUser) -> bool:
    folds = await reader.read()
    with user.client() as client:
        server = server_view(client)
    return folds[account].by_name() == server


@pytest.mark.parametrize("hidden", [False, True], ids=["qresync", "no_condstore"])
@pytest.mark.parametrize("tier", ["hot", "warm", "cold"])
async def test_s10_every_tier_ends_in_the_servers_state(
    plane: Plane, reader: LogReader, mail_user: MailUser, plain_mail_user: MailUser, tier: Any, hidden: bool
) -> None:
    """S10, S16, S17: the same script of changes, whatever the tier and the server; backfill first."""
    user = plain_mail_user if hidden else mail_user
    with user.client() as client:
        for n in range(25):
            client.append("INBOX", letter(n), flags=(b"\\Seen",) if n % 3 == 0 else ())
        client.create_folder("Work")
        client.append("Work", letter(100))
    account = await plane.add(user)
    host = await plane.host()
    await eventually(lambda: agrees(reader, account, user), what="backfill")
    runner = host.runner(account)
    assert runner is not None
    runner.set_tier(tier, "default")
    if tier == "hot":
        await eventually(lambda: runner.watching)
    with user.client() as client:
        client.append("INBOX", letter(50))
        client.append("Archive", letter(51))
        client.select_folder("INBOX")
        client.add_flags([1, 2], [b"\\Flagged", b"custom"])
        client.remove_flags([1], [b"\\Seen"])
        client.move([5, 6], "Work")
        client.copy([7], "Archive")
        client.add_flags([8], [b"\\Deleted"])
        client.expunge()
        client.create_folder("New/Deep")
        client.append("New/Deep", letter(60))
        client.rename_folder("Work", "Work2")
    await eventually(lambda: agrees(reader, account, user), what=f"changes in tier {tier}")
    with user.client() as client:
        client.delete_folder("Work2")
    await eventually(lambda: agrees(reader, account, user), what="folder deleted")
    fold = reader.folds[account]
    assert "account.caught_up" in fold.kinds
    assert "mailbox.renamed" in fold.kinds
    for _ in range(5):
        if "message.moved" in fold.kinds:
            break
        # a look that was under way as the messages moved has seen arrivals and removals
        with user.client() as client:
            client.select_folder("INBOX")
            client.move(client.search()[:1], "Archive")
        await eventually(lambda: agrees(reader, account, user), what="another move")
    assert "message.moved" in fold.kinds
    assert len(set(reader.writers[account])) == 1


async def test_s2_a_new_owner_serves_first_who_has_the_newest_mail_and_a_session_displaces(
    plane: Plane, dovecot: Dovecot, new_mail_user: Callable[[Dovecot], MailUser]
) -> None:
    """What an earlier owner recorded decides, though nobody has looked at the mail since."""
    by_age: list[str] = []
    for days in (3, 1, 2):
        user = new_mail_user(dovecot)
        with user.client() as client:
            client.append("INBOX", letter(days), msg_time=datetime.now(UTC) - timedelta(days=days))
        while plane.partition(account := await plane.add(user)) != 0:
            del plane.entries[account]
            await plane.store.remove(account)
        by_age.append(account)
    oldest, newest, middle = by_age
    before = await plane.host()
    await eventually(
        lambda: all((r := before.runner(a)) is not None and r.mail_known for a in by_age), what="all mail was looked at"
    )
    await before.stop(3.0)
    plane.hosts.remove(before)

    host = await plane.host("w2", MAX_ACCOUNTS_PER_WORKER=1)
    await eventually(lambda: host.snapshot().unserved == 2)
    assert [a for a in by_age if host.runner(a) is not None] == [newest]

    host.heat_changed(0, oldest, datetime.now(UTC) + timedelta(minutes=5))
    await eventually(lambda: host.runner(oldest), what="an active user's account is served")
    assert [host.runner(a) for a in (newest, middle)] == [None, None]
    assert host.snapshot().unserved == 2

    host.account_forgotten(0, oldest)
    await eventually(lambda: host.runner(newest), what="the place goes to the newest mail that waits")
    assert host.runner(middle) is None


async def test_s6_accounts_of_a_partition_that_goes_elsewhere_end_idle_and_log_out(plane: Plane) -> None:
    mailboxes = Account("walker", "secret")
    mailboxes.mailboxes["INBOX"].deliver(letter(1))
    async with ImapServer([mailboxes], QRESYNC) as server:
        where = SimpleNamespace(host="127.0.0.1", port=server.port, name="walker", password="secret")
        account = await plane.add(where)  # type: ignore[arg-type]
        host = await plane.host()
        await eventually(lambda: (runner := host.runner(account)) is not None and runner.mail_known)
        runner = host.runner(account)
        assert runner is not None
        runner.set_tier("hot", "session")
        await eventually(lambda: server.count("IDLE") and runner.watching, what="INBOX is watched")
        await eventually(lambda: server.open == 1, what="nothing else is going on")
        await plane.assign(host, set())
        await eventually(lambda: server.open == 0, what="its connection is closed")
        assert server.count("LOGOUT") == sum(server.logins.values())


async def test_s3_accounts_that_another_owner_heard_of_are_served_after_the_recovery(
    plane: Plane, mail_user: MailUser
) -> None:
    """This worker slept through a generation: what it knows of a shard that it holds on is older than the table."""
    host = await plane.host()
    everything = frozenset(range(plane.settings.PARTITIONS))
    account = await plane.add(mail_user)  # nobody tells the host: another owner heard of it
    await host.narrowed(everything, TestMembership(), plane.accounts)
    assert host.runner(account) is None
    await plane.assign(host)
    await eventually(lambda: host.runner(account) is not None, what="the account is served")
    entry = plane.entries[account]
    assert entry.version is not None
    plane.entries[account] = AccountEntry(account, entry.user_id, "disabled", entry.version + 1)
    await plane.assign(host)
    await eventually(lambda: host.runner(account) is None, what="the account was disabled meanwhile")
    plane.entries[account] = AccountEntry(account, entry.user_id, "live", entry.version + 2)
    await plane.assign(host)
    await eventually(lambda: host.runner(account) is not None, what="the account is served again")
    del plane.entries[account]
    await plane.assign(host)
    await eventually(lambda: host.runner(account) is None, what="nobody speaks of the account any more")


async def test_s3_before_the_tables_are_recovered_nothing_starts(plane: Plane, mail_user: MailUser) -> None:
    """All shards were closed for want of a proof, then their partitions came back: their accounts are not known yet."""
    account = await plane.add(mail_user)
    host = await plane.host()
    everything = frozenset(range(plane.settings.PARTITIONS))

    def all_run() -> bool:
        shards = [host.shard(partition) for partition in everything]
        return all(shard is not None and shard.phase is ShardPhase.RUNNING for shard in shards)

    await eventually(all_run)  # a Kafka client that is cancelled in its start leaves its socket to the collector
    await eventually(lambda: host.runner(account) is not None)
    host.unassigned()
    await host.narrowed(everything, TestMembership(), plane.accounts)
    assert host.shard(plane.partition(account)) is None
    await plane.assign(host)
    await eventually(lambda: host.runner(account) is not None, what="the account is served")
    await eventually(all_run)
