"""Removal of an account, cut short anywhere: the log stays gapless, a repeat ends it, only one record of it stays."""

from __future__ import annotations

import json

import pytest

from streams.contracts import topics
from streams.domain import mirror
from streams.errors import ProducerLost
from streams.sync.removal import RETRACTED, anything_left, erase
from tests.fixtures.memory_log import MemoryPartition
from tests.unit.sync.test_state import ACCOUNT, identity, mailbox, state_of


async def filled(truth: MemoryPartition) -> None:
    state = state_of(truth)
    for name in ("INBOX", "Archive", "Work"):
        box = mailbox(state, name)
        for uid in (1, 600, 20_000):
            box.put(uid, frozenset({"\\Seen"}), identity(uid))
    state.record.tier, state.record.caught_up, state.record.basis = "hot", True, "content"
    state.record.next_sequence = 10
    state.touch()
    await state.commit()


@pytest.mark.parametrize("commits", range(5))
async def test_s8_a_removal_cut_short_after_any_commit_is_ended_by_a_repeat(commits: int) -> None:
    truth = MemoryPartition()
    await filled(truth)
    state = state_of(truth)
    done, commit = 0, state.commit

    async def until_lost() -> None:
        nonlocal done
        if done == commits:
            raise ProducerLost("gone")
        done += 1
        await commit()

    state.commit = until_lost  # type: ignore[method-assign]
    if commits < 4:
        with pytest.raises(ProducerLost):
            await erase(state)
        assert anything_left(truth.open(), ACCOUNT)  # type: ignore[arg-type]
        await erase(state_of(truth))
    else:
        assert await erase(state) == 3
    log = truth.open()
    assert not anything_left(log, ACCOUNT)  # type: ignore[arg-type]
    assert [key for key, _ in log.scan(ACCOUNT)] == [mirror.account_key(ACCOUNT)]
    told = [json.loads(r.value or b"null") for r in truth.records if r.topic == topics.CHANGES]
    assert [event["sequence"] for event in told] == [10, 11, 12]
    assert {event["mailbox"] for event in told} == {"INBOX", "Archive", "Work"}
    for topic in RETRACTED:
        assert truth.events(topic, ACCOUNT)[-1] is None
    value = log.read(mirror.account_key(ACCOUNT))
    assert value is not None
    record = mirror.decode_account(value)
    assert (record.next_sequence, record.serial, record.caught_up, record.basis) == (13, 3, False, None)


async def test_s8_an_account_that_is_not_known_has_nothing_left() -> None:
    truth = MemoryPartition()
    assert not anything_left(truth.open(), ACCOUNT)  # type: ignore[arg-type]
    await erase(state_of(truth))
    assert not anything_left(truth.open(), ACCOUNT)  # type: ignore[arg-type]
