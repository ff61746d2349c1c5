"""What becomes of events about accounts and users: S8, S12, W13, and the order and partitions in which they come."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.agents.intake import HANDLER_ATTEMPTS, REKEYED_HEADER, Inbound
from streams.agents.users import SWEEP_EVERY
from streams.contracts import topics
from streams.contracts.account import AccountHeat, AccountState, AccountStateChanged, UserActive
from streams.contracts.codec import encode, header
from streams.contracts.keys import partition_for
from streams.domain.ownership import AccountEntry
from tests.unit.agents.fakes import GRACE, NOW, PARTITIONS, World

A = "00000000-0000-4000-8000-00000000000a"
B = "00000000-0000-4000-8000-00000000000b"


@pytest.fixture
def world() -> World:
    return World()


async def state(world: World, state_: AccountState, version: int | None, *, user: str = "u", account: str = A) -> None:
    event = AccountStateChanged(account_id=account, user_id=user, state=state_, at=NOW, version=version)
    await world.send(topics.STATE_CHANGED, account, encode(event))


async def active(world: World, user: str = "u", at: datetime | None = None) -> None:
    event = UserActive(user_id=user, source="ws_ping", at=world.now if at is None else at)
    await world.send(topics.USER_ACTIVE, user, encode(event))


def forwarded(world: World) -> int:
    return sum(1 for record in world.log if record.topic == topics.HEAT)


async def test_s8_live_starts_and_the_others_stop(world: World) -> None:
    names: tuple[AccountState, ...] = ("live", "disabled", "live", "error", "live", "deleted")
    for version, name in enumerate(names, 1):
        await state(world, name, version)
        assert world.host.entries[A] == AccountEntry(A, "u", name, version, None)
    assert all(call[1] == partition_for(A, PARTITIONS) for call in world.host.calls)


async def test_s8_an_overtaken_event_reaches_nobody(world: World) -> None:
    await state(world, "disabled", 7)
    calls = len(world.host.calls)
    await state(world, "live", 6)
    assert len(world.host.calls) == calls
    assert world.account_rows.get(A).version == 7


async def test_s8_repeats_are_harmless(world: World) -> None:
    await state(world, "live", 1)
    await active(world)
    for _ in range(3):
        await state(world, "live", 1)
    assert world.host.entries[A].state == "live"
    assert world.host.heat[A] == NOW + 1.25 * GRACE
    assert world.user_rows.get("u").accounts == {A: 1}


async def test_s8_a_tombstone_forgets_account_version_and_heat(world: World) -> None:
    await state(world, "live", 9)
    await active(world)
    await world.send(topics.STATE_CHANGED, A, None)
    assert A not in world.host.entries
    assert world.account_rows.get(A) is None
    assert world.user_rows.get("u").accounts == {}
    await state(world, "live", 1)
    assert world.host.entries[A].version == 1


async def test_s8_a_tombstone_of_an_unknown_account_is_harmless(world: World) -> None:
    await world.send(topics.STATE_CHANGED, A, None)
    assert world.dead == []


async def test_s12_activity_heats_all_accounts_of_the_user_and_of_nobody_else(world: World) -> None:
    for account, user in ((A, "u"), (B, "u"), ("00000000-0000-4000-8000-00000000000c", "v")):
        await state(world, "live", 1, user=user, account=account)
    await active(world)
    until = NOW + 1.25 * GRACE
    assert [world.host.heat[a] for a in (A, B)] == [until, until]
    assert world.host.heat["00000000-0000-4000-8000-00000000000c"] is None


async def test_s12_pings_are_coalesced(world: World) -> None:
    await state(world, "live", 1)
    for second in range(0, 3600, 10):
        world.now = NOW + timedelta(seconds=second)
        await active(world)
        until = world.host.heat[A]
        assert until is not None
        assert until >= world.now + GRACE
    assert forwarded(world) == 3600 / (GRACE.total_seconds() / 4)


async def test_s12_heat_survives_a_restart(world: World) -> None:
    await active(world)
    world.restart()
    await state(world, "live", 1)
    assert world.host.heat[A] == NOW + 1.25 * GRACE


async def test_s12_heat_that_is_over_is_not_given_to_an_account_that_joins(world: World) -> None:
    await active(world)
    world.now += 2 * GRACE
    await state(world, "live", 1)
    assert world.host.heat[A] is None


async def test_s12_an_account_that_moves_loses_the_old_heat_and_takes_the_new(world: World) -> None:
    await state(world, "live", 1, user="u")
    await active(world, "u")
    await state(world, "live", 2, user="v")
    assert world.host.heat[A] is None
    assert world.user_rows.get("u").accounts == {}
    await active(world, "v")
    assert world.host.heat[A] == NOW + 1.25 * GRACE
    world.now += timedelta(minutes=1)
    await active(world, "w")
    await state(world, "live", 3, user="w")
    assert world.host.heat[A] == world.now + 1.25 * GRACE


async def test_s12_late_heat_of_the_former_user_is_ignored(world: World) -> None:
    await state(world, "live", 1, user="v")
    late = AccountHeat(account_id=A, user_id="u", until=NOW + GRACE, at=NOW)
    await world.send(topics.HEAT, A, encode(late))
    assert world.host.heat[A] is None


async def test_s12_overtaken_heat_does_not_shorten(world: World) -> None:
    await state(world, "live", 1)
    await active(world)
    late = AccountHeat(account_id=A, user_id="u", until=NOW + timedelta(seconds=1), at=NOW)
    await world.send(topics.HEAT, A, encode(late))
    assert world.host.heat[A] == NOW + 1.25 * GRACE


async def test_s12_an_unknown_user_and_one_without_accounts_break_nothing(world: World) -> None:
    await active(world, "nobody")
    await state(world, "deleted", 1)
    await active(world, "u")
    assert world.dead == []
    assert forwarded(world) == 0


async def test_s12_a_disabled_account_keeps_the_heat_for_when_it_lives_again(world: World) -> None:
    await state(world, "disabled", 1)
    await active(world)
    await state(world, "live", 2)
    assert world.host.entries[A].heat_until == NOW + 1.25 * GRACE


async def test_s12_a_deleted_account_leaves_the_user_and_may_come_back(world: World) -> None:
    await state(world, "live", 1)
    await state(world, "deleted", 2)
    await active(world)
    assert forwarded(world) == 0
    await state(world, "live", 3)
    assert world.host.heat[A] == NOW + 1.25 * GRACE


async def test_a_user_without_accounts_and_heat_leaves_no_row(world: World) -> None:
    await state(world, "live", 1)
    await state(world, "deleted", 2)
    assert world.user_rows.get("u") is None


async def test_rows_of_users_without_accounts_are_swept_when_their_session_is_over(world: World) -> None:
    await state(world, "live", 1, user="with account")
    await active(world, "with account")
    for number in range(300):
        await active(world, f"nobody {number}")
    assert len(world.users) == 301
    world.now += 2 * GRACE
    for number in range(60 * SWEEP_EVERY):
        await active(world, f"somebody else {number % 40}")
    assert sorted(key.decode() for key in world.users if b"nobody" in key) == []
    assert world.user_rows.get("with account").accounts == {A: 1}
    assert len(world.users) == 41


@pytest.mark.parametrize(
    ("topic", "value", "reason"),
    [
        (topics.USER_ACTIVE, b"\xff\x00 not json", "not_json"),
        (topics.USER_ACTIVE, b'{"user_id":"u","source":"telepathy","at":"2026-11-30T12:00:00Z"}', "schema"),
        (topics.USER_ACTIVE, b'{"user_id":"u","source":"login","at":"2026-11-30T12:00:00"}', "schema"),
        (topics.USER_ACTIVE, None, "schema"),
        (topics.USER_ACTIVE, b'{"user_id":"' + b"u" * 300_000 + b'"}', "too_large"),
        (topics.STATE_CHANGED, b"{", "not_json"),
        (
            topics.STATE_CHANGED,
            b'{"account_id":"x","user_id":"u","state":"live","at":"2026-11-30T12:00:00Z"}',
            "schema",
        ),
    ],
)
async def test_w13_what_is_no_record_is_a_dead_letter_as_it_came(
    world: World, topic: str, value: bytes, reason: str
) -> None:
    await world.send(topic, A, value, headers=(("ce_id", b"7"),))
    (dead,) = world.dead
    assert dead.topic == f"{topic}.dlq"
    assert (dead.key, dead.value) == (A.encode(), value)
    assert header(dead.headers, "dlq_reason") == reason.encode()
    assert header(dead.headers, "dlq_topic") == topic.encode()
    assert header(dead.headers, "dlq_partition") == str(partition_for(A, PARTITIONS)).encode()
    assert header(dead.headers, "dlq_offset") == b"0"
    assert header(dead.headers, "ce_id") == b"7"
    assert world.observer.poisoned == [(topic, reason)]


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        pytest.param(b"k" * 5_000_000, (), id="key"),
        pytest.param(A.encode(), (("name", b"v" * 5_000_000),), id="header"),
        pytest.param(A.encode(), (("n" * 5_000_000, b""),), id="name of a header"),
        pytest.param(A.encode(), (("name", None),), id="header without a value"),
    ],
)
async def test_w13_a_dead_letter_can_be_written_whatever_the_record_came_with(
    world: World, key: bytes, headers: tuple[tuple[str, bytes], ...]
) -> None:
    """Compressed, a record may be larger than any topic takes again; then its topic would stand still."""
    record = Inbound(topics.STATE_CHANGED, partition_for(key, PARTITIONS), 0, key, b"{", headers)
    (dead,) = await world.intakes[topics.STATE_CHANGED].handled(record) or ()
    assert len(dead.key or b"") + sum(len(name) + len(value) for name, value in dead.headers) < 32_768
    assert header(dead.headers, "dlq_reason") == b"not_json"


async def test_w13_a_misplaced_record_that_cannot_be_sent_on_is_a_dead_letter(world: World) -> None:
    event = encode(AccountStateChanged(account_id=A, user_id="u", state="live", at=NOW))
    record = Inbound(topics.STATE_CHANGED, 0, 0, b"another key", event, (("name", b"v" * 5_000_000),))
    (dead,) = await world.intakes[topics.STATE_CHANGED].handled(record) or ()
    assert (dead.topic, header(dead.headers, "dlq_reason")) == (f"{topics.STATE_CHANGED}.dlq", b"too_large")


@pytest.mark.parametrize("missing", [False, True])
async def test_w13_an_id_with_a_line_break_is_no_account(world: World, missing: bool) -> None:
    event = AccountStateChanged(account_id=f"{A}\n", user_id="u", state="live", at=NOW)
    await world.send(topics.STATE_CHANGED, f"{A}\n", None if missing else encode(event))
    assert world.observer.poisoned == [(topics.STATE_CHANGED, "wrong_key" if missing else "schema")]
    assert not world.host.calls


async def test_w13_a_tombstone_without_an_account_id_is_a_dead_letter(world: World) -> None:
    await world.send(topics.STATE_CHANGED, "no uuid", None)
    assert world.observer.poisoned == [(topics.STATE_CHANGED, "wrong_key")]


async def test_s16_a_handler_that_fails_is_tried_again_then_a_dead_letter(world: World) -> None:
    def broken(partition: int, entry: AccountEntry) -> None:
        attempts.append(partition)
        raise OSError("disk")

    attempts: list[int] = []
    changed, world.host.account_changed = world.host.account_changed, broken  # type: ignore[method-assign]
    await state(world, "disabled", 1)
    assert len(attempts) == HANDLER_ATTEMPTS
    assert world.observer.poisoned == [(topics.STATE_CHANGED, "handler_failed")]
    world.host.account_changed = changed  # type: ignore[method-assign]
    await state(world, "live", 2)
    assert world.host.entries[A].state == "live"


async def test_s16_a_handler_that_recovers_loses_nothing(world: World) -> None:
    def broken_once(partition: int, entry: AccountEntry) -> None:
        world.host.account_changed = changed  # type: ignore[method-assign]
        raise OSError("disk")

    changed, world.host.account_changed = world.host.account_changed, broken_once  # type: ignore[method-assign]
    await state(world, "live", 1)
    assert world.host.entries[A].state == "live"
    assert world.user_rows.get("u").accounts == {A: 1}
    assert world.dead == []


async def test_s16_no_event_is_a_dead_letter_because_a_table_cannot_be_written(world: World) -> None:
    class Full(dict[bytes, bytes]):
        refusals = 3 * HANDLER_ATTEMPTS

        def __setitem__(self, key: bytes, value: bytes) -> None:
            if self.refusals:
                self.refusals -= 1
                raise OSError("no space left on device")
            super().__setitem__(key, value)

    table = Full()
    rows, world.account_rows._table = world.account_rows._table, table
    await state(world, "live", 1)
    assert table.refusals == 0
    assert list(table) == [A.encode()]
    assert (world.dead, world.observer.poisoned) == ([], [])
    world.account_rows._table = rows


async def test_s3_an_event_whose_partition_went_to_somebody_else_is_left_to_them(world: World) -> None:
    record = Inbound(topics.STATE_CHANGED, partition_for(A, PARTITIONS), 0, A.encode(), event_of())
    assert await world.intakes[topics.STATE_CHANGED].handled(record, lambda: False) is None
    assert world.host.calls == []

    def broken(partition: int, entry: AccountEntry) -> None:
        raise OSError("the table is closed")

    world.host.account_changed = broken  # type: ignore[method-assign]
    answers = [True, False]
    assert await world.intakes[topics.STATE_CHANGED].handled(record, lambda: answers.pop(0)) is None
    assert world.observer.poisoned == []


def event_of(account: str = A) -> bytes:
    return encode(AccountStateChanged(account_id=account, user_id="u", state="live", at=NOW, version=1))


@pytest.mark.parametrize("key", [A.encode(), f'"{A}"'.encode(), B.encode(), b"", None])
async def test_a_foreign_partitioner_or_key_is_rekeyed_counted_and_acted_on_by_the_owner_only(
    world: World, key: bytes | None
) -> None:
    right = partition_for(A, PARTITIONS)
    wrong = (right + 1) % PARTITIONS
    direct = await world.take(Inbound(topics.STATE_CHANGED, wrong, 5, key, event_of(), (("ce_id", b"7"),)))
    (sent,) = direct
    assert (sent.topic, sent.key, sent.value) == (topics.STATE_CHANGED, A.encode(), event_of())
    assert header(sent.headers, REKEYED_HEADER) == f"{wrong}/5".encode()
    assert header(sent.headers, "ce_id") == b"7"
    assert world.observer.rekeyed_topics == [topics.STATE_CHANGED]
    assert [call[1] for call in world.host.calls] == [right]
    assert world.dead == []


async def test_a_tombstone_in_the_wrong_partition_is_rekeyed(world: World) -> None:
    await state(world, "live", 1)
    await world.send(topics.STATE_CHANGED, A, None, partition=(partition_for(A, PARTITIONS) + 1) % PARTITIONS)
    assert A not in world.host.entries


async def test_rekeying_cannot_loop(world: World) -> None:
    wrong = (partition_for(A, PARTITIONS) + 1) % PARTITIONS
    await world.send(topics.STATE_CHANGED, A, event_of(), partition=wrong, headers=((REKEYED_HEADER, b"0/0"),))
    assert world.observer.poisoned == [(topics.STATE_CHANGED, "wrong_key")]
    assert world.host.calls == []


async def test_activity_in_the_wrong_partition_is_rekeyed(world: World) -> None:
    await state(world, "live", 1)
    event = encode(UserActive(user_id="u", source="login", at=NOW))
    await world.send(topics.USER_ACTIVE, "u", event, partition=(partition_for("u", PARTITIONS) + 1) % PARTITIONS)
    assert world.host.heat[A] == NOW + 1.25 * GRACE


async def test_heat_that_is_told_again_for_a_deleted_account_is_none(world: World) -> None:
    await state(world, "live", 1)
    joined = [record for record in world.log if record.topic == topics.USER_ACCOUNTS]
    await state(world, "deleted", 2)
    await active(world, "u")
    before = dict(world.accounts)
    for record in joined:
        await world.take(record)
    assert world.accounts == before


states: st.SearchStrategy[AccountState | None] = st.sampled_from(["live", "disabled", "deleted", None])
steps = st.lists(st.tuples(states, st.sampled_from("uvw")), min_size=1, max_size=12)
"""A user and the new state of its account; None is activity of the user."""


@given(steps=steps, seed=st.randoms(use_true_random=False))
async def test_property_repeats_of_whatever_went_between_agents_end_in_the_same_state(
    steps: list[tuple[AccountState | None, str]], seed: random.Random
) -> None:
    """Faust may deliver any event twice; what follows from it is then sent twice as well."""
    once, twice = World(), World()
    for version, (kind, user) in enumerate(steps, 1):
        for world in (once, twice):
            world.now = NOW + timedelta(minutes=version)
            if kind is None:
                await active(world, user)
            else:
                await state(world, kind, version, user=user)
        if seed.random() < 0.5:
            for record in twice.log[-seed.randrange(1, 6) :]:
                if record.topic != topics.USER_ACTIVE or seed.random() < 0.5:
                    await twice.take(record)
    assert once.accounts == twice.accounts
    for user in "uvw":
        one, two = once.user_rows.get(user), twice.user_rows.get(user)
        assert (one and one.until) == (two and two.until)
        assert set(one.accounts if one else ()) == set(two.accounts if two else ())
    assert once.host.entries.keys() == twice.host.entries.keys()
    assert once.host.heat == twice.host.heat
