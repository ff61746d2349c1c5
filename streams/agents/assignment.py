"""From Faust's rebalances to the shards: which partitions are ours, and whether we are a member at all.

::

    rebalance begins     nothing stops: the log is fenced, and survivors would stand still for nothing
    partitions assigned  shards that went elsewhere stop; those that stay go on
    rebalance ends       tables are recovered: new shards start, the others look at their accounts again, since who
                         slept through a generation may have missed another owner
    no proof of membership for one session timeout      all sockets close
    a proof again                                       the assignment that stands is carried out anew

Invariant: the host is told from one task, always with the newest assignment; one that fails is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streams.agents.membership import AssignmentMembership, GroupProof
from streams.agents.ports import AccountsOf, ShardHost
from streams.errors import MailstreamsError

PROOFS_PER_SESSION: Final = 3
"""Proofs tried in one session timeout: losing one to a busy broker must not close sockets."""

RETRY_MIN_S: Final = 0.2
RETRY_MAX_S: Final = 5.0

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Partitions that are ours in a generation of the group."""

    generation: int
    partitions: frozenset[int]
    recovered: bool = True
    """Whether the tables are: nothing starts from older ones."""


class AssignmentKeeper:
    """Carries assignments to the host. `run` and `watch` are its two tasks."""

    def __init__(
        self,
        host: ShardHost,
        proof: GroupProof,
        accounts: AccountsOf,
        *,
        session_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._proof = proof
        self._accounts = accounts
        self._session_timeout_s = session_timeout_s
        self._clock = clock
        self._wanted = Assignment(-1, frozenset())
        self._settled: frozenset[int] = frozenset()
        self._changed = asyncio.Event()
        self._proved_at = clock()
        self._member = True

    @property
    def assignment(self) -> Assignment:
        """The newest assignment."""
        return self._wanted

    @property
    def member(self) -> bool:
        """Whether membership was proved within the session timeout."""
        return self._member

    def assigned(self, generation: int, partitions: frozenset[int]) -> None:
        """Partitions were assigned, their tables are not recovered yet: keep what stays, stop what went."""
        self._want(Assignment(generation, self._settled & partitions, recovered=False))

    def recovered(self, generation: int, partitions: frozenset[int]) -> None:
        """The rebalance is over and the tables are recovered. Of one that another has overtaken it says nothing."""
        if generation < self._wanted.generation:
            return
        self._settled = partitions
        self._want(Assignment(generation, partitions))

    def _want(self, assignment: Assignment) -> None:
        # Only a member is given an assignment.
        self._proved_at, self._member = self._clock(), True
        self._wanted = assignment
        self._changed.set()

    async def run(self) -> None:
        """Tell the host of every change, for good."""
        wait = RETRY_MIN_S
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            try:
                carry_out = self._host.assigned if wanted.recovered else self._host.narrowed
                await carry_out(wanted.partitions, AssignmentMembership(self._proof, wanted.generation), self._accounts)
                wait = RETRY_MIN_S
                _LOGGER.info("assignment of generation %d: partitions %s", wanted.generation, sorted(wanted.partitions))
            except Exception:
                _LOGGER.exception(
                    "carrying out the assignment of generation %d failed, trying again", wanted.generation
                )
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MAX_S)
                self._changed.set()

    async def watch(self) -> None:
        """Prove membership now and then, for good; close the sockets when that fails for a session timeout."""
        interval = self._session_timeout_s / PROOFS_PER_SESSION
        while True:
            await asyncio.sleep(interval)
            await self.check()

    async def check(self) -> None:
        """One proof, and what follows from it."""
        if not self._settled:
            # Without partitions there is nothing to commit and nothing to protect.
            self._proved_at = self._clock()
            return
        try:
            await self._proof.prove()
        except MailstreamsError as error:
            silent = self._clock() - self._proved_at
            if self._member and silent >= self._session_timeout_s:
                self._member = False
                _LOGGER.warning("no proof of membership for %.1f s, closing all connections: %s", silent, error)
                self._host.unassigned()
            return
        self._proved_at = self._clock()
        if not self._member:
            self._member = True
            _LOGGER.info("membership proved again")
            self._changed.set()
