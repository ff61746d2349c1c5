"""The shards and runners of this worker: what the control plane tells becomes shards, runners and tiers.

Invariants: an account has at most one runner here, and only while its shard is assigned and the account is live; a
rebalance that leaves a partition leaves its shard, its runners and their connections untouched; what cannot be served
is counted and shown.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol

from streams.contracts.account import Phase
from streams.domain import mirror
from streams.domain.backoff import full_jitter
from streams.domain.ownership import AccountEntry, ShardEvent, ShardPhase, on_assignment
from streams.domain.placement import PlacementInput, candidate, place
from streams.domain.tiers import (
    DEFAULT_TIER,
    Tier,
    TierDecision,
    TierInput,
    evaluate_in_slices,
    on_heat,
    on_mail,
    still_holds,
)
from streams.errors import MirrorDamaged, ServiceUnavailable, ShardError
from streams.observer import RuntimeObserver
from streams.runtime.services import Health
from streams.settings import Settings
from streams.sync.connections import Connector
from streams.sync.log import ShardLog
from streams.sync.removal import anything_left
from streams.sync.runner import AccountRunner, RunnerServices
from streams.sync.shard import Membership, Shard
from streams.sync.store import MirrorStore

log = logging.getLogger(__name__)

AccountsOf = Callable[[int], AsyncIterator[AccountEntry]]

RESTORES_AT_ONCE = 8
BACKFILLS_AT_ONCE = 32
"""Accounts that read history at the same time: bounds memory and the share of the loop that bulk work gets."""
REMOVALS_AT_ONCE = 8
REMOVAL_RETRY_MAX_S = 30.0
LOOKED_UP_AT_ONCE = 200
PLACEMENT_DELAY_S = 0.2
PLACED_PER_SLICE = 200
"""Accounts looked at between two turns of the loop: some milliseconds."""
STARTED_PER_SLICE = 20
"""Runners started between two turns of the loop: each reads what was recorded of its mailboxes."""
STUCK_S = 120.0
"""A shard on its way to running that has not moved for this long is stuck; one that tries again and again is not."""
HOT_COUNTED_S = 1.0
"""How old a count of the hot accounts may be: to count thousands for each one that mail promotes would be quadratic."""
GOODBYE_S = 1.0
"""For DONE and LOGOUT when a partition goes to another worker; the fence keeps the log from what is still under way."""
LAG_S = 1.0


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """One runner, as status shows it."""

    account_id: str
    partition: int
    tier: str
    reason: str
    phase: str
    watching: bool
    newest_mail_at: datetime | None
    heat_until: datetime | None
    last_sync_at: datetime | None
    next_poll_at: datetime | None
    error: str | None
    mailboxes: int
    messages: int


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """How this worker is doing."""

    shards: dict[int, str]
    shard_errors: dict[int, str]
    accounts: dict[tuple[str, str], int]
    live: int
    unserved: int
    watching: int
    oldest_overdue_s: float
    last_commit_at: float | None
    errors: tuple[tuple[str, str], ...] = field(default_factory=tuple)


class LogListener(Protocol):
    """Wants to write to the logs of running shards."""

    def opened(self, shard_log: ShardLog) -> None:
        """A shard runs. Raises `MirrorDamaged`."""
        ...

    def closed(self, partition: int) -> None:
        """It does not run any more."""
        ...


class Host:
    """Implements the control plane's `ShardHost`, and is a service of the process."""

    name = "shards"

    def __init__(
        self,
        settings: Settings,
        connector: Connector,
        observer: RuntimeObserver,
        *,
        worker: str,
        commands: LogListener | None = None,
    ) -> None:
        """`commands` is told of each log that opens and closes, so that the commands of the partition are run."""
        self._settings = settings
        self._observer = observer
        self._worker = worker
        self.commands = commands
        self._store: MirrorStore | None = None
        self._shards: dict[int, Shard] = {}
        self._entries: dict[int, dict[str, AccountEntry]] = {}
        self._loaded: set[int] = set()
        self._recoveries = 0
        self._runners: dict[str, AccountRunner] = {}
        self._waiting: dict[str, TierInput] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._removals = asyncio.Semaphore(REMOVALS_AT_ONCE)
        self._membership: Membership | None = None
        self._accounts: AccountsOf | None = None
        self._restores = asyncio.Semaphore(RESTORES_AT_ONCE)
        self._place_wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._unserved = 0
        self._hot_accounts = 0
        self._hot_counted_at = float("-inf")
        self._stopping = False
        self._placement_failed = 0
        self._services = RunnerServices(
            settings=settings,
            connector=connector,
            observer=observer,
            worker=worker,
            backfills=asyncio.Semaphore(BACKFILLS_AT_ONCE),
            on_dead=self._runner_died,
            on_mail=self._mail_seen,
        )

    # --- service -----------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Open the local store. Raises `ConfigurationError` when DATA_DIR cannot be used."""
        self._store = MirrorStore(self._settings.DATA_DIR)
        self._spawn(self._place_forever(), "placement")
        self._spawn(self._evaluate_forever(), "tiers")

    async def stop(self, deadline_s: float) -> None:
        """End all runners (DONE, LOGOUT), commit what they submitted, close the producers."""
        self._stopping = True
        started = time.monotonic()
        for task in list(self._tasks):
            task.cancel()
        await self._stop_runners(list(self._runners.values()), max(0.0, deadline_s - 1.0))
        left = max(0.0, deadline_s - (time.monotonic() - started))
        shards = list(self._shards.values())
        self._shards.clear()
        for shard in shards:
            self._commands_closed(shard.partition)
        await asyncio.gather(*(shard.close(flush_s=left) for shard in shards), return_exceptions=True)
        if self._store is not None:
            store, self._store = self._store, None
            store.close()

    def health(self) -> Health:
        """Not alive when a shard is stuck on its way; not ready while one is on its way."""
        now = time.monotonic()
        stuck = [
            f"shard {p} {s.phase.value} for {now - s.since:.0f} s: {s.error or 'no error'}"
            for p, s in self._shards.items()
            if s.phase in (ShardPhase.FENCING, ShardPhase.PROVING, ShardPhase.RESTORING) and now - s.since > STUCK_S
        ]
        on_the_way = [p for p, s in self._shards.items() if s.phase is not ShardPhase.RUNNING]
        detail = {
            "shards": dict(Counter(s.phase.value for s in self._shards.values())),
            "runners": len(self._runners),
            "unserved": self._unserved,
        }
        if stuck:
            return Health(alive=False, ready=False, reason="; ".join(stuck[:3]), detail=detail)
        if on_the_way:
            return Health(ready=False, reason=f"{len(on_the_way)} shards are on their way", detail=detail)
        return Health(detail=detail)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- what the control plane tells --------------------------------------------------------------------------------
    async def narrowed(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        """Hold no shards but these. Nothing starts: the accounts are still being recovered."""
        await self._hold(partitions & self._shards.keys(), membership, accounts)

    async def assigned(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        """Hold these shards and no others. Those that stay go on, lost ones stop, new ones start in their own tasks."""
        self._recoveries += 1
        kept = [shard for partition, shard in self._shards.items() if partition in partitions]
        await self._hold(partitions, membership, accounts)
        if kept and not self._stopping:
            self._spawn(self._look_again(kept, accounts), "accounts-again")

    async def _hold(self, partitions: frozenset[int], membership: Membership, accounts: AccountsOf) -> None:
        if self._stopping or self._store is None:
            return
        self._membership, self._accounts = membership, accounts
        if partitions:
            # the assignor spreads evenly, so our share tells how many we are without asking anybody
            self._services.connector.share(max(1, round(self._settings.PARTITIONS / len(partitions))))
        change = on_assignment(frozenset(self._shards), partitions)
        if change.stop:
            self._begin_drop(change.stop, GOODBYE_S)
        for partition in change.keep:
            self._shards[partition].tell(ShardEvent.ASSIGNED)
        for partition in change.start:
            self._shards[partition] = Shard(
                partition,
                settings=self._settings,
                store=self._store,
                observer=self._observer,
                worker=self._worker,
                membership=self._current_membership,
                restores=self._restores,
                on_running=self._shard_running,
                on_broken=self._shard_broken,
                after=self._closing.get(partition),
            )
        log.info("assignment: %d shards stay, %d start, %d stop", len(change.keep), len(change.start), len(change.stop))

    def unassigned(self) -> None:
        """We are no member of the group any more: stop all runners, close their sockets."""
        if self._shards:
            self._begin_drop(frozenset(self._shards), 0.0)

    def account_changed(self, partition: int, entry: AccountEntry) -> None:
        """An account has come, changed its state, its user or its version."""
        if partition not in self._shards:
            return
        entries = self._entries.setdefault(partition, {})
        before = entries.get(entry.account_id)
        if entry.state != "live":
            entries.pop(entry.account_id, None)
            if entry.state == "deleted":
                self._remove_account(partition, entry.account_id)
            else:
                self._stop_account(entry.account_id)
            return
        entries[entry.account_id] = entry
        runner = self._runners.get(entry.account_id)
        if runner is not None and before is not None and before.version != entry.version:
            runner.account_changed()
        if runner is None:
            self._start_if_room(partition, entry)
        else:
            runner.set_heat(entry.heat_until)
        if self._hot(entry):
            self.heat_changed(partition, entry.account_id, entry.heat_until)

    def account_forgotten(self, partition: int, account_id: str) -> None:
        """An account is gone without a trace: as if it had been said to be deleted."""
        self._entries.get(partition, {}).pop(account_id, None)
        self._remove_account(partition, account_id)

    def heat_changed(self, partition: int, account_id: str, until: datetime | None) -> None:
        """A session keeps the account hot until then: promoted at once, shed only by the next evaluation."""
        entries = self._entries.get(partition, {})
        entry = entries.get(account_id)
        if entry is None:
            return
        entry = entries[account_id] = AccountEntry(entry.account_id, entry.user_id, entry.state, entry.version, until)
        runner = self._runners.get(account_id)
        if runner is None:
            self._place_wake.set()
            return
        runner.set_heat(until)
        decision = on_heat(self._tier_input(runner, entry), now=_now())
        if decision is not None:
            self._apply(decision, runner)

    def snapshot(self) -> HostSnapshot:
        """How shards and accounts are doing."""
        now = time.time()
        due = [r.next_poll_at for r in self._runners.values() if r.next_poll_at > 0]
        commits = [s.last_commit_at for s in self._shards.values() if s.last_commit_at is not None]
        return HostSnapshot(
            shards={p: s.phase.value for p, s in self._shards.items()},
            shard_errors={p: s.error for p, s in self._shards.items() if s.error is not None},
            accounts=dict(Counter((r.tier, r.phase) for r in self._runners.values())),
            live=sum(len(entries) for entries in self._entries.values()),
            unserved=self._unserved,
            watching=sum(1 for r in self._runners.values() if r.watching),
            oldest_overdue_s=max((now - at for at in due), default=0.0) if due else 0.0,
            last_commit_at=max(commits, default=None),
            errors=tuple(self._errors())[:20],
        )

    def _errors(self) -> Iterator[tuple[str, str]]:
        for runner in self._runners.values():
            if runner.failure is not None:
                yield runner.account_id, f"{runner.failure.code}: {runner.failure.message}"

    def account(self, account_id: str) -> AccountSnapshot | None:
        """One account, if it runs here."""
        runner = self._runners.get(account_id)
        if runner is None:
            return None
        entry = self._entries.get(runner.shard.partition, {}).get(account_id)
        failure = runner.failure
        return AccountSnapshot(
            account_id=account_id,
            partition=runner.shard.partition,
            tier=runner.tier,
            reason=runner.tier_reason,
            phase=runner.phase,
            watching=runner.watching,
            newest_mail_at=_at(runner.newest_mail_at),
            heat_until=entry.heat_until if entry else None,
            last_sync_at=_at(runner.last_sync_at),
            next_poll_at=_at(runner.next_poll_at) if runner.next_poll_at > 0 else None,
            error=f"{failure.code}: {failure.message}" if failure else None,
            mailboxes=runner.mailboxes,
            messages=runner.messages,
        )

    def runner(self, account_id: str) -> AccountRunner | None:
        """The runner of an account, if it is served here."""
        return self._runners.get(account_id)

    def is_live(self, account_id: str) -> bool:
        """Whether the control plane says that the account is live and ours, served or not."""
        return any(account_id in entries for entries in self._entries.values())

    def shard(self, partition: int) -> Shard | None:
        """The shard of a partition, if it is assigned here."""
        return self._shards.get(partition)

    # --- shards ------------------------------------------------------------------------------------------------------
    def _current_membership(self) -> Membership:
        assert self._membership is not None
        return self._membership

    async def _shard_running(self, shard: Shard) -> None:
        """Load the accounts of the partition, then give them runners. After a lost producer the runners are there
        already.
        """
        partition = shard.partition
        current = shard.log
        if self.commands is not None and current is not None:
            try:
                self.commands.opened(current)
            except MirrorDamaged as error:
                shard.mirror_unreadable(error)
                return
        if partition in self._loaded or self._accounts is None:
            self._place_wake.set()
            return
        entries = self._entries.setdefault(partition, {})
        recoveries = self._recoveries
        heard_of: set[str] = set()
        deleted: list[str] = []
        async for entry in self._accounts(partition):
            if self._shards.get(partition) is not shard:
                return
            heard_of.add(entry.account_id)
            if entry.state == "live":
                entries[entry.account_id] = entry
            else:
                entries.pop(entry.account_id, None)
                if entry.state == "deleted":
                    deleted.append(entry.account_id)
        self._loaded.add(partition)
        self._place_wake.set()
        if recoveries != self._recoveries:  # the first of them were read from a table that was still being recovered
            self._spawn(self._look_again([shard], self._accounts), "accounts-again")
        self._spawn(self._finish_removals(shard, deleted, heard_of), f"removals-{partition}")

    async def _look_again(self, shards: list[Shard], accounts: AccountsOf) -> None:
        """What is known of the accounts of shards that stay, as the recovered table has it: while this worker slept,
        another one may have owned the partition and heard what happened.
        """
        for shard in shards:
            partition = shard.partition
            entries = self._entries.get(partition, {})
            unheard = set(entries)
            async for entry in accounts(partition):
                if self._shards.get(partition) is not shard or partition not in self._loaded:
                    break  # it went, or reads them all when it runs
                unheard.discard(entry.account_id)
                if entry.state == "live" or entry.account_id in entries:
                    self.account_changed(partition, entry)
            if self._shards.get(partition) is not shard or partition not in self._loaded:
                continue
            for account_id in unheard:  # nobody speaks of it any more, which does not say that its mail goes
                entries.pop(account_id, None)
                self._stop_account(account_id)
        self._place_wake.set()

    def _commands_closed(self, partition: int) -> None:
        if self.commands is not None:
            self.commands.closed(partition)

    async def _shard_broken(self, shard: Shard) -> None:
        self._commands_closed(shard.partition)
        runners = [r for r in self._runners.values() if r.shard is shard]
        for runner in runners:
            self._runners.pop(runner.account_id, None)
        self._loaded.discard(shard.partition)
        await self._stop_runners(runners, 1.0)

    def _begin_drop(self, partitions: frozenset[int], goodbye_s: float) -> None:
        shards = [self._shards.pop(p) for p in partitions if p in self._shards]
        task = self._spawn(self._drop(partitions, shards, goodbye_s), "drop-shards")
        for partition in partitions:
            self._closing[partition] = task
            self._commands_closed(partition)

    async def _drop(self, partitions: frozenset[int], shards: list[Shard], goodbye_s: float) -> None:
        gone = {id(shard) for shard in shards}
        runners = [r for r in self._runners.values() if id(r.shard) in gone]
        for runner in runners:
            del self._runners[runner.account_id]
        for partition in partitions:
            for account_id in self._entries.pop(partition, {}):
                self._waiting.pop(account_id, None)
            self._loaded.discard(partition)
        await self._stop_runners(runners, goodbye_s)
        await asyncio.gather(*(shard.close(flush_s=0.0) for shard in shards), return_exceptions=True)
        self._place_wake.set()

    @staticmethod
    async def _stop_runners(runners: list[AccountRunner], deadline_s: float) -> None:
        await asyncio.gather(*(runner.stop(deadline_s) for runner in runners), return_exceptions=True)

    # --- runners -----------------------------------------------------------------------------------------------------
    def _start_if_room(self, partition: int, entry: AccountEntry) -> None:
        if len(self._runners) < self._settings.MAX_ACCOUNTS_PER_WORKER and self._unserved == 0:
            self._start_account(partition, entry)
        if entry.account_id not in self._runners:
            self._place_wake.set()

    def _start_account(self, partition: int, entry: AccountEntry) -> None:
        shard = self._shards.get(partition)
        if shard is None or shard.log is None or partition not in self._loaded or entry.account_id in self._runners:
            return
        if entry.account_id in self._ending:
            return  # two runners of one account would number its events twice; placement comes when the old one is gone
        runner = AccountRunner(entry.account_id, shard, self._services)
        runner.heat_until = entry.heat_until
        try:
            runner.start(shard.log, session_active=self._hot(entry))
        except MirrorDamaged as error:
            shard.mirror_unreadable(error)
            return
        self._runners[entry.account_id] = runner

    def _stop_account(self, account_id: str, phase: Phase = "stopped") -> None:
        runner = self._runners.pop(account_id, None)
        if runner is not None:
            self._end(account_id, self._end_runner(runner, phase))

    def _end(self, account_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Do this after what is ending the account already; no runner starts before all of it is over."""
        before = self._ending.get(account_id)

        async def in_turn() -> None:
            try:
                if before is not None:
                    await asyncio.wait({before})
                await work
            except Exception:
                log.exception("account %s: it ended badly", account_id)
            finally:
                work.close()
                if self._ending.get(account_id) is task:
                    del self._ending[account_id]
                self._place_wake.set()

        task = self._ending[account_id] = self._spawn(in_turn(), f"end-{account_id}")

    async def _end_runner(self, runner: AccountRunner, phase: Phase) -> None:
        await self._stop_runners([runner], 1.0)
        await runner.tell(phase)

    # --- removal -----------------------------------------------------------------------------------------------------
    def _remove_account(self, partition: int, account_id: str) -> None:
        """The account was removed: end its runner, then have its log say that its mail is gone."""
        shard = self._shards.get(partition)
        if shard is not None:
            runner = self._runners.pop(account_id, None) or AccountRunner(account_id, shard, self._services)
            self._end(account_id, self._erase(shard, runner))

    async def _erase(self, shard: Shard, runner: AccountRunner) -> None:
        await self._stop_runners([runner], 1.0)
        failures = 0
        while self._shards.get(shard.partition) is shard:
            try:
                async with self._removals:
                    current = await shard.running()
                    if anything_left(current, runner.account_id):
                        mailboxes = await runner.erase()
                        log.info("account %s was removed, with its %d mailboxes", runner.account_id, mailboxes)
                return
            except MirrorDamaged as error:
                shard.mirror_unreadable(error)
                return
            except (ShardError, TimeoutError) as error:
                failures += 1
                log.info("account %s: its removal is tried again: %s", runner.account_id, error)
            pause = full_jitter(failures, minimum_s=0.2, maximum_s=REMOVAL_RETRY_MAX_S, random=random.random())
            await asyncio.sleep(pause)

    async def _finish_removals(self, shard: Shard, deleted: list[str], heard_of: set[str]) -> None:
        """Removals that an earlier owner did not end, and those of which nothing but the mail is left.

        An account that nobody speaks of any more (a tombstone made it forgotten) is removed only when the database
        has no such account either: one empty table must not cost all mail.
        """
        partition = shard.partition
        for account_id in deleted:
            await self._remove_if_left(shard, account_id)
        store = self._store
        if store is None:
            return
        unheard: list[str] = []
        for count, account_id in enumerate(list(store.accounts(partition))):
            if account_id not in heard_of:
                unheard.append(account_id)
            if count % LOOKED_UP_AT_ONCE == 0:
                await asyncio.sleep(0)
        while unheard and self._shards.get(partition) is shard:
            part = unheard[:LOOKED_UP_AT_ONCE]
            try:
                rows = await self._services.connector.store.rows(part)
            except ServiceUnavailable as error:
                log.info("partition %d: unfinished removals have to wait: %s", partition, error)
                await asyncio.sleep(REMOVAL_RETRY_MAX_S)
                continue
            del unheard[: len(part)]
            for account_id in part:
                row = rows.get(account_id)
                if row is None or row.state == "deleted":
                    await self._remove_if_left(shard, account_id)

    async def _remove_if_left(self, shard: Shard, account_id: str) -> None:
        """Take up a removal, unless the account has come back."""
        partition, current = shard.partition, shard.log
        if current is None or account_id in self._entries.get(partition, {}) or account_id in self._ending:
            return
        try:
            if anything_left(current, account_id):
                self._remove_account(partition, account_id)
        except MirrorDamaged as error:
            shard.mirror_unreadable(error)
        await asyncio.sleep(0)

    def _runner_died(self, runner: AccountRunner, reason: str) -> None:
        """Row S9: reaped; it runs again when the control plane says that it is live."""
        log.info("account %s: its runner has ended: %s", runner.account_id, reason)
        if self._runners.get(runner.account_id) is runner:
            del self._runners[runner.account_id]
            self._entries.get(runner.shard.partition, {}).pop(runner.account_id, None)
        self._place_wake.set()

    async def _place_forever(self) -> None:
        """Row S2: who runs when there is not room for all."""
        while True:
            await self._place_wake.wait()
            await asyncio.sleep(PLACEMENT_DELAY_S)
            self._place_wake.clear()
            try:
                await self._place()
            except Exception:
                log.exception("placement failed and is tried again")
                self._place_wake.set()

    async def _place(self) -> None:
        """In slices; what changes meanwhile wakes the placement again."""
        capacity = self._settings.MAX_ACCOUNTS_PER_WORKER
        ready = [(p, e.account_id) for p in self._loaded for e in self._entries.get(p, {}).values()]
        if len(ready) <= capacity:
            self._unserved = 0
            self._waiting.clear()
            await self._start_accounts(ready)
            self._report()
            return
        by_id = {account_id: partition for partition, account_id in ready}
        placement = place(await self._candidates(ready), capacity)
        for account_id in placement.stop:
            runner, entry = self._runners.get(account_id), self._entry(by_id[account_id], account_id)
            if runner is not None:
                self._waiting[account_id] = self._tier_input(runner, entry)
                self._stop_account(account_id, "unserved")
        await self._start_accounts([(by_id[account_id], account_id) for account_id in placement.start])
        self._waiting = {name: self._waiting[name] for name in placement.unserved if name in self._waiting}
        if len(placement.unserved) != self._unserved:
            log.warning("%d live accounts are unserved: more workers are needed", len(placement.unserved))
        self._unserved = len(placement.unserved)
        self._report()

    def _entry(self, partition: int, account_id: str) -> AccountEntry | None:
        """The live account as it is now; None when it or its partition went."""
        return self._entries.get(partition, {}).get(account_id) if partition in self._loaded else None

    async def _start_accounts(self, accounts: Sequence[tuple[int, str]]) -> None:
        started = 0
        for partition, account_id in accounts:
            entry = self._entry(partition, account_id)
            if entry is None or account_id in self._runners:
                continue
            if len(self._runners) >= self._settings.MAX_ACCOUNTS_PER_WORKER:
                self._place_wake.set()  # somebody else took the place meanwhile
                return
            self._start_account(partition, entry)
            started += 1
            if started % STARTED_PER_SLICE == 0:
                await asyncio.sleep(0)

    async def _candidates(self, ready: Sequence[tuple[int, str]]) -> list[PlacementInput]:
        """How warm each account is. Of those that nobody serves, the mirror tells what the last owner recorded."""
        candidates: list[PlacementInput] = []
        now = _now()
        for count, (partition, account_id) in enumerate(ready, 1):
            if count % PLACED_PER_SLICE == 0:
                await asyncio.sleep(0)
            entry, shard = self._entry(partition, account_id), self._shards.get(partition)
            if entry is None or shard is None:
                continue
            if account_id not in self._runners and account_id not in self._waiting:
                if shard.log is None:
                    continue  # it runs again soon, and is placed then
                try:
                    self._waiting[account_id] = _recorded(account_id, shard.log)
                except MirrorDamaged as error:
                    shard.mirror_unreadable(error)
                    continue
            candidates.append(self._candidate(entry, now))
        return candidates

    def _candidate(self, entry: AccountEntry, now: datetime) -> PlacementInput:
        runner = self._runners.get(entry.account_id)
        if runner is not None:
            account = self._tier_input(runner, entry)
        else:
            waiting = self._waiting.get(entry.account_id, _unknown(entry.account_id))
            account = replace(waiting, heat_until=entry.heat_until)
        return candidate(
            account,
            served=runner is not None,
            hot_activity=timedelta(hours=self._settings.TIER_HOT_ACTIVITY_H),
            cold_after=timedelta(days=self._settings.TIER_COLD_AFTER_D),
            now=now,
        )

    def _report(self) -> None:
        self._observer.accounts(dict(Counter((r.tier, r.phase) for r in self._runners.values())), self._unserved)
        self._observer.shards(dict(Counter(s.phase.value for s in self._shards.values())))

    # --- tiers -------------------------------------------------------------------------------------------------------
    async def _evaluate_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.TIER_EVALUATION_S)
            try:
                await self.evaluate()
            except Exception:
                log.exception("the evaluation of tiers failed and is tried again")

    async def evaluate(self) -> int:
        """Rows S13, S14: tiers of all runners by session, newest mail and budget. Returns how many changed."""
        settings = self._settings
        inputs = [
            self._tier_input(runner, self._entries.get(runner.shard.partition, {}).get(runner.account_id))
            for runner in self._runners.values()
        ]
        changed = 0
        now = _now()
        for decisions in evaluate_in_slices(
            inputs,
            hot_budget=settings.HOT_BUDGET_PER_WORKER,
            hot_activity=timedelta(hours=settings.TIER_HOT_ACTIVITY_H),
            cold_after=timedelta(days=settings.TIER_COLD_AFTER_D),
            now=now,
        ):
            for decision in decisions:
                runner = self._runners.get(decision.account_id)
                if runner is None:
                    continue
                entry = self._entries.get(runner.shard.partition, {}).get(runner.account_id)
                if still_holds(decision, self._tier_input(runner, entry), now=_now()):
                    self._apply(decision, runner)
                    changed += 1
            await asyncio.sleep(0)
        self._report()
        return changed

    def _mail_seen(self, runner: AccountRunner) -> None:
        """New mail promotes at once; demotion waits for the evaluation."""
        settings = self._settings
        entry = self._entries.get(runner.shard.partition, {}).get(runner.account_id)
        decide = partial(
            on_mail,
            self._tier_input(runner, entry),
            hot_budget=settings.HOT_BUDGET_PER_WORKER,
            hot_activity=timedelta(hours=settings.TIER_HOT_ACTIVITY_H),
            cold_after=timedelta(days=settings.TIER_COLD_AFTER_D),
            now=_now(),
        )
        if decide(hot_accounts=0) is None:
            return  # most mail changes nothing: only for the rest accounts are counted
        decision = decide(hot_accounts=self._count_hot())
        if decision is not None:
            self._apply(decision, runner)

    def _count_hot(self) -> int:
        """Hot accounts: counted a moment ago, and with what has been decided since. Those that came and went since are
        seen by the next count; what is over the budget is shed by the evaluation.
        """
        now = time.monotonic()
        if now - self._hot_counted_at > HOT_COUNTED_S:
            self._hot_accounts = sum(1 for runner in self._runners.values() if runner.tier == "hot")
            self._hot_counted_at = now
        return self._hot_accounts

    def _apply(self, decision: TierDecision, runner: AccountRunner) -> None:
        self._hot_accounts += (decision.tier == "hot") - (runner.tier == "hot")
        runner.set_tier(decision.tier, decision.reason)

    @staticmethod
    def _tier_input(runner: AccountRunner, entry: AccountEntry | None) -> TierInput:
        return TierInput(
            account_id=runner.account_id,
            tier=runner.tier,
            reason=runner.tier_reason,
            heat_until=entry.heat_until if entry is not None else None,
            newest_mail_at=_at(runner.newest_mail_at),
            mail_known=runner.mail_known,
        )

    @staticmethod
    def _hot(entry: AccountEntry) -> bool:
        return entry.heat_until is not None and entry.heat_until > _now()


def _unknown(account_id: str) -> TierInput:
    """An account of which nothing is recorded."""
    return TierInput(account_id, DEFAULT_TIER, "default", None, None, mail_known=False)


def _recorded(account_id: str, current: ShardLog) -> TierInput:
    """What the mirror says of an account that has no runner. Raises `MirrorDamaged`."""
    value = current.read(mirror.account_key(account_id))
    if value is None:
        return _unknown(account_id)
    record = mirror.decode_account(value)
    tier: Tier = record.tier if record.tier in ("hot", "warm", "cold") else DEFAULT_TIER  # type: ignore[assignment]
    return TierInput(account_id, tier, "default", None, _at(record.newest_mail_at), mail_known=record.caught_up)


def _now() -> datetime:
    return datetime.now(UTC)


def _at(timestamp: float | None) -> datetime | None:
    return None if timestamp is None else datetime.fromtimestamp(timestamp, UTC)
