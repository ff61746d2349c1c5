"""S6: how Faust's assignor spreads 64 partitions and 10,000 accounts, and what it moves when members come and go.

The assignor itself runs, with the metadata that members exchange; only Kafka is missing.
"""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.assignor.partition_assignor import PartitionAssignor

from streams.agents import attach
from streams.agents.store import Store
from streams.assembly import StreamsApp, changelog_topics, faust_settings
from streams.contracts import topics
from streams.contracts.keys import partition_for
from streams.observer import NoopObserver
from streams.settings import Settings
from tests.unit.agents.fakes import RecordingHost

PARTITIONS = 64
ACCOUNTS = 10_000


class Group:
    """A consumer group: members with assignors of their own, and a leader who assigns."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(DATA_DIR=directory, PARTITIONS=PARTITIONS)
        self.app = StreamsApp(**faust_settings(self.settings))
        attach(self.app, settings=self.settings, host=RecordingHost(), store=None, observer=NoopObserver())
        self.sources = {str(agent.channel.get_topic_name()) for agent in self.app.agents.values()}
        self.subscription = self.sources | set(changelog_topics(self.app))
        self.cluster = SimpleNamespace(partitions_for_topic=lambda _topic: set(range(PARTITIONS)))
        self.members: dict[str, Any] = {}

    def join(self, name: str) -> None:
        self.members[name] = PartitionAssignor(self.app, replicas=1)

    def leave(self, name: str) -> None:
        del self.members[name]

    def rebalance(self) -> dict[str, dict[str, frozenset[int]]]:
        """One round: metadata in, assignment out, and each member remembers its own. Member to topic to partitions."""
        metadata = {name: member.metadata(self.subscription) for name, member in self.members.items()}
        leader = self.members[min(self.members)]
        for name, assignment in leader.assign(self.cluster, metadata).items():
            self.members[name].on_assignment(assignment)
        return {
            name: {
                topic: frozenset(tp.partition for tp in member.assigned_actives() if tp.topic == topic)
                for topic in self.subscription
            }
            for name, member in self.members.items()
        }

    def owned(self) -> dict[str, frozenset[int]]:
        """Shards of each member after a round. Every topic and table of a partition goes with it."""
        found = self.rebalance()
        for member, by_topic in found.items():
            assert len(set(by_topic.values())) == 1, f"{member}: topics are not assigned alike"
        source = self.settings.topic(topics.STATE_CHANGED)
        owned = {member: by_topic[source] for member, by_topic in found.items()}
        assert sorted(p for partitions in owned.values() for p in partitions) == list(range(PARTITIONS))
        return owned

    def standbys(self) -> dict[str, frozenset[int]]:
        return {
            name: frozenset(tp.partition for tp in member.assigned_standbys()) for name, member in self.members.items()
        }


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


@pytest.fixture(scope="module")
def accounts() -> Counter[int]:
    """Accounts by partition: random ids, from a seed."""
    rng = random.Random(20261130)
    ids = (str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(ACCOUNTS))
    return Counter(partition_for(account_id, PARTITIONS) for account_id in ids)


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_s6_no_worker_holds_more_than_its_share_allows(group: Group, accounts: Counter[int], members: int) -> None:
    for number in range(members):
        group.join(f"m{number}")
    owned = group.owned()
    share = ACCOUNTS / members
    held = {name: sum(accounts[p] for p in partitions) for name, partitions in owned.items()}
    assert max(held.values()) <= 1.2 * share + 5
    assert max(map(len, owned.values())) <= math.ceil(PARTITIONS / members)


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_s6_the_share_holds_while_members_join_one_by_one_and_leave(
    group: Group, accounts: Counter[int], members: int
) -> None:
    rng = random.Random(members)
    for number in range(members):
        group.join(f"m{number}")
        held = {name: sum(accounts[p] for p in owned) for name, owned in group.owned().items()}
        assert max(held.values()) <= 1.2 * ACCOUNTS / len(group.members) + 5
    while len(group.members) > 1:
        group.leave(rng.choice(sorted(group.members)))
        held = {name: sum(accounts[p] for p in owned) for name, owned in group.owned().items()}
        assert max(held.values()) <= 1.2 * ACCOUNTS / len(group.members) + 5


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_s6_a_join_moves_only_what_the_newcomer_gets(group: Group, members: int) -> None:
    for number in range(members):
        group.join(f"m{number}")
        before = group.owned()
    group.join("new")
    after = group.owned()
    moved = sum(len(before[name] - after[name]) for name in before)
    assert moved == len(after["new"])
    assert all(after[name] <= before[name] for name in before)


@pytest.mark.parametrize("members", [2, 3, 5])
def test_s6_a_leave_moves_only_what_the_leaver_had(group: Group, members: int) -> None:
    for number in range(members):
        group.join(f"m{number}")
        before = group.owned()
    group.leave("m1")
    after = group.owned()
    assert all(before[name] <= after[name] for name in after)


@pytest.mark.parametrize("members", [2, 3, 5])
def test_s5_the_tables_of_every_partition_are_kept_by_somebody_else_as_well(group: Group, members: int) -> None:
    for number in range(members):
        group.join(f"m{number}")
        owned = group.owned()
    standbys = group.standbys()
    assert sorted(p for partitions in standbys.values() for p in partitions) == list(range(PARTITIONS))
    assert all(not owned[name] & standbys[name] for name in owned)


def test_s6_a_rebalance_without_a_change_moves_nothing(group: Group) -> None:
    for number in range(3):
        group.join(f"m{number}")
    before = group.owned()
    assert group.owned() == before


def test_tables_use_our_store(group: Group) -> None:
    group.app.finalize()
    assert {type(table.data) for table in group.app.tables.values()} == {Store}
    assert {table.data.basename.name for table in group.app.tables.values()} == {"accounts", "users"}
