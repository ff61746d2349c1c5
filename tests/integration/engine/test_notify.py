"""Hot accounts where the server has NOTIFY (RFC 5465): other folders are looked at when they move, not when polled.

What NOTIFY says is a hint and nothing more: it may be missing, late, wrong or in the middle of another answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.engine import letter
from tests.fixtures.runner import Running, until
from tests.fixtures.services import MailUser
from tests.integration.engine.conftest import Run
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import FULL, Profile

WITHOUT_CONDSTORE = FULL - {"CONDSTORE", "QRESYNC"}


async def watched(running: Running) -> None:
    """A hot account at rest: history read, IDLE begun."""
    await running.start(hot=True)
    await until(lambda: running.runner.phase == "running" and running.runner.watching, what="watching")
    await until(lambda: running.server.count("IDLE") >= 1, what="IDLE")


async def rests(running: Running) -> None:
    """The watching connection is in IDLE and has nothing left to do."""
    await until(lambda: running.server.commands[-1] == "IDLE", what="rest")


def filled(account: Account) -> Account:
    """INBOX and two folders with some mail."""
    for name in ("Sent", "Work"):
        account.create(name)
    for number, box in enumerate(account.mailboxes.values()):
        for n in range(5):
            box.deliver(letter(100 * number + n))
    return account


@pytest.mark.parametrize("kind", [FULL, WITHOUT_CONDSTORE], ids=["full", "without condstore"])
async def test_s10_a_change_in_another_folder_is_seen_at_once(kind: frozenset[str], account: Account, run: Run) -> None:
    """Arrival, flag, removal, move out of INBOX, folders made, renamed, deleted: over the connection that watches."""
    filled(account)
    running = await run(kind, POLL_WARM=3600.0)
    await watched(running)
    logins = running.server.logins["user"]
    inbox, sent, work = (account.mailboxes[name] for name in ("INBOX", "Sent", "Work"))

    async def seen(what: str) -> None:
        await until(lambda: running.agrees(account), what=what)
        # The next change must meet nobody at work: without mod-sequences no number would tell of a flag that changes
        # while its folder is open, and a look that ends as a message moves sees the move in two halves.
        await rests(running)

    sent.deliver(letter(900))
    await seen("arrival")
    work.set_flags(2, ["\\Flagged"])
    await seen("flag")
    work.expunge(3)
    await seen("removal")
    inbox.move_to(1, work)
    await seen("move")
    assert [e["type"] for e in running.events()].count("message.moved") == 1
    assert running.server.logins["user"] == logins
    account.create("Born").deliver(letter(901))
    await seen("a new folder")  # whose history the poller reads, over a connection of its own
    account.rename("Born", "Grown")
    await seen("a renamed folder")
    account.delete("Grown")
    await seen("a deleted folder")
    inbox.deliver(letter(902))
    await seen("an arrival in INBOX")
    assert running.server.logins["user"] == logins + 1
    assert running.runner.failure is None


@pytest.mark.parametrize("answer", ["BAD unknown", "NO not for you"])
async def test_notify_refused_leaves_idle(answer: str, account: Account, run: Run) -> None:
    """INBOX is watched as ever, other folders are polled."""
    filled(account)
    running = await run(Profile(FULL, refuses={r"^NOTIFY": answer}), POLL_WARM=3600.0)
    await watched(running)
    account.mailboxes["INBOX"].deliver(letter(900))
    await until(lambda: running.agrees(account), what="the arrival")
    account.mailboxes["Sent"].deliver(letter(901))
    running.runner.poke()
    await until(lambda: running.agrees(account), what="the poll")
    assert len(running.server.refused) == 1
    assert running.runner.failure is None


async def test_a_server_that_knows_fewer_events_is_asked_for_those(account: Account, run: Run) -> None:
    """NO [BADEVENT ...]: arrivals and removals are what matters."""
    filled(account)
    refuses = {r"^NOTIFY .*MailboxName": "NO [BADEVENT (MessageNew MessageExpunge)] some are not supported"}
    running = await run(Profile(FULL, refuses=refuses), POLL_WARM=3600.0)
    await watched(running)
    account.mailboxes["Sent"].deliver(letter(900))
    await until(lambda: running.agrees(account), what="the arrival")


async def test_notify_can_be_switched_off(account: Account, run: Run) -> None:
    """`IMAP_NOTIFY=false`: not asked for."""
    running = await run(FULL, POLL_WARM=3600.0, IMAP_NOTIFY=False)
    await watched(running)
    assert running.server.count("NOTIFY") == 0


async def test_an_overflow_is_looked_at_and_notify_asked_for_again(account: Account, run: Run) -> None:
    """RFC 5465 section 5.8: the server has ended all notifications. Not for ever: then polls must do."""
    filled(account)
    running = await run(FULL, POLL_WARM=3600.0)
    server = running.server
    server.bend(r"IDLE-PUSH", lambda lines: [b"* OK [NOTIFICATIONOVERFLOW] too much\r\n", *lines], times=5)
    await watched(running)
    asked = []
    for n in range(5):
        account.mailboxes["Sent"].deliver(letter(900 + n))
        await until(lambda: running.agrees(account), what=f"arrival {n}")
        await rests(running)
        asked.append(server.count("NOTIFY"))
    assert 3 <= asked[2] == asked[4]
    assert running.runner.failure is None


async def test_what_notify_says_is_never_a_fact(account: Account, run: Run) -> None:
    """Invented numbers and folders lead to looks, and those to nothing; looks are apart, and come to an end."""
    filled(account)
    running = await run(FULL, POLL_WARM=3600.0)
    server = running.server
    lies = (
        b'* STATUS "Sent" (MESSAGES 0 UIDNEXT 99 UIDVALIDITY 1 HIGHESTMODSEQ 999999)\r\n',
        b'* STATUS "Nowhere" (MESSAGES 3 UIDNEXT 4)\r\n',
        b'* LIST (\\NonExistent) "/" "Work"\r\n',
        b'* LIST () "/" "New" ("OLDNAME" ("Sent"))\r\n',
    )
    server.bend(r"IDLE-PUSH", lambda lines: [*lies, *lines])
    await watched(running)
    before, lists = len(running.events()), server.count("LIST")
    account.mailboxes["INBOX"].deliver(letter(900))
    await until(lambda: running.agrees(account), what="the arrival")
    await until(lambda: server.count("LIST") > lists, what="a look")
    assert [e["type"] for e in running.events()[before:]] == ["message.added"]
    await rests(running)
    assert server.count("LIST") - lists <= 5


async def test_lines_of_notify_within_the_answer_to_list(account: Account, run: Run) -> None:
    """Taken for lines of the list, they make it wrong for one look; the next one is made at once and puts it right."""
    filled(account)
    running = await run(FULL, POLL_WARM=3600.0)
    server = running.server
    await watched(running)
    stray = (
        b'* LIST () "/" "Phantom"\r\n',
        b'* STATUS "Phantom" (MESSAGES 1 UIDNEXT 2)\r\n',
        b'* STATUS "Sent" (MESSAGES 4 UIDNEXT 3)\r\n',
    )
    server.bend(r"^LIST", lambda lines: [*stray, *lines], times=1)
    account.mailboxes["Work"].deliver(letter(900))
    await until(lambda: any(e["type"] == "mailbox.deleted" for e in running.events()), what="the phantom is gone")
    await until(lambda: running.agrees(account), what="agreement")
    assert [e["type"] for e in running.events()].count("message.removed") == 0


async def test_many_changes_are_looked_for_together(account: Account, run: Run) -> None:
    """A client that files a hundred messages one by one does not cause a hundred looks."""
    filled(account)
    running = await run(FULL, POLL_WARM=3600.0)
    await watched(running)
    lists = running.server.count("LIST")
    for n in range(100):
        account.mailboxes["Sent"].deliver(letter(900 + n))
        await asyncio.sleep(0.005)
    await until(lambda: running.agrees(account), what="all of them")
    assert running.server.count("LIST") - lists <= 20


@pytest.fixture
async def on_dovecot(mail_user: MailUser) -> AsyncIterator[Running]:
    """A runner on a real Dovecot."""
    running = Running(mail_user.server, POLL_WARM=600.0, IMAP_COMMAND_TIMEOUT_S=30.0)  # type: ignore[arg-type]
    row = running.directory.row
    assert row is not None
    running.directory.row = replace(row, host=mail_user.host, port=mail_user.port, username=mail_user.name)
    running.sources.password = mail_user.password
    yield running
    await running.stop()


async def test_s10_a_change_in_another_folder_on_dovecot(mail_user: MailUser, on_dovecot: Running) -> None:
    """Reaches the log long before POLL_WARM, without another login. Dovecot compares its list every 30 s at worst."""
    running = on_dovecot

    def act(work: Any) -> None:
        with mail_user.client() as client:
            work(client)

    def prepare(client: Any) -> None:
        client.create_folder("Archive")
        for name in ("INBOX", "Sent", "Archive"):
            client.append(name, letter(hash(name) % 1000))

    def added(subject: str) -> bool:
        return any(e["type"] == "message.added" and e["headers"]["subject"] == subject for e in running.events())

    await asyncio.to_thread(act, prepare)
    await running.start(hot=True)
    await until(lambda: running.runner.phase == "running" and running.runner.watching, what="watching")
    logins = mail_user.server.logins(mail_user.name)
    started = time.monotonic()
    await asyncio.to_thread(act, lambda client: client.append("Archive", letter(900)))
    await until(lambda: added("letter 900"), seconds=60, what="an arrival in Archive")

    def move(client: Any) -> None:
        client.select_folder("INBOX")
        client.move(client.search(), "Archive")

    await asyncio.to_thread(act, move)
    await until(lambda: any(e["type"] == "message.moved" for e in running.events()), seconds=60, what="a move")
    assert time.monotonic() - started < 240.0  # POLL_WARM is 600 s
    assert mail_user.server.logins(mail_user.name) == logins + 2  # those of the other client
    assert running.runner.failure is None
