"""Case 11, the whole kind: what a server offers and then refuses is done without. No session ends, nothing is missed,
and what was refused once is not asked for with each connection again.
"""

from __future__ import annotations

import re

import pytest

from streams.imap.values import IdleOutcome, Options
from streams.sync import runner as runner_module
from tests.fixtures.engine import letter
from tests.fixtures.runner import until
from tests.integration.engine.conftest import Run, Start
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import FULL, Profile

OFFERED = FULL | {"COMPRESS=DEFLATE"}
REFUSALS = {
    "ESEARCH": r"SEARCH RETURN",
    "LIST-STATUS": r"^LIST .*STATUS \(",
    "LIST-EXTENDED": r"^LIST .*RETURN",
    "SPECIAL-USE": r"^LIST .*SPECIAL-USE",
    "CONDSTORE": r"CONDSTORE|MODSEQ|CHANGEDSINCE",
    "CONDSTORE in EXAMINE": r"^ENABLE|^EXAMINE .*CONDSTORE",
    "CONDSTORE in FETCH": r"FETCH .*(MODSEQ|CHANGEDSINCE)",
    "CONDSTORE in STATUS": r"STATUS .*HIGHESTMODSEQ",
    "CHANGEDSINCE": r"CHANGEDSINCE",
    "QRESYNC": r"QRESYNC|VANISHED",
    "VANISHED": r"VANISHED",
    "OBJECTID in STATUS": r"STATUS .*MAILBOXID",
    "STATUS items without LIST-STATUS": r"^LIST .*RETURN|STATUS .*(HIGHESTMODSEQ|MAILBOXID)",
    "ENABLE": r"^ENABLE",
    "ID": r"^ID ",
    "COMPRESS": r"^COMPRESS",
    "NAMESPACE": r"^NAMESPACE",
    "NOTIFY": r"^NOTIFY",
    "IDLE": r"^IDLE",
    "UNSELECT": r"^UNSELECT",
    "all of them": (
        r"RETURN|CONDSTORE|MODSEQ|CHANGEDSINCE|MAILBOXID"
        r"|^(ENABLE|ID|COMPRESS|NAMESPACE|NOTIFY|IDLE|UNSELECT)\b"
    ),
}


@pytest.mark.parametrize("answer", ["BAD what is that", "NO not here"], ids=["bad", "no"])
@pytest.mark.parametrize("pattern", REFUSALS.values(), ids=REFUSALS)
async def test_case_11_what_is_offered_and_refused_is_done_without(
    pattern: str, answer: str, account: Account, start: Start
) -> None:
    inbox = account.mailboxes["INBOX"]
    sent = account.create("Sent", attributes=("\\Sent",))
    for n in range(30):
        inbox.deliver(letter(n))
    engine = await start(Profile(OFFERED, refuses={pattern: answer}), options=Options(compress=True))
    server = engine.server
    await engine.catch_up()
    engine.agrees(account)

    inbox.set_flags(3, ["\\Flagged"])
    inbox.expunge(4)
    inbox.move_to(5, sent)
    inbox.deliver(letter(100))
    await engine.look()
    engine.agrees(account)
    assert len(engine.of("message.moved")) == 1
    with engine.quiet():
        await engine.look()

    session = await engine.connect()
    await session.namespace()
    await session.examine(b"INBOX")
    await session.idle(timeout_s=0.02)
    session.take_changes()
    assert await session.idle(timeout_s=0.02) is IdleOutcome.RENEW if session.has("IDLE") else True
    await session.unselect()
    await session.notify()
    assert session.alive
    assert server.logins["user"] == server.peak == 1
    assert server.refused, "the test refuses nothing that is sent"

    await engine.hang_up()
    refused = len(server.refused)
    inbox.set_flags(6, ["\\Seen"])
    inbox.expunge(7)
    inbox.deliver(letter(101))
    await engine.look()
    engine.agrees(account)
    assert server.logins["user"] == 2
    asked_again = [line for line in server.refused[refused:] if answer[:3] == "BAD" or not _greets(line)]
    assert asked_again == [], "refused before, and tried again"


def _greets(line: str) -> bool:
    """Commands right after the login: a NO to them may have been about that moment."""
    return re.match(r"(ENABLE|ID|COMPRESS)\b", line) is not None


async def test_case_24_esearch_answered_as_search_is_asked_plainly(account: Account, start: Start) -> None:
    inbox = account.mailboxes["INBOX"]
    for n in range(5):
        inbox.deliver(letter(n))
    engine = await start(FULL)
    engine.server.bend(r"SEARCH RETURN", lambda lines: [b"* SEARCH 1 2 3\r\n", lines[-1]])
    await engine.catch_up()
    engine.agrees(account)
    assert engine.memory.refused == {"ESEARCH"}


async def test_a_search_that_is_refused_in_any_form_blames_no_capability(account: Account, start: Start) -> None:
    account.mailboxes["INBOX"].deliver(letter(1))
    engine = await start(Profile(FULL, refuses={r"UID SEARCH": "BAD no"}))
    await engine.look()
    await engine.history()
    assert engine.memory.refused == set()
    assert engine.state().mailboxes
    assert [box.record.aside is not None for box in engine.state().mailboxes.values()] == [True]


async def test_one_odd_mailbox_blames_no_status_item(account: Account, start: Start) -> None:
    """Case 67: STATUS refused for one folder says nothing about its items."""
    account.create("Odd")
    engine = await start(Profile(FULL - {"LIST-STATUS", "LIST-EXTENDED"}, refuses={r"STATUS .Odd": "BAD no"}))
    await engine.catch_up()
    assert engine.memory.refused == set()
    engine.agrees(account)


async def test_idle_refused_is_replaced_by_noop(account: Account, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hot account whose server refuses IDLE hears of new mail over the connection it has."""
    monkeypatch.setattr(runner_module, "NOOP_EVERY_S", 0.05)
    running = await run(Profile(FULL, refuses={r"^IDLE": "BAD disabled by policy"}), POLL_WARM=3600.0)
    await running.start(hot=True)
    await until(lambda: running.server.count("NOOP") > 1, what="NOOP instead of IDLE")
    logins = running.server.logins["user"]
    account.mailboxes["INBOX"].deliver(letter(1))
    await until(lambda: running.agrees(account), what="the arrival")
    assert running.server.count("IDLE") == 1
    assert running.server.logins["user"] == logins
    assert running.runner.failure is None
