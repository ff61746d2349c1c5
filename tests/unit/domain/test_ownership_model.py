"""The ownership of a partition, checked as a whole: workers that sleep, crash and wake, against a model of Kafka.

The pure state machine decides; the model performs its actions one at a time, in any order among workers, and plays the
broker: fences, group generations, the committed log. Whatever happens (rows S1, S3, S5):

* the log is gapless and nothing in it is doubled: each committed chunk continues exactly what was committed before it;
* writers never interleave: fences only grow along the log;
* who writes was the rightful owner at some moment after opening its fence: no zombie, not even one that fenced last;
* when faults cease, the one who is assigned writes, and nobody else can.

Four broken machines show that the check would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streams.domain.ownership import ShardAction, ShardEvent, ShardPhase, step

WORKERS = 2
SETTLING_STEPS = 200
"""Actions within which a quiet group must have settled: a handful per worker."""

Step = Callable[[ShardPhase, ShardEvent], tuple[ShardPhase, tuple[ShardAction, ...]]]


@dataclass
class Member:
    """One worker's view of the partition."""

    phase: ShardPhase = ShardPhase.IDLE
    actions: list[ShardAction] = field(default_factory=list)
    events: list[ShardEvent] = field(default_factory=list)
    generation: int = -1
    fence: int = 0
    memory: list[int] | None = None
    rightful: bool = False
    """Whether it was the owner, in the present generation, at some moment since it opened its fence."""

    news: list[tuple[int, bool]] = field(default_factory=list)
    """Assignments on their way to it: generation, and whether the partition is its own."""


@dataclass
class Broker:
    """What Kafka knows."""

    fence: int = 0
    generation: int = 0
    owner: int | None = None
    log: list[tuple[int, int]] = field(default_factory=list)
    """Committed chunks: (number, fence of the writer)."""


class Ownership(RuleBasedStateMachine):
    """Any interleaving of what can happen to one partition."""

    machine: Step = staticmethod(step)
    reads_mirror = True
    fences = True

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.members = [Member() for _ in range(WORKERS)]

    # --- the group
    @initialize(worker=st.integers(0, WORKERS - 1))
    def first_assignment(self, worker: int) -> None:
        self.rebalance(worker)

    @rule(worker=st.integers(0, WORKERS - 1))
    def rebalance(self, worker: int) -> None:
        """The group decides; each member hears of it whenever it is awake."""
        self.broker.generation += 1
        self.broker.owner = worker
        for number, member in enumerate(self.members):
            member.news.append((self.broker.generation, number == worker))

    @rule(worker=st.integers(0, WORKERS - 1))
    def hear(self, worker: int) -> None:
        """A member learns of the latest assignment; those before it were overtaken."""
        member = self.members[worker]
        if member.news:
            member.generation, ours = member.news[-1]
            member.news.clear()
            member.events.append(ShardEvent.ASSIGNED if ours else ShardEvent.UNASSIGNED)

    @rule(worker=st.integers(0, WORKERS - 1))
    def crash(self, worker: int) -> None:
        """kill -9: nothing is left but what the group will tell it."""
        news = self.members[worker].news or [(self.broker.generation, self.broker.owner == worker)]
        self.members[worker] = Member(news=news[-1:])

    # --- a worker
    @rule(worker=st.integers(0, WORKERS - 1), steps=st.integers(1, 9), fails=st.booleans())
    def work(self, worker: int, steps: int, fails: bool) -> None:
        """Some actions and events of one worker, then it sleeps; the last action may fail."""
        member = self.members[worker]
        for number in range(steps):
            if member.actions:
                self._perform(worker, member, member.actions.pop(0), fails and number == steps - 1)
            elif member.events:
                member.phase, actions = self.machine(member.phase, member.events.pop(0))
                member.actions.extend(actions)
            self._note_rights()

    def _note_rights(self) -> None:
        for number, member in enumerate(self.members):
            if self.broker.owner == number and member.generation == self.broker.generation:
                member.rightful = True

    def _perform(self, worker: int, member: Member, action: ShardAction, fails: bool) -> None:
        match action:
            case ShardAction.OPEN_FENCE:
                if fails:
                    member.events.append(ShardEvent.FENCE_FAILED)
                    return
                if self.fences:
                    self.broker.fence += 1
                member.fence, member.rightful = self.broker.fence, False
                member.events.append(ShardEvent.FENCED)
            case ShardAction.PROVE:
                proved = member.generation == self.broker.generation and self.broker.owner == worker
                member.events.append(ShardEvent.PROVED if proved else ShardEvent.PROOF_REFUSED)
            case ShardAction.RESTORE:
                if fails:
                    member.events.append(ShardEvent.WRITER_LOST)
                    return
                if self.reads_mirror or member.memory is None:
                    member.memory = [number for number, _ in self.broker.log]
                member.events.append(ShardEvent.RESTORED)
            case ShardAction.CLOSE_WRITER:
                member.fence = -1
            case ShardAction.RUN | ShardAction.PAUSE_RUNNERS | ShardAction.STOP_RUNNERS:
                pass

    @precondition(lambda self: any(m.phase is ShardPhase.RUNNING for m in self.members))
    @rule(worker=st.integers(0, WORKERS - 1), fails=st.sampled_from(["no", "no", "no", "before", "after"]))
    def write(self, worker: int, fails: str) -> None:
        """A chunk in one transaction. `after`: it is committed and the answer is lost."""
        member = self.members[worker]
        if member.phase is not ShardPhase.RUNNING or member.memory is None or member.actions:
            return
        if member.fence != self.broker.fence or fails == "before":
            member.fence = -1
            member.events.append(ShardEvent.WRITER_LOST)
            return
        self._note_rights()
        assert member.rightful, f"worker {worker} writes with a fence that it opened after it had lost the partition"
        number = len(member.memory)
        self.broker.log.append((number, member.fence))
        if fails == "after":
            member.fence = -1  # a log that lost its producer takes nothing any more, whether the shard has heard or not
            member.events.append(ShardEvent.WRITER_LOST)
        else:
            member.memory.append(number)

    # --- what must hold
    @invariant()
    def log_is_gapless_and_nothing_is_doubled(self) -> None:
        assert [number for number, _ in self.broker.log] == list(range(len(self.broker.log)))

    @invariant()
    def writers_never_interleave(self) -> None:
        fences = [fence for _, fence in self.broker.log]
        assert fences == sorted(fences)

    @invariant()
    def at_most_one_could_write(self) -> None:
        able = [m for m in self.members if m.phase is ShardPhase.RUNNING and m.fence == self.broker.fence]
        assert len(able) <= 1

    def teardown(self) -> None:
        """Faults cease: everybody hears, works and writes in turn. The owner must come to write, and go on writing."""
        written = 0
        for turn in range(SETTLING_STEPS):
            worker = turn % WORKERS
            self.hear(worker)
            self.work(worker, 1, False)
            before = len(self.broker.log)
            self.write(worker, fails="no")
            if len(self.broker.log) > before:
                assert worker == self.broker.owner or turn < SETTLING_STEPS // 2, "somebody else still writes"
                written = written + 1 if turn >= SETTLING_STEPS // 2 else 0
            self.log_is_gapless_and_nothing_is_doubled()
            self.writers_never_interleave()
        if self.broker.owner is not None:
            assert written >= SETTLING_STEPS // 2 // WORKERS - 1, "the owner does not write, or not all the time"


def without_proof(phase: ShardPhase, event: ShardEvent) -> tuple[ShardPhase, tuple[ShardAction, ...]]:
    """A sleeper that is refused goes on as if it were not."""
    return step(phase, ShardEvent.PROVED if event is ShardEvent.PROOF_REFUSED else event)


def gives_up(phase: ShardPhase, event: ShardEvent) -> tuple[ShardPhase, tuple[ShardAction, ...]]:
    """A lost producer ends the shard, as if only a rival could be the reason."""
    if event is ShardEvent.WRITER_LOST and phase is ShardPhase.RUNNING:
        return ShardPhase.IDLE, (ShardAction.CLOSE_WRITER,)
    return step(phase, event)


def mutant(**changes: object) -> type[Ownership]:
    return type("Mutant", (Ownership,), changes)


def zombie(group: Ownership) -> None:
    """An owner sleeps, its successor writes, the owner wakes and writes."""
    running(group, 0)
    group.write(0, "no")
    group.rebalance(1)
    running(group, 1)
    group.write(1, "no")
    group.write(0, "no")


def sleeper(group: Ownership) -> None:
    """A member sleeps between its assignment and its fence, and wakes when another has taken over and written."""
    group.rebalance(0)
    group.hear(0)
    group.work(0, 1, False)
    group.rebalance(1)
    running(group, 1)
    group.write(1, "no")
    group.work(0, 9, False)
    group.write(0, "no")


def lost_answer(group: Ownership) -> None:
    """A chunk is committed, and its writer is told that it is not."""
    running(group, 0)
    group.write(0, "after")
    group.work(0, 9, False)
    group.work(0, 9, False)
    group.write(0, "no")


def timed_out(group: Ownership) -> None:
    """A transaction is aborted although there is no rival."""
    running(group, 0)
    group.write(0, "before")


def running(group: Ownership, worker: int) -> None:
    """This worker is assigned, hears of it, and comes to run."""
    if group.broker.owner != worker:
        group.rebalance(worker)
    group.hear(worker)
    group.work(worker, 9, False)
    assert group.members[worker].phase is ShardPhase.RUNNING


History = Callable[[Ownership], None]


def play(machine: type[Ownership], history: History) -> None:
    """One history, then the end of all faults."""
    group = machine()
    history(group)
    group.log_is_gapless_and_nothing_is_doubled()
    group.writers_never_interleave()
    group.teardown()


def test_s1_s3_s5_property_ownership_holds_whatever_happens() -> None:
    run_state_machine_as_test(
        Ownership, settings=settings(max_examples=150, stateful_step_count=40, deadline=None, print_blob=False)
    )


@pytest.mark.parametrize("history", [zombie, sleeper, lost_answer, timed_out])
def test_s3_ownership_holds_in_histories_that_were_thought_of(history: History) -> None:
    play(Ownership, history)


@pytest.mark.parametrize(
    ("broken", "history"),
    [
        (mutant(fences=False), zombie),
        (mutant(machine=staticmethod(without_proof)), sleeper),
        (mutant(reads_mirror=False), lost_answer),
        (mutant(machine=staticmethod(gives_up)), timed_out),
    ],
    ids=["without fence", "without proof", "mirror not read again", "a lost producer ends the shard"],
)
def test_s3_a_broken_machine_is_noticed(broken: type[Ownership], history: History) -> None:
    with pytest.raises(AssertionError):
        play(broken, history)


def test_s3_without_a_fence_two_could_write() -> None:
    """The owner sleeps through a rebalance and its successor runs: only the fence tells them apart."""

    def sleeps_through_a_rebalance(state: Ownership) -> None:
        state.rebalance(0)
        state.hear(0)
        state.work(0, 9, False)
        state.rebalance(1)
        state.hear(1)
        state.work(1, 9, False)
        assert [m.phase for m in state.members] == [ShardPhase.RUNNING] * WORKERS
        state.at_most_one_could_write()

    sleeps_through_a_rebalance(Ownership())
    with pytest.raises(AssertionError):
        sleeps_through_a_rebalance(mutant(fences=False)())
