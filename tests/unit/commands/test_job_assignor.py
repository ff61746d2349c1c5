"""Sharing out the partitions of `sync.jobs` (row W8: several job processes share the lane)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.commands.job_assignor import Claim, assignor_for, share_out


def test_w8_a_process_at_its_quota_keeps_only_what_it_works_on() -> None:
    claims = {"job": Claim(frozenset({3}), frozenset(range(8)), False), "next": Claim()}
    assert share_out(claims, range(8)) == {"job": frozenset({3}), "next": frozenset({0, 1, 2, 4, 5, 6, 7})}


def test_w8_without_anybody_to_take_them_partitions_wait() -> None:
    assert share_out({"job": Claim(frozenset({3}), frozenset({3, 4}), False)}, range(8)) == {"job": frozenset({3})}


def test_a_partition_with_a_running_command_does_not_move() -> None:
    claims = {"old": Claim(frozenset({0, 1, 2, 3}), frozenset(range(4))), "new": Claim(), "newer": Claim()}
    assert share_out(claims, range(4))["old"] == frozenset({0, 1, 2, 3})


def test_the_assignor_speaks_the_groups_protocol() -> None:
    class Me:
        def claim(self) -> Claim:
            return Claim(frozenset({1}), frozenset({1, 2}), False)

    class Cluster:
        def partitions_for_topic(self, topic: str) -> frozenset[int]:
            return frozenset(range(4))

    class Other:
        def claim(self) -> Claim:
            return Claim()

    members = {"a": assignor_for(Me()).metadata({"jobs"}), "b": assignor_for(Other()).metadata({"jobs"})}
    assigned = assignor_for(Other()).assign(Cluster(), members)
    assert dict(assigned["a"].assignment) == {"jobs": [1]}
    assert dict(assigned["b"].assignment) == {"jobs": [0, 2, 3]}


partitions = st.frozensets(st.integers(0, 15), max_size=16)
claims_of = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(lambda busy, held, accepting: Claim(busy, busy | held, accepting), partitions, partitions, st.booleans()),
    min_size=1,
    max_size=6,
)


@given(claims=claims_of)
def test_property_every_partition_has_one_reader_and_busy_ones_stay(claims: dict[str, Claim]) -> None:
    shares = share_out(claims, range(16))
    seen = [partition for mine in shares.values() for partition in mine]
    assert len(seen) == len(set(seen))
    anybody = any(claim.accepting for claim in claims.values())
    if anybody:
        assert set(seen) == set(range(16))
    claimed: set[int] = set()
    for member in sorted(claims):
        assert claims[member].busy - claimed <= shares[member]
        claimed |= claims[member].busy
        if not claims[member].accepting:
            assert shares[member] <= claims[member].busy


@given(members=st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=6))
def test_property_shares_are_even_and_a_joining_member_moves_only_its_share(members: set[str]) -> None:
    first = share_out({member: Claim() for member in members}, range(16))
    sizes = [len(mine) for mine in first.values()]
    assert max(sizes) - min(sizes) <= 1
    again = share_out({member: Claim(held=mine) for member, mine in first.items()}, range(16))
    assert again == first
    joined = share_out({**{member: Claim(held=mine) for member, mine in first.items()}, "zz": Claim()}, range(16))
    for member in members:
        assert joined[member] <= first[member]
