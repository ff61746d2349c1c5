"""Odd answers as the engine meets them: what cannot be read is set aside alone, what is no data is not taken for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable

import pytest

from streams.errors import CommandTimedOut, ConnectionLost
from streams.imap.values import Limits
from tests.fixtures.engine import Engine, letter
from tests.integration.engine.conftest import Start
from tests.integration.engine.test_cursors import fill
from tests.scripted_imap.bending import Action, Drop, Hang
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import BARE, CONDSTORE, FULL, GMAIL, QRESYNC, Profile

QUICK = Limits(command_timeout_s=5.0, fetch_stall_timeout_s=0.3, fetch_timeout_s=5.0, logout_timeout_s=0.3)


def at_uid(uid: int, then: Callable[[bytes], Iterable[Action]]) -> Callable[[list[bytes]], list[Action]]:
    """A bend: the answer runs up to the line of a UID, then `then` decides how it goes on."""

    def bend(lines: list[bytes]) -> list[Action]:
        out: list[Action] = []
        for line in lines:
            if b"(UID %d " % uid in line:
                return [*out, *then(line)]
            out.append(line)
        return out

    return bend


def unreadable(engine: Engine) -> list[int]:
    return [event["uid"] for event in engine.of("message.unreadable")]


async def endure(engine: Engine, *, rounds: int = 12) -> int:
    """Passes and history until both go through; how many failed."""
    for failures in range(rounds):
        first = await engine.survive(engine.look())
        second = None if first else await engine.survive(engine.history())
        if first is None and second is None:
            return failures
        assert isinstance(first or second, ConnectionLost | CommandTimedOut)
        engine.now += 30
    raise AssertionError("it does not come to rest")


@pytest.mark.parametrize(
    "end",
    [lambda line: [line[: len(line) // 2], Drop()], lambda line: [line[: len(line) // 2], Hang()]],
    ids=["dropped", "silent"],
)
@pytest.mark.parametrize("live", [True, False], ids=["live", "history"])
async def test_case_45_one_message_that_ends_the_connection_is_set_aside(
    end: Callable[[bytes], list[Action]], live: bool, account: Account, start: Start
) -> None:
    """Mid-literal, each time: after a few tries the message stands aside, all others are in the log, INBOX first."""
    account.create("Other")
    engine = await start(QRESYNC, limits=QUICK)
    if live:
        await engine.catch_up()
    fill(account, 40)
    fill(account, 5, "Other", first=200)
    bend = engine.server.bend(r"UID FETCH .*HEADER", at_uid(7, end))
    failures = await endure(engine)
    assert failures <= 3
    assert unreadable(engine) == [7]
    assert set(engine.fold().by_name()["INBOX"]) == set(range(1, 41)) - {7}
    assert len(engine.fold().by_name()["Other"]) == 5
    # nothing more is lost over it until its time comes, and new mail arrives meanwhile
    fill(account, 1, first=300)
    await engine.look()
    assert 41 in engine.fold().by_name()["INBOX"]
    # its time comes, and it fails again: after everything else was published
    engine.now += 2 * 3600
    fill(account, 1, "Other", first=301)
    assert isinstance(await engine.survive(engine.look()), ConnectionLost | CommandTimedOut)
    assert len(engine.fold().by_name()["Other"]) == 6
    record = next(b.record for b in engine.state().mailboxes.values() if b.record.name == "INBOX")
    assert record.quarantined[7].attempts == 2
    with engine.quiet():
        await engine.look()
    # and once the server gives it, it is added
    bend.times = 0
    engine.now += 30 * 3600
    await engine.look()
    engine.agrees(account)
    assert engine.of("message.added")[-1]["origin"] == "repair"


async def test_case_45_a_literal_longer_than_its_bytes(account: Account, start: Start) -> None:
    """{100} followed by nine bytes and the tagged OK: deadline, drop, aside."""
    fill(account, 4)
    engine = await start(CONDSTORE, limits=QUICK)
    engine.server.bend(
        r"UID FETCH .*HEADER",
        lambda lines: [
            re.sub(rb"\{\d+\}\r\n.*", b"{100}\r\nSubject:)\r\n", line, flags=re.DOTALL) if b"(UID 4 " in line else line
            for line in lines
        ],
    )
    await endure(engine)
    assert unreadable(engine) == [4]
    assert set(engine.fold().by_name()["INBOX"]) == {1, 2, 3}


@pytest.mark.parametrize("kind", [QRESYNC, CONDSTORE, BARE], ids=["qresync", "condstore", "bare"])
@pytest.mark.parametrize("how", ["compared", "tried again", "renumbered"])
async def test_a_message_that_was_set_aside_and_goes_is_told_as_removed(
    how: str, kind: frozenset[str], account: Account, start: Start
) -> None:
    """Else its `message.unreadable` would stand in the log, and its row in the database, for ever."""
    fill(account, 5)
    inbox = account.mailboxes["INBOX"]
    engine = await start(kind)
    engine.server.bend(
        r"UID FETCH .*HEADER",
        lambda lines: [b"* 3 FETCH (UID 3)\r\n" if b"(UID 3 " in line else line for line in lines],
    )
    await engine.catch_up()
    assert {place[2] for place in engine.fold().unreadable} == {3}
    if how == "renumbered":
        engine.server.bends.clear()
        inbox.messages.reverse()
        inbox.renumber(1)
        engine.forget()
        await engine.hang_up()
        await engine.look()
        assert 3 in [event["uid"] for event in engine.of("message.removed")]
    else:
        inbox.expunge(3)
        if how == "tried again":
            engine.now += 7 * 3600
            engine.server.bend(r"UID SEARCH", lambda lines: lines[-1:], times=4)
        await engine.look()
    await engine.catch_up()
    assert engine.fold().unreadable == set()
    engine.agrees(account)
    assert not any(box.record.quarantined for box in engine.state().mailboxes.values())


@pytest.mark.parametrize("header", [b"", b"\r\n", b" \r\n\r\n"], ids=["nothing", "end", "blanks"])
async def test_case_46_messages_without_any_header(header: bytes, account: Account, start: Start) -> None:
    """Stored, with empty headers and an id from their place; two of them are two messages."""
    inbox = account.mailboxes["INBOX"]
    for _ in range(2):
        inbox.deliver(header)
    engine = await start(CONDSTORE)
    await engine.catch_up()
    added = engine.of("message.added")
    assert [e.get("headers", {}) for e in added] == [{}, {}]
    assert len({e["message_id"] for e in added}) == 2
    await engine.look(full=True)
    engine.agrees(account)


async def test_case_48_a_missing_item_is_not_an_empty_one(account: Account, start: Start) -> None:
    """FETCH answered with the UID alone: aside, never an empty mail; later it is read."""
    fill(account, 5)
    engine = await start(CONDSTORE)
    bend = engine.server.bend(
        r"UID FETCH .*HEADER",
        lambda lines: [b"* 3 FETCH (UID 3)\r\n" if b"(UID 3 " in line else line for line in lines],
    )
    await engine.catch_up(passes=1)
    assert unreadable(engine) == [3]
    assert set(engine.fold().by_name()["INBOX"]) == {1, 2, 4, 5}
    bend.times = 0
    engine.now += 2 * 3600
    await engine.look()
    engine.agrees(account)


@pytest.mark.parametrize(
    "structure",
    [b'("HTML"")', b'("ALTERNATIVE")', b"(() NIL ((", b'("TEXT" "PLAIN" () NIL NIL NIL 5 1)', b'("""" "x")'],
)
async def test_cases_52_53_a_structure_that_does_not_parse_costs_the_structure(
    structure: bytes, account: Account, start: Start
) -> None:
    """Identity and headers come from header bytes; on an error the message is fetched singly, without BODYSTRUCTURE."""
    fill(account, 5)
    engine = await start(CONDSTORE)
    engine.server.bend(
        r"UID FETCH .*BODYSTRUCTURE",
        lambda lines: [
            line[: line.index(b"BODYSTRUCTURE")] + b"BODYSTRUCTURE " + structure + b")\r\n"
            if b"(UID 2 " in line
            else line
            for line in lines
        ],
    )
    await engine.catch_up()
    engine.agrees(account)
    assert unreadable(engine) == []
    assert not any("ENVELOPE" in command for command in engine.server.commands)


async def test_case_52_an_answer_that_tells_no_uid(account: Account, start: Start) -> None:
    """A FETCH line broken before its UID: the message is found out and read alone."""
    fill(account, 6)
    engine = await start(CONDSTORE)
    engine.server.bend(
        r"UID FETCH .*BODYSTRUCTURE",
        lambda lines: [b"* 3 FETCH (FLAGS ((\r\n" if b"(UID 3 " in line else line for line in lines],
    )
    await engine.catch_up()
    engine.agrees(account)


@pytest.mark.parametrize("answer", [b"NO [SERVERBUG] cannot", b"BAD syntax"], ids=["no", "bad"])
async def test_case_52_a_refused_message_is_found_out(answer: bytes, account: Account, start: Start) -> None:
    """NO or BAD to every FETCH that holds one UID: the window is halved until it stands alone; the connection stays."""
    fill(account, 60)
    engine = await start(CONDSTORE)

    def bend(lines: list[bytes]) -> list[Action]:
        if any(b"(UID 33 " in line for line in lines):
            return [lines[-1].split()[0] + b" " + answer + b"\r\n"]
        return list(lines)

    engine.server.bend(r"UID FETCH", bend)
    await engine.catch_up(passes=1)
    assert unreadable(engine) == [33]
    assert set(engine.fold().by_name()["INBOX"]) == set(range(1, 61)) - {33}
    assert engine.server.logins["user"] == 1


async def test_a_server_that_refuses_structures_is_not_asked_for_them(account: Account, start: Start) -> None:
    """BAD to every FETCH with BODYSTRUCTURE: soon it is left out."""
    fill(account, 100)
    engine = await start(CONDSTORE)
    engine.server.bend(r"BODYSTRUCTURE", lambda lines: [lines[-1].split()[0] + b" BAD no\r\n"])
    await engine.catch_up()
    engine.agrees(account)
    assert engine.server.count("UID FETCH") < 60


async def test_a_mailbox_in_which_nothing_can_be_read_is_set_aside(account: Account, start: Start) -> None:
    """NO to every FETCH: bounded tries, the folder says why, the others go on."""
    account.create("Bad")
    for n in range(200):
        account.mailboxes["Bad"].deliver(letter(n, subject="bad"))
    fill(account, 5, first=900)
    engine = await start(CONDSTORE)

    def bend(lines: list[bytes]) -> list[Action]:
        if any(b"Subject: bad" in line for line in lines):
            return [lines[-1].split()[0] + b" NO [SERVERBUG] no\r\n"]
        return list(lines)

    engine.server.bend(r"UID FETCH", bend)
    await engine.catch_up(passes=1)
    box = next(b for b in engine.state().mailboxes.values() if b.record.name == "Bad")
    assert box.record.aside is not None
    assert box.record.aside.startswith("command_rejected")
    assert engine.server.count("UID FETCH") < 100
    assert len(engine.fold().by_name()["INBOX"]) == 5


async def test_case_66_containers_are_listed_and_never_opened(account: Account, start: Start) -> None:
    """\\Noselect: discovered as what it is; no STATUS, no EXAMINE."""
    account.create("p", attributes=("\\HasChildren",), selectable=False)
    account.create("p/q")
    fill(account, 2, "p/q")
    for kind in (CONDSTORE, BARE):
        engine = await start(kind)
        await engine.catch_up()
        engine.agrees(account)
        found = {e["mailbox"]: e.get("selectable", True) for e in engine.of("mailbox.discovered")}
        assert found == {"INBOX": True, "p": False, "p/q": True}
        assert not any(re.match(r'(STATUS|EXAMINE) "?p"?( |$)', c) for c in engine.server.commands)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[NOPERM] no", "mailbox_permission"),
        ("whatever", "mailbox_unusable"),
        ("[INUSE] locked", "mailbox_busy"),
        ("[UNAVAILABLE] backend", "temporary"),
        ("[NONEXISTENT] gone", "mailbox_gone"),
    ],
)
@pytest.mark.parametrize("kind", [CONDSTORE, BARE], ids=["condstore", "bare"])
async def test_case_67_a_refused_folder_is_set_aside_with_its_reason(
    kind: frozenset[str], text: str, code: str, account: Account, start: Start
) -> None:
    """Bounded tries, growing waits, the others go on; it comes back by itself."""
    account.create("A")
    account.create("Z")
    engine = await start(Profile(kind, refused={"A": text}))
    for n in range(20):
        fill(account, 1, "Z", first=10 + n)
        await engine.catch_up(passes=1)
        engine.now += 60
    box = next(b for b in engine.state().mailboxes.values() if b.record.name == "A")
    assert box.record.aside is not None
    assert box.record.aside.startswith(code)
    assert len(engine.fold().by_name()["Z"]) == 20
    assert sum(c.startswith("EXAMINE") and "A" in c.split()[1] for c in engine.server.commands) <= 6
    engine.server.profile = Profile(kind)
    await engine.hang_up()
    engine.now += 7 * 3600
    await engine.catch_up()
    engine.agrees(account)


@pytest.mark.parametrize("kind", [CONDSTORE, BARE], ids=["condstore", "bare"])
@pytest.mark.parametrize("made_anew", [False, True], ids=["renamed", "made anew"])
async def test_a_folder_that_went_since_it_was_listed_is_looked_at_with_the_next_list(
    kind: frozenset[str], made_anew: bool, account: Account, start: Start
) -> None:
    """Renamed between the list and its opening: nothing is wrong with it, so it does not have to wait."""
    account.create("A")
    fill(account, 3, "A")
    engine = await start(kind)
    await engine.catch_up()
    fill(account, 2, "A", first=10)

    def went(lines: list[bytes]) -> list[bytes]:
        return [lines[-1].split()[0] + b" NO [NONEXISTENT] gone\r\n"]

    engine.server.bend(r"EXAMINE \"?A\"?", went, times=1)
    await engine.look()
    account.rename("A", "B")
    if made_anew:
        account.create("A")
        fill(account, 1, "A", first=20)
    engine.now += 1
    await engine.catch_up()
    engine.agrees(account)
    assert all(box.record.aside is None for box in engine.state().mailboxes.values())


@pytest.mark.parametrize("kind", [CONDSTORE, BARE, FULL], ids=["condstore", "bare", "full"])
async def test_a_list_that_lacks_a_mailbox_is_no_proof(kind: frozenset[str], account: Account, start: Start) -> None:
    """Dovecot lists a part of the mailboxes while it makes its index anew; a moment later all are there."""
    for name in ("A", "B", "C"):
        account.create(name)
        fill(account, 2, name)
    engine = await start(kind)
    await engine.catch_up()
    account.delete("C")
    fill(account, 1, "A", first=10)
    bend = engine.server.bend(
        r"LIST ", lambda lines: [line for line in lines if b"INBOX" in line or not line.startswith(b"* ")], times=1
    )
    await engine.look()
    assert bend.used == 1
    engine.agrees(account)
    with engine.quiet():
        await engine.look()
    assert [event["mailbox"] for event in engine.of("mailbox.deleted")] == ["C"]
    assert len(engine.of("mailbox.discovered")) == 4


@pytest.mark.parametrize(
    "answer",
    [
        b"NO [UNAVAILABLE] Temporary internal error",
        b"NO [SERVERBUG] Internal error occurred",
        b"NO [INUSE] Mailbox is locked",
        b"NO Server busy, try again",
        b"OK done",
    ],
    ids=["unavailable", "serverbug", "inuse", "busy", "nothing told"],
)
@pytest.mark.parametrize("kind", [CONDSTORE, BARE], ids=["condstore", "bare"])
async def test_a_mailbox_that_is_not_listed_and_cannot_be_asked_now_is_not_deleted(
    kind: frozenset[str], answer: bytes, account: Account, start: Start
) -> None:
    """A part of the mailboxes is listed, and STATUS of the others says "later", or nothing: that proves no absence."""
    account.create("A")
    fill(account, 2, "A")
    engine = await start(kind)
    await engine.catch_up()
    engine.server.bend(
        r"LIST ", lambda lines: [line for line in lines if b"INBOX" in line or not line.startswith(b"* ")], times=1
    )
    engine.server.bend(r"STATUS \"A\"", lambda lines: [lines[-1].split()[0] + b" " + answer + b"\r\n"], times=4)
    await engine.look()
    assert engine.of("mailbox.deleted") == []
    engine.now += 7 * 3600
    await engine.look()
    engine.agrees(account)
    assert len(engine.of("mailbox.discovered")) == 2


async def test_a_container_that_a_partial_list_lacks_is_not_deleted(account: Account, start: Start) -> None:
    """It cannot be asked for; but what can be, and is there, shows that the list lacks something."""
    account.create("P", selectable=False)
    account.create("P/A")
    fill(account, 2, "P/A")
    engine = await start(CONDSTORE)
    await engine.catch_up()
    engine.server.bend(
        r"LIST ", lambda lines: [line for line in lines if b"INBOX" in line or not line.startswith(b"* ")], times=1
    )
    with engine.quiet():
        await engine.look()
        await engine.look()
    account.delete("P/A")
    account.delete("P")
    await engine.look()
    assert sorted(event["mailbox"] for event in engine.of("mailbox.deleted")) == ["P", "P/A"]


async def test_a_mailbox_without_uidvalidity_that_is_not_listed_is_not_deleted(account: Account, start: Start) -> None:
    """The server tells no UIDVALIDITY anywhere: its answer to STATUS still says that the mailbox is there."""
    account.create("A")
    fill(account, 2, "A")
    engine = await start(Profile(BARE, tell_uidvalidity=False))
    await engine.catch_up()
    engine.server.bend(
        r"LIST ", lambda lines: [line for line in lines if b"INBOX" in line or not line.startswith(b"* ")], times=1
    )
    with engine.quiet():
        await engine.look()


async def test_case_68_only_parsed_items_are_flags(account: Account, start: Start) -> None:
    """The answer to a flag scan is the text of an error."""
    fill(account, 3)
    engine = await start(BARE)
    await engine.catch_up()
    engine.server.bend(
        r"UID FETCH .*\(UID FLAGS\)",
        lambda lines: [b"* System Error (Failure)\r\n", b"* 2 FETCH (System Error (Failure))\r\n", lines[-1]],
        times=1,
    )
    with engine.quiet():
        await engine.look(full=True)
    account.mailboxes["INBOX"].set_flags(2, ["\\Seen"])
    engine.now += 4000
    await engine.look()
    engine.agrees(account)


@pytest.mark.parametrize(
    "line",
    [b"* 2 FETCH (System Error (Failure))\r\n", b"* 2 FETCH (UID 2 FLAGS System MODSEQ (99))\r\n"],
    ids=["no uid", "uid"],
)
@pytest.mark.parametrize("kind", [CONDSTORE, QRESYNC], ids=["condstore", "qresync"])
@pytest.mark.parametrize("times", [1, 3, None])
async def test_case_68_a_change_of_flags_that_does_not_parse_is_asked_for_again(
    times: int | None, kind: frozenset[str], line: bytes, account: Account, start: Start
) -> None:
    """CHANGEDSINCE tells a change once: the cursor stays for some looks. What else was told counts; and a server that
    tells one message so each time does not keep the cursor where it is.
    """
    fill(account, 5)
    engine = await start(kind)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.set_flags(2, ["\\Seen"])
    inbox.set_flags(4, ["\\Seen"])
    engine.server.bend(r"CHANGEDSINCE", lambda lines: [line if b"UID 2 " in it else it for it in lines], times=times)
    for _ in range(4):
        await engine.look()
    assert [event["uid"] for event in engine.of("message.flags_changed")] == ([4, 2] if times else [4])
    assert next(iter(engine.state().mailboxes.values())).record.highestmodseq == inbox.highestmodseq
    with engine.quiet():
        await engine.look()


async def test_case_69_70_sizes_are_asked_once(account: Account, start: Start) -> None:
    """RFC822.SIZE is asked for with a message's first fetch, never by a poll."""
    fill(account, 10)
    for kind in (QRESYNC, BARE):
        engine = await start(kind)
        await engine.catch_up()
        await engine.look(full=True)  # the first look of a runner checks a few messages for what they were
        before = len(engine.server.commands)
        account.mailboxes["INBOX"].set_flags(3, ["\\Flagged"])
        engine.now += 4000
        await engine.look()
        await engine.look(full=True)
        assert not any("SIZE" in c for c in engine.server.commands[before:])
        account.mailboxes["INBOX"].set_flags(3, [])


async def test_case_91_93_no_message_id_and_no_subject(account: Account, start: Start) -> None:
    """Two mails without Message-ID are two; absent fields are no error."""
    inbox = account.mailboxes["INBOX"]
    inbox.deliver(b"From: a@example.test\r\n\r\none")
    inbox.deliver(b"From: a@example.test\r\n\r\ntwo!")
    engine = await start(CONDSTORE)
    await engine.catch_up()
    engine.agrees(account)
    assert len({e["message_id"] for e in engine.of("message.added")}) == 2


def gmail(account: Account) -> None:
    """The folders Gmail shows: labels are views of All Mail."""
    account.create("[Gmail]", attributes=("\\HasChildren",), selectable=False)
    for name, use in (("All Mail", "\\All"), ("Spam", "\\Junk"), ("Trash", "\\Trash"), ("Sent Mail", "\\Sent")):
        account.create(f"[Gmail]/{name}", attributes=(use,))
    account.create("Label")


async def test_case_97_gmail_all_mail_spam_and_trash_only(account: Account, start: Start) -> None:
    """One message, many labels: one place, labels as a set, identity by X-GM-MSGID; Trash is a move."""
    gmail(account)
    everything, trash = account.mailboxes["[Gmail]/All Mail"], account.mailboxes["[Gmail]/Trash"]
    for n in range(5):
        everything.deliver(letter(n), labels=("\\Inbox", 'a "(b"') if n % 2 else ("*star",), gm_msgid=10**18 + n)
        account.mailboxes["INBOX"].deliver(letter(n), gm_msgid=10**18 + n)
    synced = {"[Gmail]/All Mail", "[Gmail]/Spam", "[Gmail]/Trash"}
    engine = await start(GMAIL)
    await engine.catch_up()
    engine.agrees(account, only=synced)
    added = engine.of("message.added")
    assert len(added) == 5
    assert {tuple(e["labels"]) for e in added} == {("\\Inbox", 'a "(b"'), ("*star",)}
    assert engine.state().record.basis == "gm_msgid"
    assert not any(c.startswith("EXAMINE") and "INBOX" in c for c in engine.server.commands)
    # a label less, then none: the set is told each time
    message = everything.by_uid(2)
    message.labels = ("\\Inbox",)
    everything.set_flags(2, ["\\Seen"])
    await engine.look()
    assert engine.of("message.flags_changed")[-1]["labels"] == ["\\Inbox"]
    message.labels = ()
    everything.set_flags(2, ["\\Seen"])
    await engine.look()
    assert engine.of("message.flags_changed")[-1]["labels"] == []
    everything.move_to(3, trash)
    await engine.look()
    engine.agrees(account, only=synced)
    assert engine.kinds().count("message.moved") == 1
    watched = engine.state().watched()
    assert watched is not None
    assert watched.record.name == "[Gmail]/All Mail"


async def test_case_97_all_mail_hidden_and_shown_again(account: Account, start: Start) -> None:
    """Without All Mail every folder is its own; when it comes back the folders become views and hold no places."""
    gmail(account)
    account.rename("[Gmail]/All Mail", "hidden")
    hidden = account.mailboxes.pop("hidden")
    for n in range(3):
        account.mailboxes["INBOX"].deliver(letter(n), gm_msgid=10**18 + n)
    engine = await start(GMAIL)
    await engine.catch_up()
    engine.agrees(account)
    hidden.name = "[Gmail]/All Mail"
    account.mailboxes[hidden.name] = hidden
    for n in range(3):
        hidden.deliver(letter(n), gm_msgid=10**18 + n)
    await engine.catch_up()
    engine.agrees(account, only={"[Gmail]/All Mail", "[Gmail]/Spam", "[Gmail]/Trash"})
    del account.mailboxes[hidden.name]
    await engine.catch_up()
    engine.agrees(account)


async def test_case_99_deleted_is_a_flag(account: Account, start: Start) -> None:
    """\\Deleted without expunge: the message stays, with its flag."""
    fill(account, 2)
    engine = await start(QRESYNC)
    await engine.catch_up()
    account.mailboxes["INBOX"].set_flags(1, ["\\Deleted"])
    await engine.look()
    engine.agrees(account)
    assert engine.of("message.flags_changed")[0]["added"] == ["\\Deleted"]
    assert "message.removed" not in engine.kinds()


async def test_cases_94_95_large_header_blocks_do_not_hold_the_loop(account: Account, start: Start) -> None:
    """Hostile header blocks are parsed in a thread: no turn of the loop takes long."""
    inbox = account.mailboxes["INBOX"]
    inbox.deliver(b"To: " + b"(" * 60_000 + b"a@example.test\r\nSubject: x\r\n\r\nbody")
    inbox.deliver(
        b"To: " + b", ".join(b"=?utf-8?q?n%d?= <a%d@example.test>" % (n, n) for n in range(4000)) + b"\r\n\r\n"
    )
    for n in range(20):
        inbox.deliver(letter(n))
    engine = await start(CONDSTORE | {"ESEARCH"})
    longest = 0.0
    loop = asyncio.get_running_loop()

    async def tick() -> None:
        nonlocal longest
        while True:
            before = loop.time()
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - before)

    ticking = asyncio.create_task(tick())
    try:
        await engine.catch_up()
    finally:
        ticking.cancel()
    engine.agrees(account)
    assert longest < 1.0  # a bound for a crowded machine; in one piece the parser alone would hold it longer


async def test_previews_of_plain_and_html(account: Account, start: Start) -> None:
    """With PREVIEW_BYTES the text part's beginning is fetched by PEEK; of HTML more, since much of it is style."""
    inbox = account.mailboxes["INBOX"]
    style = b"<style>" + b"p { color: red }\n" * 400 + b"</style>"
    inbox.deliver(b"Subject: p\r\nContent-Type: text/plain\r\n\r\nhello there")
    inbox.deliver(b"Subject: h\r\nContent-Type: text/html\r\n\r\n<html>" + style + b"<p>shown <b>text</b></p></html>")
    engine = await start(CONDSTORE, PREVIEW_BYTES=100)
    engine.server.bend(
        r"BODYSTRUCTURE",
        lambda lines: [line.replace(b'"PLAIN"', b'"HTML"') if b"(UID 2 " in line else line for line in lines],
    )
    await engine.catch_up()
    previews = {e["uid"]: e.get("preview") for e in engine.of("message.added")}
    assert previews == {1: "hello there", 2: "shown text"}
    assert any("BODY.PEEK[1]<0.16384>" in c for c in engine.server.commands)
    assert all("\\Seen" not in m.flags for m in inbox.messages)


@pytest.mark.parametrize("date", [b"01-Jan-0001 00:00:00 +0100", b"31-Dec-9999 23:59:59 -0100"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "history"])
async def test_case_89_a_date_before_the_first_year_or_after_the_last(
    date: bytes, live: bool, account: Account, start: Start
) -> None:
    """It is a date, and names no moment that anybody could write down: the message comes without one."""
    engine = await start(CONDSTORE)
    if live:
        await engine.catch_up()
    fill(account, 3)
    engine.server.bend(
        "UID FETCH", lambda lines: [re.sub(rb'(UID 2 .*INTERNALDATE )"[^"]*"', rb'\1"%b"' % date, it) for it in lines]
    )
    await engine.catch_up()
    engine.agrees(account)
    dates = {event["uid"]: event.get("internal_date") for event in engine.of("message.added")}
    assert dates[2] is None
    assert None not in (dates[1], dates[3])


@pytest.mark.parametrize("number", [b"4294967296", b"99999999999999999999999"])
async def test_case_20_a_highest_uid_that_can_be_none(number: bytes, account: Account, start: Start) -> None:
    """UIDNEXT is not told, and the search that stands in for it answers out of bounds: nothing is concluded of it."""
    fill(account, 3)
    engine = await start(Profile(CONDSTORE, tell_uidnext=False))
    engine.server.bend("UID SEARCH", lambda lines: [re.sub(rb"MAX \d+", b"MAX " + number, it) for it in lines], times=1)
    await engine.look()
    engine.now += 7200
    await engine.catch_up()
    engine.agrees(account)
