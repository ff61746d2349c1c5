"""How fast history is read from a host: the rates hold, accounts take turns, nothing else waits. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.errors import RetryLater
from streams.imap.hosts import HostGate, HostPolicy
from streams.imap.pacing import Rates
from tests.unit.imap.test_hosts import VirtualLoop, in_virtual_time, use, virtual_gate

Log = list[tuple[float, str, int, int]]
"""When a window was read, by whom, messages, bytes."""


def paced(messages_per_s: float = 0.0, bytes_per_s: float = 0.0) -> HostGate:
    return virtual_gate(HostPolicy(logins_per_s=1000, history=Rates(messages_per_s, bytes_per_s)))


async def read(
    gate: HostGate,
    who: str,
    log: Log,
    *,
    windows: int,
    messages: int = 100,
    received: int = 10_000,
    seconds: float = 0.0,
    host: str = "h",
) -> None:
    """An account that reads so many windows."""
    for _ in range(windows):
        turn = await gate.history_turn(host, timeout_s=1e6)
        log.append((asyncio.get_running_loop().time(), who, messages, received))
        await asyncio.sleep(seconds)
        turn.settle(messages, received)


@in_virtual_time
async def test_messages_keep_their_rate() -> None:
    gate = paced(messages_per_s=50)
    log: Log = []
    await asyncio.gather(*(read(gate, f"a{n}", log, windows=4) for n in range(5)))
    assert [round(at, 6) for at, *_ in log] == [2.0 * n for n in range(20)]


@in_virtual_time
async def test_bytes_keep_their_rate_whichever_is_slower() -> None:
    gate = paced(messages_per_s=1000, bytes_per_s=5_000)
    log: Log = []
    await asyncio.gather(*(read(gate, f"a{n}", log, windows=2) for n in range(3)))
    assert log[-1][0] == pytest.approx(5 * 2.0)


@in_virtual_time
async def test_accounts_take_turns_and_a_late_one_waits_for_one_round() -> None:
    gate = paced(messages_per_s=100)
    log: Log = []

    async def late() -> None:
        await asyncio.sleep(20.5)
        await read(gate, "late", log, windows=3)

    await asyncio.gather(*(read(gate, f"a{n}", log, windows=20) for n in range(4)), late())
    counts = Counter(who for at, who, *_ in log if at < 20)
    assert set(counts.values()) == {5}
    mine = [at for at, who, *_ in log if who == "late"]
    assert mine[0] - 20.5 <= 5.0
    assert all(after - before <= 5.0 for before, after in pairwise(mine))


@in_virtual_time
async def test_the_rate_is_shared_by_the_workers_and_follows_their_number() -> None:
    gate = paced(messages_per_s=100)
    gate.set_workers(4)
    log: Log = []
    await read(gate, "a", log, windows=4)
    assert log[-1][0] == pytest.approx(3 * 4.0)
    gate.set_workers(1)
    again: Log = []
    await read(gate, "a", again, windows=4)
    assert again[-1][0] - again[1][0] == pytest.approx(2.0)


@in_virtual_time
async def test_hosts_do_not_wait_for_each_other_and_logins_for_neither() -> None:
    """Live mail is never delayed: connections are made as if no history were read."""
    gate = paced(messages_per_s=1)
    log: Log = []
    logins: list[float] = []
    reading = asyncio.gather(*(read(gate, "a", log, windows=3) for _ in range(2)))
    await asyncio.sleep(1.0)
    assert (await gate.history_turn("other", timeout_s=0.001)).charged_s == 0.0
    await use(gate, "h", logins)
    assert logins == [1.0]
    await reading


@in_virtual_time
async def test_without_rates_nobody_waits() -> None:
    gate = paced()
    log: Log = []
    await asyncio.gather(*(read(gate, f"a{n}", log, windows=50) for n in range(10)))
    assert log[-1][0] == 0.0
    assert gate.history_turn_now("h") is not None


@in_virtual_time
async def test_a_turn_that_is_not_used_costs_nothing() -> None:
    gate = paced(messages_per_s=10)
    log: Log = []
    await read(gate, "a", log, windows=1)
    turn = await gate.history_turn("h")
    at = asyncio.get_running_loop().time()
    turn.settle(0, 0)
    turn.settle(100, 100)  # only the first counts
    assert gate.history_turn_now("h") is not None
    assert asyncio.get_running_loop().time() == at == 10.0


@in_virtual_time
async def test_who_does_not_wait_takes_no_place_of_those_who_do() -> None:
    gate = paced(messages_per_s=10)
    log: Log = []
    await read(gate, "a", log, windows=1)
    assert gate.history_turn_now("h") is None
    waiting = asyncio.ensure_future(gate.history_turn("h"))
    await asyncio.sleep(9.999)
    assert gate.history_turn_now("h") is None
    assert gate.states()[0].history_waiting == 1
    (await waiting).settle(0, 0)


@in_virtual_time
async def test_a_turn_that_comes_while_its_account_leaves_goes_to_the_next() -> None:
    gate = paced(messages_per_s=10)
    first = await gate.history_turn("h")
    gone = asyncio.ensure_future(gate.history_turn("h"))
    patient = asyncio.ensure_future(gate.history_turn("h"))
    await asyncio.sleep(0)
    first.settle(0, 0)  # gives the turn to the first in the queue ...
    gone.cancel()  # ... which leaves before it sees it
    async with asyncio.timeout(1.0):
        (await patient).settle(0, 0)
    assert gone.cancelled() or await asyncio.wait({gone})


@in_virtual_time
async def test_waiting_has_a_deadline_and_the_queue_a_bound() -> None:
    gate = virtual_gate(HostPolicy(history=Rates(1.0), max_waiting=1))
    (await gate.history_turn("h")).settle(100, 0)
    late = asyncio.ensure_future(gate.history_turn("h", timeout_s=5.0))
    await asyncio.sleep(0)
    with pytest.raises(RetryLater) as caught:
        await gate.history_turn("h")
    assert caught.value.code == "history_queue_full"
    with pytest.raises(RetryLater) as caught:
        await late
    assert caught.value.code == "history_queue_slow"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 2000), st.integers(1, 100_000), st.floats(0.0, 3.0)),
        min_size=1,
        max_size=8,
    ),
    st.floats(1.0, 1000.0),
    st.sampled_from([0.0, 500.0, 50_000.0]),
)
def test_property_over_any_time_the_rates_hold_but_for_windows_under_way(
    accounts: list[tuple[int, int, int, float]], messages_per_s: float, bytes_per_s: float
) -> None:
    """Whatever windows cost and however long they take: what is read is paid for, but for a window each."""
    log: Log = []

    async def run() -> None:
        gate = paced(messages_per_s, bytes_per_s)
        await asyncio.gather(
            *(
                read(gate, f"a{n}", log, windows=windows, messages=messages, received=received, seconds=seconds)
                for n, (windows, messages, received, seconds) in enumerate(accounts)
            )
        )

    loop = VirtualLoop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    for rate, of in ((messages_per_s, 2), (bytes_per_s, 3)):
        if not rate:
            continue
        free = sum(account[of - 1] for account in accounts)
        done = 0
        for entry in log:
            done += int(entry[of])
            assert done <= rate * entry[0] * (1 + 1e-9) + free + 1e-6
