"""An account in working form: changes become events and mirror records together, and come back from them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.contracts import mailbox as events
from streams.contracts import topics
from streams.contracts.topics import MAX_RECORD_BYTES
from streams.domain import mirror
from streams.domain.mirror import MailboxRecord
from streams.errors import MirrorDamaged, RecordTooLarge
from streams.sync.moves import HeldRemovals
from streams.sync.state import AccountState
from tests.fixtures.memory_log import MemoryPartition

ACCOUNT = "11111111-1111-1111-1111-111111111111"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def state_of(truth: MemoryPartition) -> AccountState:
    return AccountState(ACCOUNT, truth.open(), lambda: NOW, lambda name: name)  # type: ignore[arg-type]


def identity(n: int) -> bytes:
    return n.to_bytes(10, "big")


def mailbox(state: AccountState, name: str = "INBOX", uidvalidity: int = 7) -> Any:
    return state.add_mailbox(
        MailboxRecord(state.new_mailbox_id(), name.encode(), name, uidvalidity=uidvalidity, visited=True)
    )


def emit(state: AccountState, box: Any, uid: int) -> None:
    state.emit(
        events.MessageRemoved,
        mailbox_id=box.record.mailbox_id,
        mailbox=box.record.name,
        uidvalidity=box.epoch,
        uid=uid,
        message_id="m",
    )


async def test_what_was_put_comes_back_from_the_log() -> None:
    truth = MemoryPartition()
    state = state_of(truth)
    box = mailbox(state)
    for uid in (1, 511, 512, 513, 16383, 16384, 70000, 2**32 - 1):
        box.put(uid, frozenset({"\\Seen"} if uid % 2 else {"kw"}), identity(uid))
    await state.commit()
    again = state_of(truth)
    found = again.by_wire_name(b"INBOX")
    assert found is not None
    assert set(found.known()) == {1, 511, 512, 513, 16383, 16384, 70000, 2**32 - 1}
    assert found.flags(513) == {"\\Seen"}
    assert found.identity(70000) == identity(70000)
    assert found.record.count == 8


async def test_a_batch_holds_only_what_was_touched() -> None:
    """One arrival in a large mailbox: the mailbox, one segment of each kind, the account."""
    truth = MemoryPartition()
    state = state_of(truth)
    box = mailbox(state)
    for uid in range(1, 40_001, 3):
        box.put(uid, frozenset(), identity(uid))
    await state.commit()
    box.put(40_001, frozenset({"\\Seen"}), identity(40_001))
    emit(state, box, 40_001)
    before = set(truth.mirror)
    written: list[str] = []
    submit = state.log.submit

    def spy(batch: Any) -> Any:
        written.extend(batch.mirror)
        return submit(batch)

    state.log.submit = spy  # type: ignore[method-assign]
    await state.commit()
    assert len(written) == 4
    assert len(set(truth.mirror) - before) <= 1


async def test_sequences_are_gapless_and_the_account_goes_with_its_events() -> None:
    truth = MemoryPartition()
    state = state_of(truth)
    box = mailbox(state)
    for uid in range(1, 6):
        emit(state, box, uid)
        if uid % 2:
            state.flush()
    await state.commit()
    sequences = [event["sequence"] for event in truth.events(topics.CHANGES)]
    assert sequences == [1, 2, 3, 4, 5]
    assert mirror.decode_account(truth.mirror[mirror.account_key(ACCOUNT)]).next_sequence == 6
    for record in truth.records:
        headers = dict(record.headers)
        assert headers["writer"] == b"w/1"
        assert headers["ce_id"] == f"{ACCOUNT}/{json.loads(record.value or b'')['sequence']}".encode()


@pytest.mark.parametrize("kind", ["flags", "ids", "mailbox"])
async def test_a_missing_record_is_noticed(kind: str) -> None:
    """Never read as "nothing known"."""
    truth = MemoryPartition()
    state = state_of(truth)
    box = mailbox(state)
    for uid in (1, 20_000):
        box.put(uid, frozenset(), identity(uid))
    await state.commit()
    key = next(k for k in truth.mirror if f"/{kind}/" in k)
    del truth.mirror[key]

    def read_all() -> None:
        for box in state_of(truth).iterate():
            for uid in box.known():
                box.identity(uid)

    with pytest.raises(MirrorDamaged):
        read_all()


async def test_a_deleted_mailbox_leaves_nothing_behind() -> None:
    truth = MemoryPartition()
    state = state_of(truth)
    box, other = mailbox(state), mailbox(state, "Other")
    for uid in (1, 20_000):
        box.put(uid, frozenset(), identity(uid))
        other.put(uid, frozenset(), identity(uid))
    await state.commit()
    state.remove_mailbox(box)
    await state.commit()
    assert not any(box.record.mailbox_id in key for key in truth.mirror)
    assert set(state_of(truth).mailboxes) == {other.record.mailbox_id}
    assert state_of(truth).new_mailbox_id() not in {box.record.mailbox_id, other.record.mailbox_id}


async def test_epochs_stand_side_by_side_until_the_old_one_is_empty() -> None:
    truth = MemoryPartition()
    state = state_of(truth)
    box = mailbox(state)
    for uid in range(1, 5):
        box.put(uid, frozenset({"\\Seen"}), identity(uid))
    box.begin_epoch(8)
    box.put(1, frozenset(), identity(3))
    box.drop(3, 7)
    await state.commit()
    again = state_of(truth).by_wire_name(b"INBOX")
    assert again is not None
    assert set(again.known()) == {1}
    assert set(again.known(7)) == {1, 2, 4}
    assert again.identity(1) == identity(3)
    for uid in (1, 2, 4):
        again.drop(uid, 7)
    assert (again.record.count, again.record.previous_count) == (1, 0)


async def test_an_event_too_large_for_the_topic_becomes_a_flagged_stub() -> None:
    truth = MemoryPartition()
    state = state_of(truth)
    box = mailbox(state)
    addresses = tuple(events.Address(name="n" * 400, address="a" * 400) for _ in range(5000))
    state.emit(
        events.MessageAdded,
        mailbox_id=box.record.mailbox_id,
        mailbox="INBOX",
        uidvalidity=7,
        uid=1,
        message_id="m",
        headers=events.MessageHeaders(to=addresses, from_=addresses[:20], subject="s" * 2000),
        preview="p" * 100_000,
    )
    await state.commit()
    (event,) = truth.events(topics.CHANGES)
    assert event["truncated"] is True
    assert len(truth.records[-1].value or b"") < topics.MAX_RECORD_BYTES
    assert (event["uid"], len(event["headers"]["from"]), len(event["headers"]["subject"])) == (1, 10, 500)


async def test_the_newest_mail_is_kept_and_never_lies_in_the_future() -> None:
    state = state_of(MemoryPartition())
    state.saw_mail(datetime(2040, 1, 1, tzinfo=UTC))
    assert state.record.newest_mail_at == NOW.timestamp()
    state.saw_mail(datetime(2001, 1, 1, tzinfo=UTC))
    state.saw_mail(None)
    assert state.record.newest_mail_at == NOW.timestamp()


operation = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 40_000), st.frozensets(st.sampled_from(["\\Seen", "kw", "x"]))),
    st.tuples(st.just("flags"), st.integers(0, 50), st.frozensets(st.sampled_from(["\\Seen", "kw", "x"]))),
    st.tuples(st.just("drop"), st.integers(0, 50)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("release")),
    st.tuples(st.just("restart")),
)


@settings(max_examples=60)
@given(st.lists(operation, max_size=40))
def test_the_state_is_what_was_done_to_it(script: list[Any]) -> None:
    """Against a plain dictionary, through flushes, releases of memory and restarts from the log."""

    async def play() -> None:
        truth = MemoryPartition()
        state = state_of(truth)
        mailbox(state)
        model: dict[int, frozenset[str]] = {}
        for step in script:
            box = state.by_wire_name(b"INBOX")
            assert box is not None
            match step:
                case ("put", uid, flags):
                    box.put(uid, flags, identity(uid))
                    model[uid] = flags
                case ("flags", n, flags) if model:
                    uid = sorted(model)[n % len(model)]
                    model[uid] = box.set_flags(uid, flags)
                case ("drop", n) if model:
                    uid = sorted(model)[n % len(model)]
                    box.drop(uid)
                    del model[uid]
                case ("flush",):
                    state.flush()
                case ("release",):
                    await state.commit()
                    box.release()
                case ("restart",):
                    await state.commit()
                    state = state_of(truth)
            box = state.by_wire_name(b"INBOX")
            assert box is not None
            assert set(box.known()) == set(model)
            assert {uid: box.flags(uid) for uid in model} == model
            assert all(box.identity(uid) == identity(uid) for uid in model)

    asyncio.run(play())


# --- moves -----------------------------------------------------------------------------------------------------------
async def test_held_removals_are_given_out_once_and_in_order() -> None:
    state = state_of(MemoryPartition())
    a, b = mailbox(state, "A"), mailbox(state, "B", 9)
    for uid in (1, 2, 3):
        a.put(uid, frozenset(), identity(5))
        b.put(uid, frozenset(), identity(uid))
    held = HeldRemovals()
    assert not held
    held.hold(a, a.known().copy())
    held.hold(b, b.known().copy())
    await held.prepare()
    assert [held.take(identity(5)) for _ in range(4)] == [(a, 7, 1), (a, 7, 2), (a, 7, 3), None]
    assert held.take(identity(2)) == (b, 9, 2)
    assert held.take(identity(99)) is None
    assert [(box, epoch, list(uids)) for box, epoch, uids in held.rest()] == [(b, 9, [1, 3])]
    held.hold(a, a.known() & a.known()[:1])
    await held.prepare()
    assert held


async def test_places_of_a_mailbox_that_is_gone_are_not_given_out() -> None:
    state = state_of(MemoryPartition())
    box = mailbox(state)
    box.put(1, frozenset(), identity(1))
    held = HeldRemovals()
    held.hold(box, box.known().copy())
    await held.prepare()
    state.remove_mailbox(box)
    assert held.take(identity(1)) is None


async def test_a_hundred_thousand_held_places_take_little_memory_and_do_not_hold_the_loop() -> None:
    """16 bytes each, looked up in slices."""
    state = state_of(MemoryPartition())
    box = mailbox(state)
    for uid in range(1, 100_001):
        box.put(uid, frozenset(), identity(uid * 7919 % 1_000_003 + 1))
    held = HeldRemovals()
    held.hold(box, box.known().copy())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await held.prepare()
    task.cancel()
    assert turns > 40
    assert sum(len(table) for _, table in held._tables) == 1_600_000
    assert held.take(identity(500 * 7919 % 1_000_003 + 1)) == (box, 7, 500)


@pytest.mark.parametrize("what", ["keywords", "labels"])
async def test_what_no_record_holds_is_refused_before_it_reaches_the_log(what: str) -> None:
    """Kafka refuses it, and the transaction with it: one account would take the writer from all of its shard."""
    truth = MemoryPartition()
    state = state_of(truth)
    box = mailbox(state)
    box.put(1, frozenset({"\\Seen"}), identity(1))
    emit(state, box, 1)
    await state.commit()
    if what == "keywords":
        for uid in range(2, 30):
            box.put(uid, frozenset({chr(96 + uid) * 60_000}), identity(uid))
            emit(state, box, uid)
    else:
        state.emit(
            events.MessageAdded,
            mailbox_id=box.record.mailbox_id,
            mailbox=box.record.name,
            uidvalidity=box.epoch,
            uid=2,
            message_id="m",
            labels=tuple(f"{n}" * 5000 for n in range(300)),
        )
    for _ in range(2):  # whoever tries to write what is left is told the same
        with pytest.raises(RecordTooLarge):
            await state.commit()
    assert not state.log.lost.done()
    assert all(len(record.value or b"") <= MAX_RECORD_BYTES for record in truth.records)
    assert all(len(value) <= MAX_RECORD_BYTES for value in truth.mirror.values())
    again = AccountState(ACCOUNT, state.log, lambda: NOW, lambda name: name)
    assert again.record.next_sequence == 2
    found = again.by_wire_name(b"INBOX")
    assert found is not None
    emit(again, found, 1)
    await again.commit()
    assert [json.loads(record.value or b"")["sequence"] for record in truth.records] == [1, 2]
