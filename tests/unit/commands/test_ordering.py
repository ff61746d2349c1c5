"""One account in order, accounts side by side (issue: per-account order, a slow account holds up no other)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.commands.ordering import AccountQueues


def test_items_of_an_account_come_one_at_a_time_and_in_order() -> None:
    queues: AccountQueues[str, int] = AccountQueues()
    queues.put("a", 1)
    queues.put("a", 2)
    assert queues.take() == ("a", 1)
    assert queues.take() is None
    queues.done("a")
    assert queues.take() == ("a", 2)


def test_accounts_take_turns() -> None:
    queues: AccountQueues[str, int] = AccountQueues()
    for item in (1, 2, 3):
        queues.put("a", item)
    queues.put("b", 1)
    assert queues.take() == ("a", 1)
    queues.done("a")
    assert queues.take() == ("b", 1)


def test_w14_an_item_that_goes_back_comes_before_the_rest_of_its_account() -> None:
    queues: AccountQueues[str, int] = AccountQueues()
    queues.put("a", 1)
    queues.put("a", 2)
    assert queues.take() == ("a", 1)
    queues.back("a", 1)
    assert queues.take() == ("a", 1)


def test_dropping_leaves_what_is_out_and_the_order_of_the_rest() -> None:
    queues: AccountQueues[str, int] = AccountQueues()
    for account, item in (("a", 1), ("a", 2), ("b", 3), ("b", 4)):
        queues.put(account, item)
    assert queues.take() == ("a", 1)
    assert sorted(queues.drop(lambda item: item in (2, 3))) == [2, 3]
    assert len(queues) == 1
    assert queues.take() == ("b", 4)
    queues.done("a")
    queues.put("a", 5)
    assert queues.take() == ("a", 5)


@given(data=st.data())
def test_property_order_holds_and_nothing_is_lost(data: st.DataObject) -> None:
    queues: AccountQueues[int, tuple[int, int]] = AccountQueues()
    sent: dict[int, int] = {}
    out: dict[int, tuple[int, int]] = {}
    settled: dict[int, list[int]] = {}
    for step in data.draw(st.lists(st.sampled_from(["put", "take", "done", "back"]), max_size=60)):
        if step == "put":
            account = data.draw(st.integers(0, 3))
            sent[account] = sent.get(account, 0) + 1
            queues.put(account, (account, sent[account]))
        elif step == "take":
            taken = queues.take()
            if taken:
                account, item = taken
                assert account not in out
                assert item[1] == len(settled.get(account, [])) + 1
                out[account] = item
        elif out:
            account = data.draw(st.sampled_from(sorted(out)))
            item = out.pop(account)
            if step == "done":
                settled.setdefault(account, []).append(item[1])
                queues.done(account)
            else:
                queues.back(account, item)
    for account in out:
        settled.setdefault(account, []).append(out[account][1])
        queues.done(account)
    while taken := queues.take():
        settled.setdefault(taken[0], []).append(taken[1][1])
        queues.done(taken[0])
    assert len(queues) == 0
    assert settled == {account: list(range(1, count + 1)) for account, count in sent.items()}
