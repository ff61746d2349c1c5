"""History: how far it reaches (`SYNC_SINCE`), what changing that later means, huge mailboxes in bounded pieces. Row
S17.
"""

from __future__ import annotations

import itertools
import random
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from streams.sync import comparing
from streams.sync.backfill import Backfill
from tests.fixtures.engine import BEGINNING, Engine, letter
from tests.integration.engine.conftest import Start
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import BARE, CONDSTORE, FULL, QRESYNC

NOW = datetime.fromtimestamp(BEGINNING, UTC)
KINDS = pytest.mark.parametrize("kind", [QRESYNC, CONDSTORE, BARE], ids=["qresync", "condstore", "bare"])


def old_mail(account: Account, ages_in_days: list[int]) -> None:
    for n, age in enumerate(ages_in_days, 1):
        account.mailboxes["INBOX"].deliver(letter(n), internal_date=NOW - timedelta(days=age))


def known(engine: Engine) -> set[int]:
    return set(engine.fold().by_name()["INBOX"])


@KINDS
async def test_since_takes_mail_of_the_last_days_and_all_that_comes(
    kind: frozenset[str], account: Account, start: Start
) -> None:
    """30 days: by INTERNALDATE, one day more rather than one less; a later arrival counts whatever its date."""
    old_mail(account, [400, 90, 40, 32, 29, 5, 0])
    engine = await start(kind, SYNC_SINCE="30")
    await engine.catch_up()
    assert known(engine) == {5, 6, 7}
    (completed,) = engine.of("backfill.completed")
    assert completed["messages"] == 3
    assert datetime.fromisoformat(completed["since"]) == NOW - timedelta(days=30)
    account.mailboxes["INBOX"].deliver(letter(100), internal_date=NOW - timedelta(days=3000))
    await engine.look()
    assert known(engine) == {5, 6, 7, 8}
    # at rest, what is not wanted is no reason to look again
    await engine.look()
    await engine.hang_up()  # a mailbox that is open is looked at in any case
    await engine.connect()
    before = engine.server.count("EXAMINE")
    with engine.quiet():
        await engine.look()
    assert engine.server.count("EXAMINE") == before or kind is BARE


@KINDS
async def test_removals_on_both_sides_of_the_limit(kind: frozenset[str], account: Account, start: Start) -> None:
    """An unwanted message that goes is no event and hides no other; a wanted one is removed."""
    old_mail(account, [400, 90, 5, 4, 3])
    engine = await start(kind, SYNC_SINCE="30")
    await engine.catch_up()
    await engine.look()
    inbox = account.mailboxes["INBOX"]
    inbox.expunge(1)
    with engine.quiet():
        await engine.look()
    inbox.expunge(2, 4)
    await engine.look()
    assert known(engine) == {3, 5}
    assert engine.kinds().count("message.removed") == 1


@pytest.mark.parametrize("longer", ["60", "all"])
async def test_a_limit_that_reaches_further_back_reads_the_rest(longer: str, account: Account, start: Start) -> None:
    """The setting grows: older mail is read, nothing is read twice, the limit in force is in the mirror."""
    old_mail(account, [400, 90, 45, 40, 10, 5])
    engine = await start(CONDSTORE, SYNC_SINCE="30")
    await engine.catch_up()
    assert known(engine) == {5, 6}
    engine.settings = engine.settings.model_copy(update={"SYNC_SINCE": longer})
    engine.forget()
    await engine.catch_up()
    assert known(engine) == ({1, 2, 3, 4, 5, 6} if longer == "all" else {3, 4, 5, 6})
    assert engine.kinds().count("message.added") == len(known(engine))
    record = next(iter(engine.state().mailboxes.values())).record
    assert (record.since is None) is (longer == "all")


async def test_a_shorter_limit_and_passing_time_change_nothing(account: Account, start: Start) -> None:
    """What is in the log stays; the limit in force is a date, fixed when the mailbox was first seen."""
    old_mail(account, [90, 20, 5])
    engine = await start(CONDSTORE, SYNC_SINCE="30")
    await engine.catch_up()
    engine.settings = engine.settings.model_copy(update={"SYNC_SINCE": "7"})
    engine.forget()
    engine.now += 60 * 86_400
    with engine.quiet():
        await engine.catch_up()
    assert known(engine) == {2, 3}


async def test_a_reset_keeps_what_was_known_and_takes_no_more(account: Account, start: Start) -> None:
    """After a change of UIDVALIDITY old mail that was known is matched again, old mail that was not stays out."""
    old_mail(account, [400, 90, 20, 5])
    engine = await start(CONDSTORE, SYNC_SINCE="30")
    await engine.catch_up()
    account.mailboxes["INBOX"].deliver(letter(100), internal_date=NOW - timedelta(days=3000))
    await engine.look()
    account.mailboxes["INBOX"].new_epoch()
    await engine.catch_up()
    assert known(engine) == {3, 4, 5}
    assert engine.kinds().count("message.moved") == 3
    assert "message.removed" not in engine.kinds()


async def test_history_is_read_newest_first_and_resumes(account: Account, start: Start) -> None:
    """S17: after each crash it goes on where the log ends; nothing is read twice into the log."""
    for n in range(100):
        account.mailboxes["INBOX"].deliver(letter(n))
    engine = await start(QRESYNC, FETCH_WINDOW=10, FETCH_CHUNK=5)
    await engine.look()
    for _ in range(30):
        await engine.history(1)
        await engine.hang_up()
        engine.forget()
        if engine.kinds().count("backfill.completed"):
            break
    engine.agrees(account)
    uids = [event["uid"] for event in engine.of("message.added")]
    windows = [uids[n : n + 10] for n in range(0, 100, 10)]
    assert all(min(a) > max(b) for a, b in itertools.pairwise(windows))


async def test_no_body_is_fetched_again_after_a_reset_or_a_move(account: Account, start: Start) -> None:
    """With previews too: what comes out as moved has been told already; only what is really new is fetched."""
    inbox, sent = account.mailboxes["INBOX"], account.create("Sent")
    for n in range(40):
        inbox.deliver(letter(n))
    engine = await start(CONDSTORE, PREVIEW_BYTES=100, FETCH_CHUNK=10, FETCH_WINDOW=10)
    await engine.catch_up()

    def bodies() -> int:
        return sum("BODY.PEEK[1]" in command for command in engine.server.commands)

    first = bodies()
    assert first >= 4
    inbox.new_epoch()
    await engine.catch_up()
    engine.agrees(account)
    assert engine.kinds().count("message.moved") == 40
    assert bodies() == first
    inbox.move_to(3, sent)
    inbox.deliver(letter(100))
    await engine.look()
    engine.agrees(account)
    assert engine.kinds().count("message.moved") == 41
    assert bodies() == first + 1
    added = [event for event in engine.of("message.added") if event["headers"]["subject"] == "letter 100"]
    assert len(engine.of("message.added")) == 41
    assert added[0]["preview"].startswith("xxx")


async def test_case_18_a_reset_of_a_large_mailbox_is_done_in_pieces(account: Account, start: Start) -> None:
    """3,000 messages get a new UIDVALIDITY: chunks of 500, no large transaction, memory of a few chunks."""
    count = 3_000
    chance = random.Random(3)
    inbox = account.mailboxes["INBOX"]
    for n in range(count):
        inbox.deliver(letter(n, size=1), flags=["\\Seen"] if chance.random() < 0.5 else [])
    engine = await start(QRESYNC, FETCH_WINDOW=500, FETCH_CHUNK=500)
    await engine.catch_up(passes=1)
    inbox.new_epoch()
    engine.partition.mirror_bytes.clear()
    seen = len(engine.partition.records)
    await engine.look()
    tracemalloc.start()
    try:
        await engine.history()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    engine.agrees(account)
    kinds = [event["type"] for event in engine.events()][seen:]
    assert set(kinds) == {"mailbox.reset", "message.moved", "backfill.completed"} | ({"account.caught_up"} & set(kinds))
    assert kinds.count("message.moved") == count
    assert max(engine.partition.mirror_bytes) < 2_500_000
    # records kept by the log in memory are part of the peak: about 1.2 KB each
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("kind", "again"),
    [(QRESYNC, None), (BARE, None), (FULL, None), (FULL, "same UIDVALIDITY")],
    ids=["qresync", "bare", "objectid", "objectid, same uidvalidity"],
)
async def test_history_is_not_read_out_of_a_mailbox_that_was_replaced(
    kind: frozenset[str], again: str | None, account: Account, start: Start
) -> None:
    """One connection has the old mailbox open and is served yet; a look over another one has seen the new one of that
    name. What is left of the old one must not be told as the new one's.
    """
    old = account.create("work")
    for n in range(20):
        old.deliver(letter(n))
    engine = await start(kind, FETCH_WINDOW=5)
    await engine.look()
    await engine.history(2)  # INBOX, and a window of this one
    reading = await engine.connect()
    assert reading.selected == b"work"
    account.delete("work")
    new = account.create("work")
    if again is not None:
        new.uidvalidity = old.uidvalidity
    for n in range(100, 120):
        new.deliver(letter(n))
    engine.session = None
    await engine.look()
    await engine.hang_up()
    engine.session = reading
    await engine.history()
    assert reading.alive
    engine.agrees(account)
    assert engine.of("message.moved") == []
    subjects = [event["headers"]["subject"] for event in engine.of("message.added")]
    assert len(subjects) == len(set(subjects))
    assert subjects[-20:].count("letter 119") == 1
    assert {f"letter {n}" for n in range(100, 120)} <= set(subjects)


async def test_uids_that_lie_far_apart_cost_few_searches(account: Account, start: Start) -> None:
    """UIDs from a clock, and no ESEARCH: the history and the full comparison end, in a few commands."""
    inbox = account.mailboxes["INBOX"]
    for n in range(10):
        inbox.deliver(letter(n), uid=1 + n * 190_000_000)
    engine = await start(BARE)
    await engine.catch_up()
    engine.agrees(account)
    inbox.expunge(1 + 4 * 190_000_000)
    engine.now += 7200
    await engine.catch_up()
    engine.agrees(account)
    assert engine.server.count("UID SEARCH") < 20


async def test_many_messages_without_esearch_are_searched_in_windows(
    account: Account, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More messages than one answer is to hold: windows of UIDs, and not more of them than are bearable."""
    monkeypatch.setattr(comparing, "SEARCH_WINDOW", 10)
    monkeypatch.setattr(comparing, "SEARCHES_LIMIT", 5)
    inbox = account.mailboxes["INBOX"]
    for n in range(30):
        inbox.deliver(letter(n), uid=1 + n * 1000)
    engine = await start(BARE)
    await engine.catch_up()
    engine.agrees(account)
    assert 5 <= engine.server.count("UID SEARCH") < 20


async def test_the_history_of_some_mailboxes_alone(account: Account, start: Start) -> None:
    """An owner who asks for one mailbox's history does not wait for that of the others."""
    for name in ("a", "b"):
        box = account.create(name)
        for n in range(8):
            box.deliver(letter(n, subject=f"{name} {n}"))
    engine = await start(QRESYNC, FETCH_WINDOW=5)
    await engine.look()
    account_pass = engine.new_pass()
    history = Backfill(account_pass.state, engine.settings, engine.memory, account_pass, wall=lambda: engine.now)
    only = frozenset(box.record.mailbox_id for box in account_pass.state.mailboxes.values() if box.record.name == "b")
    session = await engine.connect()
    while await history.step(session, only=only):
        pass
    await history.settle()
    assert {event["mailbox"] for event in engine.of("message.added")} == {"b"}
    assert len(engine.of("message.added")) == 8
    while await history.step(session):
        pass
    await history.settle()
    engine.agrees(account)
