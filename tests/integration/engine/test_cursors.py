"""Cursors, resync, silent loss: what must come out of the engine, whatever the server says."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.fixtures.engine import letter
from tests.integration.engine.conftest import Start
from tests.scripted_imap.bending import Action, Drop
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import BARE, BASE, CONDSTORE, FULL, QRESYNC, Profile

ESEARCH_ONLY = BASE | {"ESEARCH"}
ALL_KINDS = pytest.mark.parametrize(
    "kind", [QRESYNC, CONDSTORE, ESEARCH_ONLY, BARE], ids=["qresync", "condstore", "esearch", "bare"]
)


def replacing(old: bytes, new: bytes) -> Callable[[list[bytes]], list[Action]]:
    """A bend that rewrites lines."""
    return lambda lines: [line.replace(old, new) for line in lines]


def without(pattern: bytes) -> Callable[[list[bytes]], list[Action]]:
    """A bend that drops lines."""
    return lambda lines: [line for line in lines if not re.search(pattern, line)]


def fill(account: Account, count: int, box: str = "INBOX", *, first: int = 1) -> None:
    for n in range(first, first + count):
        account.mailboxes[box].deliver(letter(n))


async def test_case_1_modseq_does_not_pass_a_message_that_was_not_read(account: Account, start: Start) -> None:
    """The pass that learns of modseq 50 fails to fetch: neither half of the cursor moves, and the message comes
    later.
    """
    fill(account, 3)
    engine = await start(QRESYNC)
    await engine.catch_up()
    before = next(iter(engine.state().mailboxes.values())).record
    cursor = (before.uidnext, before.highestmodseq)
    inbox = account.mailboxes["INBOX"]
    inbox.deliver(letter(55))
    inbox.set_flags(1, ["\\Seen"])
    engine.server.bend(r"UID FETCH 4 .*RFC822.SIZE", lambda lines: [b"* BYE gone\r\n"], times=1)
    assert await engine.survive(engine.look()) is not None
    record = next(iter(engine.state().mailboxes.values())).record
    assert (record.uidnext, record.highestmodseq) == cursor
    await engine.look()
    engine.agrees(account)
    assert next(iter(engine.state().mailboxes.values())).record.highestmodseq == inbox.highestmodseq


@ALL_KINDS
@pytest.mark.parametrize("process_ends", [False, True], ids=["same process", "next owner"])
async def test_case_1_what_was_read_before_a_pass_broke_off_is_looked_at_again(
    kind: frozenset[str], process_ends: bool, account: Account, start: Start
) -> None:
    """A pass ends between two windows: newer messages are known above the cursor, which stays. What changes about them
    until the next pass is told: their flags, and that they went.
    """
    fill(account, 3)
    engine = await start(kind, FETCH_WINDOW=1)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    fill(account, 3, first=4)
    engine.server.bend(r"UID FETCH 4 .*RFC822.SIZE", lambda lines: [b"* BYE gone\r\n"], times=1)
    assert await engine.survive(engine.look()) is not None
    assert next(iter(engine.state().mailboxes.values())).record.uidnext == 4
    assert engine.kinds().count("message.added") == 5
    if process_ends:
        engine.forget()
    inbox.set_flags(5, ["\\Flagged"])
    inbox.expunge(6)
    await engine.look()
    engine.agrees(account)


@pytest.mark.parametrize("kind", [QRESYNC, BARE], ids=["qresync", "bare"])
async def test_case_2_every_message_of_a_long_mailbox_arrives(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """2,500 messages with gaps in their UIDs, windows smaller than the walk; and a lost one is found by the full
    compare.
    """
    inbox = account.mailboxes["INBOX"]
    for n in range(2500):
        inbox.deliver(letter(n), uid=inbox.uidnext + (3 if n % 7 == 0 else 0))
    engine = await start(kind, FETCH_WINDOW=1024, FETCH_CHUNK=100)
    await engine.catch_up()
    engine.agrees(account)
    assert engine.kinds().count("message.added") == 2500
    with engine.quiet():
        engine.now += 4000
        await engine.look()
    # a message that an answer swallowed is repaired by the periodic compare, also where QRESYNC exists
    engine.server.bend(r"UID FETCH", without(rb"UID %d " % inbox.uidnext), times=1)
    inbox.deliver(letter(9999))
    await engine.look()
    engine.now += 4000
    await engine.look()
    engine.agrees(account)


@pytest.mark.parametrize("when", ["first sight", "later"])
async def test_case_20_a_new_epoch_whose_highest_uid_cannot_be_had(when: str, account: Account, start: Start) -> None:
    """UIDNEXT is not told, and the connection ends in the search that stands in for it: the new epoch has not begun,
    and begins at the next look as if nothing had been.
    """
    engine = await start(Profile(BARE, tell_uidnext=False))
    inbox = account.mailboxes["INBOX"]
    if when == "later":
        fill(account, 5)
        await engine.catch_up()
        inbox.new_epoch()
        inbox.expunge(4, 5)
    else:
        fill(account, 3)
        engine.server.bend("STATUS", replacing(b"UIDVALIDITY 1000", b"UIDVALIDITY 999"))
    engine.server.bend(r"UID SEARCH ALL", lambda lines: [Drop()], times=1)
    assert await engine.survive(engine.look()) is not None
    assert "mailbox.reset" not in engine.kinds()
    engine.forget()
    await engine.catch_up()
    engine.agrees(account)
    assert engine.kinds().count("mailbox.reset") == 1
    engine.fold()
    assert next(iter(engine.state().mailboxes.values())).record.previous is None
    assert not [place for place in engine.fold().places if place[1] != inbox.uidvalidity]


@pytest.mark.parametrize("told", [True, False], ids=["uidnext", "no uidnext"])
async def test_what_was_set_aside_above_the_cursor_is_tried_again(told: bool, account: Account, start: Start) -> None:
    """The newest message cannot be read and is set aside; then the pass breaks off, and the cursor stays below it."""
    fill(account, 3)
    engine = await start(Profile(BARE, tell_uidnext=told), FETCH_WINDOW=1)
    await engine.catch_up()
    fill(account, 2, first=4)
    damage = engine.server.bend(
        r"UID FETCH 5 .*RFC822.SIZE", lambda lines: [re.sub(rb"FLAGS \([^)]*\) ", b"", line) for line in lines]
    )
    engine.server.bend(r"UID FETCH 4 .*RFC822.SIZE", lambda lines: [b"* BYE gone\r\n"], times=1)
    assert await engine.survive(engine.look()) is not None
    assert [event["uid"] for event in engine.of("message.unreadable")] == [5]
    damage.times = 0
    for _ in range(3):
        engine.now += 2 * 3600
        await engine.look()
    engine.agrees(account)
    assert len(engine.of("message.unreadable")) == 1


async def test_an_old_epoch_that_was_left_behind_is_ended(account: Account, start: Start) -> None:
    """As a version before could write it: a new epoch has begun, and its history is said to be read."""
    fill(account, 5)
    engine = await start(BARE)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.new_epoch()
    inbox.expunge(4, 5)
    await engine.look()
    (box,) = engine.state().mailboxes.values()
    box.record.backfill_done, box.record.floor, box.dirty = True, 1, True
    await engine.state().commit()
    engine.forget()
    engine.now += 7200
    await engine.catch_up()
    engine.agrees(account)
    with engine.quiet():
        await engine.catch_up()
    assert not [place for place in engine.fold().places if place[1] != inbox.uidvalidity]


async def test_case_3_every_vanished_line_counts(account: Account, start: Start) -> None:
    """Two VANISHED (EARLIER) lines in one answer, and unasked ones during a fetch of others."""
    fill(account, 12)
    engine = await start(QRESYNC)
    await engine.catch_up()
    account.mailboxes["INBOX"].expunge(7, 9, 10, 11)
    engine.server.bend(
        r"VANISHED",
        lambda lines: [
            b"* VANISHED (EARLIER) 7\r\n* VANISHED (EARLIER) 9:11\r\n" if line.startswith(b"* VANISHED") else line
            for line in lines
        ],
    )
    await engine.look()
    engine.agrees(account)
    assert engine.kinds().count("message.removed") == 4


async def test_case_4_a_mailbox_listed_twice_is_one(account: Account, start: Start) -> None:
    """LIST repeats a line, and names INBOX in two spellings."""
    fill(account, 2)
    account.create("Work")
    engine = await start(CONDSTORE)
    engine.server.bend(
        r"^LIST",
        lambda lines: [*lines[:-1], b'* LIST () "/" "Inbox"\r\n', b'* LIST (\\Marked) "/" "Work"\r\n', lines[-1]],
    )
    await engine.catch_up()
    assert sorted(e["mailbox"] for e in engine.of("mailbox.discovered")) == ["INBOX", "Work"]
    engine.agrees(account)


@pytest.mark.parametrize("kind", [QRESYNC, CONDSTORE], ids=["qresync", "condstore"])
async def test_case_6_a_modseq_that_goes_back_is_lost_history(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """Every flag is read and every UID compared; the lower number is the cursor from then on."""
    fill(account, 10)
    inbox = account.mailboxes["INBOX"]
    for uid in range(1, 11):
        inbox.set_flags(uid, ["\\Seen"])
    engine = await start(kind)
    await engine.catch_up()
    inbox.set_flags(2, ["\\Flagged"])
    inbox.expunge(5)
    inbox.lose_history(3)
    await engine.look()
    engine.agrees(account)
    assert next(iter(engine.state().mailboxes.values())).record.highestmodseq == 3
    with engine.quiet():
        await engine.look()


@pytest.mark.parametrize("kind", [QRESYNC, CONDSTORE], ids=["qresync", "condstore"])
@pytest.mark.parametrize("process_ends", [False, True], ids=["same process", "next owner"])
async def test_case_6_a_modseq_that_went_back_is_not_forgotten_when_the_look_breaks_off(
    process_ends: bool, kind: frozenset[str], account: Account, start: Start
) -> None:
    """Until the next look the server's number passes the cursor again: what changed before has no modseq above it."""
    fill(account, 10)
    inbox = account.mailboxes["INBOX"]
    for uid in range(1, 11):
        inbox.set_flags(uid, ["\\Seen"])
    engine = await start(kind)
    await engine.catch_up()
    inbox.set_flags(2, ["\\Flagged"])
    inbox.expunge(5)
    inbox.lose_history(3)
    engine.server.bend(r"UID FETCH", lambda lines: [Drop()], times=1)
    assert await engine.survive(engine.look()) is not None
    if process_ends:
        engine.forget()
    for _ in range(40):
        inbox.set_flags(9, ["\\Answered"])
    inbox.deliver(letter(11))  # the number of messages is what it was
    await engine.look()
    engine.agrees(account)
    with engine.quiet():
        await engine.look()


async def test_case_7_a_modseq_of_zero_wipes_nothing(account: Account, start: Start) -> None:
    """An empty mailbox says HIGHESTMODSEQ 0: none yet."""
    account.mailboxes["INBOX"].highestmodseq = 0
    account.create("Work").highestmodseq = 0
    engine = await start(CONDSTORE)
    await engine.catch_up()
    with engine.quiet():
        await engine.look()
        await engine.look(full=True)
    assert not any("CHANGEDSINCE 0" in command for command in engine.server.commands)
    fill(account, 2)
    await engine.look()
    engine.agrees(account)


async def test_case_9_a_modseq_without_condstore_is_ignored(account: Account, start: Start) -> None:
    """HIGHESTMODSEQ in the answer to EXAMINE, no CONDSTORE offered: no MODSEQ item is ever asked for."""
    fill(account, 3)
    engine = await start(BASE | {"ESEARCH"})
    engine.server.bend(r"^EXAMINE", lambda lines: [*lines[:-1], b"* OK [HIGHESTMODSEQ 900] x\r\n", lines[-1]])
    await engine.catch_up()
    account.mailboxes["INBOX"].set_flags(2, ["\\Seen"])
    await engine.look()
    engine.agrees(account)
    assert not any("MODSEQ" in command or "CHANGEDSINCE" in command for command in engine.server.commands)


async def test_case_10_condstore_without_modseq_is_downgraded(account: Account, start: Start) -> None:
    """CONDSTORE is offered, EXAMINE tells no HIGHESTMODSEQ."""
    fill(account, 5)
    engine = await start(Profile(CONDSTORE, tell_highestmodseq=False))
    await engine.catch_up()
    account.mailboxes["INBOX"].set_flags(2, ["\\Seen"])
    account.mailboxes["INBOX"].expunge(3)
    await engine.look()
    engine.agrees(account)
    assert not any("CHANGEDSINCE" in command for command in engine.server.commands)


async def test_case_10_modseqs_that_are_told_no_more_cost_no_full_scan(account: Account, start: Start) -> None:
    """A server (or one folder: NOMODSEQ) stops to tell HIGHESTMODSEQ: flags go by the window, not all at each look."""
    fill(account, 30)
    engine = await start(CONDSTORE, FLAG_WINDOW=5)
    await engine.catch_up()
    await engine.look(full=True)
    engine.server.profile = Profile(CONDSTORE, tell_highestmodseq=False)
    await engine.hang_up()
    before = len(engine.server.commands)
    account.mailboxes["INBOX"].set_flags(29, ["\\Seen"])
    await engine.look()
    engine.agrees(account)
    assert not any("FETCH 1:30 " in command for command in engine.server.commands[before:])


@pytest.mark.parametrize("process_ends", [False, True], ids=["same process", "next owner"])
async def test_a_window_of_the_flag_scan_that_broke_off_is_read_again(
    process_ends: bool, account: Account, start: Start
) -> None:
    """Not in the next round, an hour later."""
    fill(account, 40)
    engine = await start(BARE, FLAG_WINDOW=4)
    await engine.catch_up()
    following = next(iter(engine.state().mailboxes.values())).record.scan_next
    account.mailboxes["INBOX"].set_flags(following - 2, ["\\Seen"])
    engine.server.bend(r"UID FETCH \S+ \(UID FLAGS\)", lambda lines: [*lines[:2], Drop()], times=1)
    assert await engine.survive(engine.look()) is not None
    if process_ends:
        engine.forget()
    await engine.look()
    engine.agrees(account)


async def test_case_10_an_answer_without_modseq_items(account: Account, start: Start) -> None:
    """CHANGEDSINCE returns every message and no MODSEQ."""
    fill(account, 5)
    engine = await start(CONDSTORE)
    await engine.catch_up()
    account.mailboxes["INBOX"].set_flags(2, ["\\Seen"])
    flags = {1: b"", 2: b"\\Seen", 3: b"", 4: b"", 5: b""}
    engine.server.bend(
        r"CHANGEDSINCE",
        lambda lines: [b"* %d FETCH (UID %d FLAGS (%s))\r\n" % (n, n, f) for n, f in flags.items()] + lines[-1:],
    )
    await engine.look()
    engine.agrees(account)
    assert len(engine.of("message.flags_changed")) == 1


@pytest.mark.parametrize("what", ["QRESYNC", "CONDSTORE"])
async def test_case_11_what_is_offered_and_not_understood_is_done_without(
    what: str, account: Account, start: Start
) -> None:
    """BAD to VANISHED or to CHANGEDSINCE costs the feature, not the mailbox."""
    fill(account, 8)
    engine = await start(QRESYNC)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.set_flags(2, ["\\Seen"])
    inbox.expunge(4)
    pattern = r"CHANGEDSINCE \d+ VANISHED" if what == "QRESYNC" else r"CHANGEDSINCE"
    engine.server.bend(pattern, lambda lines: [lines[-1].split()[0] + b" BAD what?\r\n"])
    await engine.look()
    engine.agrees(account)
    asked = sum(bool(re.search(pattern, c)) for c in engine.server.commands)
    inbox.set_flags(3, ["\\Seen"])
    inbox.expunge(5)
    await engine.look()
    engine.agrees(account)
    assert sum(bool(re.search(pattern, c)) for c in engine.server.commands) == asked


@pytest.mark.parametrize("answer", [b"NO something failed", b"BAD what"], ids=["no", "bad"])
async def test_case_11_changes_that_could_not_be_asked_for_are_asked_for_by_the_next_owner(
    answer: bytes, account: Account, start: Start
) -> None:
    """CHANGEDSINCE is refused, so the flags go by the window, which does not reach the message that changed. The cursor
    does not pass what was not read: whoever may ask again hears of it.
    """
    fill(account, 30)
    engine = await start(CONDSTORE, FLAG_WINDOW=2)
    await engine.catch_up()
    account.mailboxes["INBOX"].set_flags(3, ["\\Flagged"])
    refusal = b" " + answer + b"\r\n"
    engine.server.bend(r"CHANGEDSINCE", lambda lines: [lines[-1].split()[0] + refusal], times=1)
    await engine.look()
    await engine.hang_up()
    engine.forget()
    await engine.look()
    engine.agrees(account)


@pytest.mark.parametrize("refused", [r"VANISHED", r"CHANGEDSINCE"], ids=["vanished", "changedsince"])
async def test_case_11_what_vanished_is_found_where_that_is_refused_while_history_is_read(
    refused: str, account: Account, start: Start
) -> None:
    """Counts prove nothing while a part of the mailbox is not known: where VANISHED is refused, UIDs are compared at
    once.
    """
    fill(account, 30)
    engine = await start(Profile(QRESYNC, refuses={refused: "BAD what"}), FETCH_WINDOW=10, FETCH_CHUNK=10)
    await engine.look()
    await engine.history(1)
    account.mailboxes["INBOX"].expunge(25)
    await engine.look()
    assert [event["uid"] for event in engine.of("message.removed")] == [25]
    await engine.catch_up()
    engine.agrees(account)


async def test_case_12_enable_comes_first_and_its_confirmation_is_not_needed(account: Account, start: Start) -> None:
    """`* ENABLED` is empty; HIGHESTMODSEQ decides."""
    fill(account, 3)
    engine = await start(QRESYNC)
    engine.server.bend(r"^ENABLE", lambda lines: [b"* ENABLED\r\n", lines[-1]])
    await engine.catch_up()
    commands = [c.split()[0] for c in engine.server.commands]
    assert commands.index("ENABLE") < commands.index("EXAMINE")
    account.mailboxes["INBOX"].expunge(2)
    await engine.look()
    engine.agrees(account)


@ALL_KINDS
async def test_case_14_uidvalidity_changes_while_history_is_read(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """New epoch, the old one's places are moved over, the history goes on; nothing is added twice or fetched as new."""
    fill(account, 60)
    engine = await start(kind, FETCH_WINDOW=10, FETCH_CHUNK=10)
    await engine.look()
    await engine.history(3)
    account.mailboxes["INBOX"].new_epoch()
    await engine.hang_up()
    await engine.history()
    await engine.catch_up()
    engine.agrees(account)
    assert engine.kinds().count("mailbox.reset") == 1
    assert engine.kinds().count("message.moved") == 30
    assert engine.kinds().count("message.added") == 60
    assert "message.removed" not in engine.kinds()


@ALL_KINDS
async def test_uidvalidity_reset_matches_messages_again(kind: frozenset[str], account: Account, start: Start) -> None:
    """One reset, then moves; what is new is added, what went is removed; flags are right."""
    fill(account, 40)
    engine = await start(kind, FETCH_WINDOW=10, FETCH_CHUNK=10)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.expunge(5, 6)
    inbox.set_flags(7, ["\\Flagged"])
    inbox.new_epoch()
    inbox.deliver(letter(1000))
    bodies = engine.server.count("UID FETCH")
    await engine.look()
    await engine.history()
    engine.agrees(account)
    kinds = engine.kinds()
    assert kinds.count("mailbox.reset") == 1
    assert kinds.count("message.moved") == 38
    assert kinds.count("message.added") == 41
    assert kinds.count("message.removed") == 2
    assert engine.server.count("UID FETCH") - bodies <= 6
    reset = kinds.index("mailbox.reset")
    assert kinds.index("message.moved") > reset
    moved = engine.of("message.moved")[0]
    assert moved["from"]["uidvalidity"] + 1 == moved["to"]["uidvalidity"]
    assert not any("BODY" in c and "HEADER" not in c for c in engine.server.commands)


@ALL_KINDS
async def test_a_mailbox_replaced_under_an_open_session_changes_no_flags_of_the_old_one(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """The server answers with flags of the new epoch and says only then that the session is over (Dovecot does)."""
    fill(account, 4)
    engine = await start(kind)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.set_flags(2, ["\\Seen"])

    def replaced(lines: list[bytes]) -> list[Action]:
        inbox.new_epoch()
        inbox.set_flags(3, ["\\Flagged"])
        told = [b"* 3 FETCH (UID 3 FLAGS (\\Flagged))\r\n", b"* BYE IMAP session state is inconsistent\r\n"]
        return [*lines[:-1], *told]

    engine.server.bend(r"UID FETCH \S+ \(?(UID )?FLAGS", replaced, times=1)
    before = len(engine.events())
    assert await engine.survive(engine.look()) is not None
    assert engine.events()[before:] == []
    await engine.look()
    assert engine.kinds()[before] == "mailbox.reset"
    await engine.catch_up()
    engine.agrees(account)
    assert {event["uidvalidity"] for event in engine.of("message.flags_changed")} <= {inbox.uidvalidity}


async def test_case_16_uidvalidity_zero_is_accepted_and_not_trusted(account: Account, start: Start) -> None:
    """UIDs of such a mailbox are spot-checked at each look."""
    account.mailboxes["INBOX"].uidvalidity = 0
    fill(account, 5)
    engine = await start(CONDSTORE)
    await engine.catch_up()
    engine.agrees(account)
    fill(account, 1, first=50)
    await engine.look()
    engine.agrees(account)
    inbox = account.mailboxes["INBOX"]
    inbox.messages.reverse()
    inbox.renumber(1)
    await engine.look()
    await engine.history()
    engine.agrees(account)
    assert engine.of("mailbox.reset")[0]["reason"] == "uids_renumbered"


@pytest.mark.parametrize("known", [True, False])
async def test_case_17_a_uidvalidity_that_changes_between_two_openings_is_no_restless_one(
    known: bool, account: Account, start: Start
) -> None:
    """Somebody resets a mailbox twice while it is looked at: that alone sets it aside for no hours."""
    fill(account, 5)
    account.create("Work")
    fill(account, 5, "Work", first=100)
    engine = await start(QRESYNC)
    if known:
        await engine.catch_up()
    work = account.mailboxes["Work"]

    def replaced(lines: list[bytes]) -> list[Action]:
        work.new_epoch()
        return list(lines)

    engine.server.bend(r"LIST ", replaced, times=1)
    openings = engine.server.bend(r"EXAMINE .*Work", replaced, times=2)
    await engine.look()
    assert openings.used == 2
    await engine.catch_up()
    engine.agrees(account)
    assert not any(box.record.aside for box in engine.state().mailboxes.values())


async def test_case_17_a_restless_folder_is_set_aside_alone(account: Account, start: Start) -> None:
    """Its UIDVALIDITY changes at each EXAMINE; INBOX goes on; once it holds still it comes back by itself."""
    fill(account, 5)
    account.create("Restless")
    fill(account, 5, "Restless", first=100)
    engine = await start(Profile(QRESYNC, restless=frozenset({"Restless"})))
    for n in range(6):
        fill(account, 1, first=200 + n)
        fill(account, 1, "Restless", first=300 + n)
        await engine.catch_up(passes=1)
        engine.now += 600
    box = next(b for b in engine.state().mailboxes.values() if b.record.name == "Restless")
    assert box.record.aside is not None
    assert box.record.aside.startswith("uidvalidity_unstable")
    assert engine.of("mailbox.reset") == []
    assert set(engine.fold().by_name()["INBOX"]) == set(account.mailboxes["INBOX"].uids)
    looks = sum("Restless" in c and c.startswith("EXAMINE") for c in engine.server.commands)
    await engine.look()
    assert sum("Restless" in c and c.startswith("EXAMINE") for c in engine.server.commands) == looks
    engine.server.profile = Profile(QRESYNC)
    await engine.hang_up()
    engine.now += 7 * 3600
    await engine.catch_up()
    engine.agrees(account)


async def test_a_folder_whose_uidvalidity_never_settles_is_set_aside_after_some_resets(
    account: Account, start: Start
) -> None:
    """It holds still within a pass, but not between passes."""
    account.create("Odd")
    fill(account, 3, "Odd")
    engine = await start(CONDSTORE)
    await engine.catch_up(passes=1)
    for _ in range(6):
        account.mailboxes["Odd"].new_epoch()
        await engine.catch_up(passes=1)
        engine.now += 600
    assert engine.kinds().count("mailbox.reset") == 3
    engine.now += 7 * 3600
    await engine.catch_up()
    engine.agrees(account)


async def test_case_20_unknown_uidnext_is_not_zero(account: Account, start: Start) -> None:
    """No UIDNEXT in EXAMINE, and STATUS with an empty list."""
    fill(account, 4)
    engine = await start(Profile(BASE | {"LIST-STATUS"}, tell_uidnext=False))
    engine.server.bend(r"^LIST", lambda lines: [re.sub(rb"^(\* STATUS \S+) \(.*\)", rb"\1 ()", line) for line in lines])
    await engine.catch_up()
    engine.agrees(account)
    fill(account, 1, first=50)
    account.mailboxes["INBOX"].expunge(2)
    await engine.look()
    engine.agrees(account)


@ALL_KINDS
async def test_case_21_a_gap_below_uidnext_is_proven_empty_once(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """UIDNEXT 20, highest UID 12: one search, then the cursor stands at UIDNEXT and nothing is asked again."""
    fill(account, 12)
    engine = await start(kind)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    for n in range(13, 20):
        inbox.deliver(letter(n))
    inbox.expunge(*range(13, 20))
    await engine.look()
    record = next(iter(engine.state().mailboxes.values())).record
    assert record.uidnext == 20
    searches = engine.server.count("UID SEARCH")
    await engine.look()
    assert engine.server.count("UID SEARCH") == searches
    engine.agrees(account)


@pytest.mark.parametrize("told", ["nothing", "zero", "more"])
@ALL_KINDS
async def test_the_highest_uid_of_all(kind: frozenset[str], told: str, account: Account, start: Start) -> None:
    """Behind UID 4294967295 there is none to ask for: what servers say of UIDNEXT then, or refuse, costs no mailbox."""
    fill(account, 3)
    engine = await start(Profile(kind, tell_uidnext=told != "nothing", refuses={r"\b4294967296": "BAD out of range"}))
    if told == "zero":
        engine.server.bend(r"EXAMINE|LIST|STATUS", replacing(b"UIDNEXT 4294967296", b"UIDNEXT 0"))
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.deliver(letter(4), uid=2**32 - 1)
    for _ in range(3):
        await engine.catch_up()
        engine.agrees(account)
        engine.now += 4000
    inbox.set_flags(2**32 - 1, ["\\Seen"])
    await engine.look()
    engine.agrees(account)
    inbox.expunge(2**32 - 1)
    await engine.look()
    engine.agrees(account)
    assert engine.server.refused == []


@pytest.mark.parametrize("number", [b"4294967297", b"9999999999", b"9999999999999999999"])
@ALL_KINDS
async def test_a_uidnext_that_can_be_none_moves_no_cursor(
    kind: frozenset[str], number: bytes, account: Account, start: Start
) -> None:
    """Told once, it would be where new mail is looked for ever after."""
    fill(account, 3)
    engine = await start(Profile(kind, refuses={r"SEARCH .*\b(4294967296|\d{11,}|[5-9]\d{9}):": "BAD out of range"}))
    await engine.catch_up()
    fill(account, 1, first=4)
    engine.server.bend(r"EXAMINE", replacing(b"UIDNEXT 5", b"UIDNEXT " + number), times=1)
    await engine.look()
    engine.agrees(account)
    fill(account, 1, first=5)
    await engine.look()
    engine.agrees(account)
    assert [event.get("origin", "live") for event in engine.of("message.added")][-2:] == ["live", "live"]


async def test_case_23_each_mailbox_has_its_own_cursor(account: Account, start: Start) -> None:
    """Folders at UID 6800 and 6000 both go on."""
    a, b = account.create("A"), account.create("B")
    a.deliver(letter(1), uid=6800)
    b.deliver(letter(2), uid=6000)
    engine = await start(CONDSTORE)
    await engine.catch_up()
    b.deliver(letter(3))
    await engine.look()
    engine.agrees(account)


@pytest.mark.parametrize(
    "answer",
    [
        b"* SEARCH System Error (Failure)\r\n",
        b"* SEARCH 1 2 x\r\n",
        b"",
        b"* SEARCH\r\n",
        b"* SEARCH 1 2\r\n",
    ],
    ids=["text", "half", "missing", "empty", "cut"],
)
async def test_case_24_nothing_vanishes_on_a_bad_search(answer: bytes, account: Account, start: Start) -> None:
    """Malformed, missing, or denying messages that exist: nothing that is there is removed; later a good answer
    counts.
    """
    fill(account, 6)
    engine = await start(BARE)
    await engine.catch_up()
    account.mailboxes["INBOX"].expunge(3)
    bend = engine.server.bend(r"UID SEARCH", lambda lines: [answer, lines[-1]] if answer else lines[-1:])
    await engine.look()
    assert {e["uid"] for e in engine.of("message.removed")} <= {3}
    bend.times = 0
    engine.now += 600
    await engine.look()
    engine.agrees(account)
    assert engine.kinds().count("message.removed") == 1


@ALL_KINDS
@pytest.mark.parametrize("answer", ["nothing", "incomplete"])
async def test_cases_24_25_a_search_that_tells_too_little_after_a_reset_removes_nothing(
    answer: str, kind: frozenset[str], account: Account, start: Start
) -> None:
    """The search for history tells nothing but OK, or leaves messages out: that does not prove that they are gone."""
    fill(account, 6)
    engine = await start(kind)
    await engine.catch_up()
    account.mailboxes["INBOX"].new_epoch()

    def less(lines: list[bytes]) -> list[bytes]:
        if answer == "nothing":
            return lines[-1:]
        return [line.replace(b" 1:6", b" 1:4").replace(b"1 2 3 4 5 6", b"1 2 3 4") for line in lines]

    bend = engine.server.bend(r"UID SEARCH .*UID 1:6", less, times=1)
    await engine.look()
    await engine.history()
    await engine.catch_up()
    assert bend.used == 1
    engine.agrees(account)
    assert engine.kinds().count("message.moved") == 6
    assert engine.of("message.removed") == []


async def test_case_25_servers_that_tell_no_miss_come_to_the_end_of_history(account: Account, start: Start) -> None:
    """Where a search without a hit has no result line, an empty history is one, after a reset too."""
    engine = await start(BARE)
    engine.server.bend(r"UID SEARCH", without(rb"\* SEARCH\r\n"))
    fill(account, 3)
    account.mailboxes["INBOX"].expunge(1, 2, 3)
    await engine.catch_up()
    fill(account, 3, first=10)
    await engine.look()
    account.mailboxes["INBOX"].new_epoch()
    account.mailboxes["INBOX"].expunge(1, 2, 3)
    await engine.look()
    fill(account, 1, first=20)
    await engine.catch_up()
    engine.agrees(account)
    assert engine.state().mailboxes.values()
    assert all(box.record.backfill_done for box in engine.state().mailboxes.values())


@pytest.mark.parametrize("kind", [CONDSTORE, BARE], ids=["condstore", "bare"])
async def test_case_20_25_a_highest_uid_that_is_not_told_is_not_zero(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """UIDNEXT is not told, and the search that stands in for it tells nothing but OK, after a reset."""
    fill(account, 4)
    engine = await start(Profile(kind, tell_uidnext=False))
    await engine.catch_up()
    account.mailboxes["INBOX"].new_epoch()
    engine.server.bend(r"UID SEARCH .*ALL$", lambda lines: lines[-1:], times=1)
    await engine.look()
    await engine.history()
    engine.now += 120
    await engine.catch_up()
    engine.agrees(account)
    assert engine.kinds().count("message.moved") == 4
    assert engine.of("message.removed") == []


async def test_case_25_words_in_the_completion_are_no_ids(account: Account, start: Start) -> None:
    """No hit: only a tagged OK with a number in its text."""
    fill(account, 3)
    engine = await start(BARE)

    def bend(lines: list[bytes]) -> list[Action]:
        tag = lines[-1].split()[0]
        found = [line for line in lines[:-1] if line.strip() != b"* SEARCH"]
        return [*found, tag + b" OK SEARCH completed (took 2 ms)\r\n"]

    engine.server.bend(r"UID SEARCH", bend)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.deliver(letter(4))
    inbox.expunge(4)
    await engine.look()
    assert next(iter(engine.state().mailboxes.values())).record.uidnext == 5
    inbox.deliver(letter(5))
    await engine.look()
    engine.agrees(account)


@ALL_KINDS
async def test_case_27_mail_that_arrives_during_the_compare_stays(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """A message is delivered while UIDs are listed: it lies above the watermark and cannot be missing."""
    fill(account, 5)
    engine = await start(kind)
    await engine.catch_up()

    def arrive(lines: list[bytes]) -> list[Action]:
        fill(account, 1, first=1000 + len(engine.server.commands))
        return list(lines)

    engine.server.bend(r"UID SEARCH", arrive, times=3)
    engine.now += 4000
    for _ in range(4):
        await engine.look()
    engine.agrees(account)
    assert "message.removed" not in engine.kinds()


async def test_case_30_31_33_lines_out_of_place_in_a_fetch(account: Account, start: Start) -> None:
    """Data of others inside an answer, the same UID twice with other items, a FETCH before its EXISTS."""
    fill(account, 4)
    engine = await start(CONDSTORE)
    await engine.look()

    def bend(lines: list[bytes]) -> list[Action]:
        return [
            b"* 9 FETCH (UID 99 FLAGS (\\Seen))\r\n",
            b"* 9 EXISTS\r\n",
            lines[0],
            b"* 1 FETCH (UID 1 MODSEQ (7))\r\n",
            *lines[1:],
        ]

    engine.server.bend(r"UID FETCH .*HEADER", bend, times=1)
    await engine.history()
    engine.agrees(account)
    assert all(event["headers"].get("subject") for event in engine.of("message.added"))


@ALL_KINDS
@pytest.mark.parametrize("how", ["shifted", "reversed"])
async def test_case_34_renumbered_uids_are_noticed(
    how: str, kind: frozenset[str], account: Account, start: Start
) -> None:
    """A bridge gives other UIDs under the same UIDVALIDITY: a new epoch, not wrong mail under old names."""
    fill(account, 30)
    engine = await start(kind)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    if how == "shifted":
        inbox.expunge(1)
        inbox.renumber(1)
    else:
        inbox.messages.reverse()
        inbox.renumber(1)
    await engine.hang_up()
    engine.forget()
    engine.now += 4000
    await engine.look()
    await engine.history()
    engine.agrees(account)
    assert engine.of("mailbox.reset")[0]["reason"] == "uids_renumbered"


async def test_case_34_renumbered_uids_are_noticed_again_when_the_reset_breaks_off(
    account: Account, start: Start
) -> None:
    """The connection ends in the search that stands in for UIDNEXT: the next look must not take the UIDs for good."""
    fill(account, 30)
    inbox = account.mailboxes["INBOX"]
    engine = await start(Profile(BARE, tell_uidnext=False))
    await engine.catch_up()
    inbox.messages.reverse()
    inbox.renumber(1)
    inbox.set_flags(3, ["\\Flagged"])
    await engine.hang_up()
    engine.forget()
    engine.server.bend(r"UID SEARCH ALL", lambda lines: [Drop()], times=1)
    assert await engine.survive(engine.look()) is not None
    await engine.look()
    await engine.history()
    assert [event["reason"] for event in engine.of("mailbox.reset")] == ["uids_renumbered"]
    assert engine.of("message.flags_changed") == []
    engine.agrees(account)


async def test_case_34_one_corrected_size_is_no_renumbering(account: Account, start: Start) -> None:
    """Of many messages one looks different: the mailbox is not thrown away for it."""
    fill(account, 30)
    engine = await start(CONDSTORE)
    await engine.catch_up()
    inbox = account.mailboxes["INBOX"]
    inbox.by_uid(30).raw += b"more"
    inbox.set_flags(1, ["\\Seen"])
    engine.forget()
    await engine.look()
    assert "mailbox.reset" not in engine.kinds()


async def test_case_35_a_shared_uidvalidity_proves_no_rename(account: Account, start: Start) -> None:
    """A and B have UIDVALIDITY 42, both go, C comes with 42: C is new."""
    for name in ("A", "B"):
        account.create(name).uidvalidity = 42
        fill(account, 3, name, first=ord(name))
    engine = await start(CONDSTORE)
    await engine.catch_up()
    account.delete("A")
    account.delete("B")
    account.create("C").uidvalidity = 42
    fill(account, 3, "C", first=500)
    await engine.catch_up(passes=1)
    engine.agrees(account)
    assert "mailbox.renamed" not in engine.kinds()
    assert engine.kinds().count("mailbox.deleted") == 2


async def test_a_rename_that_is_certain_costs_nothing(account: Account, start: Start) -> None:
    """One name goes, one comes, with a UIDVALIDITY nobody else has: no message is touched."""
    account.create("Work")
    fill(account, 5, "Work")
    engine = await start(CONDSTORE)
    await engine.catch_up()
    account.rename("Work", "Done")
    events = len(engine.events())
    await engine.look()
    assert engine.kinds()[events:] == ["mailbox.renamed"]
    engine.agrees(account)


async def test_objectid_mailboxes_swap_names(account: Account, start: Start) -> None:
    """MAILBOXID tells who is who (RFC 8474): two mailboxes exchange their names, a third is replaced by another."""
    for name in ("A", "B", "C"):
        account.create(name)
        fill(account, 3, name, first=ord(name) * 10)
    engine = await start(FULL)
    await engine.catch_up()
    account.rename("A", "x")
    account.rename("B", "A")
    account.rename("x", "B")
    validity = account.mailboxes["C"].uidvalidity
    account.delete("C")
    account.create("C").uidvalidity = validity
    fill(account, 2, "C", first=9000)
    events = len(engine.events())
    await engine.catch_up(passes=1)
    engine.agrees(account)
    kinds = engine.kinds()[events:]
    assert kinds.count("mailbox.renamed") == 2
    assert kinds.count("mailbox.deleted") == 1
    assert kinds.count("message.added") == 2


@pytest.mark.parametrize("numbers", ["same UIDVALIDITY", "other UIDVALIDITY"])
@pytest.mark.parametrize("when", ["known", "first sight", "history"])
async def test_objectid_mailboxes_swap_names_between_the_list_and_their_opening(
    when: str, numbers: str, account: Account, start: Start
) -> None:
    """EXAMINE tells another MAILBOXID than the list: nothing of what is in there is about the mailbox that is known."""
    for name in ("A", "B"):
        account.create(name)
        fill(account, 4, name, first=ord(name) * 10)
    if numbers == "same UIDVALIDITY":
        account.mailboxes["B"].uidvalidity = account.mailboxes["A"].uidvalidity
    account.mailboxes["B"].set_flags(2, ["\\Flagged"])
    account.mailboxes["B"].expunge(4)
    engine = await start(FULL)

    def swap(lines: list[bytes]) -> list[bytes]:
        account.rename("A", "x")
        account.rename("B", "A")
        account.rename("x", "B")
        return lines

    if when == "known":
        await engine.catch_up()
        fill(account, 1, "A", first=9000)
        fill(account, 1, "B", first=9100)
    if when == "history":
        await engine.look()
        swap([])
        await engine.history()
    else:
        engine.server.bend(r"LIST ", swap, times=1)
    await engine.look()
    engine.now += 130
    await engine.catch_up()
    engine.agrees(account)
    kinds = engine.kinds()
    assert kinds.count("message.added") == (9 if when == "known" else 7)
    assert not {"message.removed", "message.moved", "message.flags_changed", "mailbox.reset"} & set(kinds)


async def test_objectid_that_is_told_no_more_hides_no_mailbox(account: Account, start: Start) -> None:
    """STATUS tells ids no more, EXAMINE does; a mailbox was made anew under its name meanwhile."""
    account.create("A")
    fill(account, 3, "A")
    engine = await start(FULL)
    await engine.catch_up()
    engine.server.bend(r"LIST |STATUS ", lambda lines: [re.sub(rb" MAILBOXID \(\w+\)", b"", it) for it in lines])
    account.delete("A")
    account.create("A")
    fill(account, 2, "A", first=100)
    await engine.catch_up()
    engine.agrees(account)


async def test_objectid_mailboxes_that_share_an_id(account: Account, start: Start) -> None:
    """Copies on the server's disk have the MAILBOXID of the original: each goes on by its name."""
    for name in ("A", "B", "C"):
        account.create(name).mailbox_id = "F1"
        fill(account, 3, name, first=ord(name) * 10)
    engine = await start(FULL)
    await engine.catch_up()
    engine.agrees(account)
    with engine.quiet():
        await engine.catch_up()


async def test_case_37_history_has_its_own_state(account: Account, start: Start) -> None:
    """Live mail arrives before any history was read; the history is read nevertheless, after a crash too."""
    fill(account, 40)
    engine = await start(CONDSTORE, FETCH_WINDOW=10, FETCH_CHUNK=5)
    await engine.look()
    fill(account, 20, first=100)
    await engine.look()
    assert {e.get("origin", "live") for e in engine.of("message.added")} == {"live"}
    await engine.history(1)
    await engine.hang_up()
    engine.forget()
    await engine.look()
    await engine.history()
    engine.agrees(account)
    backfilled = [e["uid"] for e in engine.of("message.added") if e.get("origin") == "backfill"]
    assert len(backfilled) == 40
    assert set(backfilled[:5]) | set(backfilled[5:10]) == set(range(31, 41))
    assert engine.kinds().count("backfill.completed") == 1


@ALL_KINDS
async def test_moves_pair_and_copies_share_an_id(kind: frozenset[str], account: Account, start: Start) -> None:
    """A move between folders is one event; a copy is a second place of the same message."""
    work = account.create("Work")
    fill(account, 10)
    inbox = account.mailboxes["INBOX"]
    engine = await start(kind)
    await engine.catch_up()
    inbox.move_to(3, work)
    inbox.copy_to(4, work)
    inbox.copy_to(5, inbox)
    events = len(engine.events())
    await engine.look()
    engine.agrees(account)
    assert sorted(engine.kinds()[events:]) == ["message.added", "message.added", "message.moved"]


async def test_a_list_that_does_not_parse_deletes_nothing(account: Account, start: Start) -> None:
    """An unreadable line, or no line at all, proves no absence."""
    account.create("Work")
    fill(account, 3, "Work")
    engine = await start(CONDSTORE)
    await engine.catch_up()
    for bender in (
        lambda lines: [b"* LIST garbage\r\n", *[line for line in lines if b"Work" not in line]],
        lambda lines: lines[-1:],
    ):
        engine.server.bend(r"^LIST", bender, times=1)
        with engine.quiet():
            await engine.look()
    engine.agrees(account)


@pytest.mark.parametrize("listed", [b"0", b"4711"])
async def test_a_mailbox_listed_in_another_epoch_than_it_opens_in(
    listed: bytes, account: Account, start: Start
) -> None:
    """Made anew between LIST and its first visit, or by the visit: the log tells the epoch before any message of it."""
    account.create("Work")
    fill(account, 3, "Work")
    engine = await start(Profile(CONDSTORE | {"LIST-STATUS"}))
    engine.server.bend(
        r"^LIST",
        lambda lines: [re.sub(rb"(STATUS \"?Work\"? .*UIDVALIDITY) \d+", rb"\1 " + listed, line) for line in lines],
    )
    await engine.catch_up()
    engine.agrees(account)
    told = [event.get("uidvalidity") for event in engine.of("mailbox.discovered") if event["mailbox"] == "Work"]
    assert told == [None if listed == b"0" else 4711]
    assert engine.kinds().count("mailbox.reset") == (0 if listed == b"0" else 1)


@ALL_KINDS
async def test_new_mail_is_read_in_its_own_mailbox(kind: frozenset[str], account: Account, start: Start) -> None:
    """INBOX has new mail while another folder is seen for the first time, refused, or reset: nothing is read in the
    wrong one.
    """
    fill(account, 3)
    account.create("Epoch")
    fill(account, 6, "Epoch", first=50)
    engine = await start(kind)
    await engine.catch_up()
    fill(account, 2, first=100)
    account.create("New")
    fill(account, 8, "New", first=200)
    account.mailboxes["Epoch"].new_epoch()
    await engine.look()
    assert set(engine.fold().by_name()["INBOX"]) == {1, 2, 3, 4, 5}
    await engine.history()
    engine.agrees(account)
