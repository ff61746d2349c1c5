"""One account's runner: keeps the account in sync in the shape that its tier asks for.

Two loops share the account's state under one lock. The *poller* looks at all mailboxes when a poll is due, then reads
history until the next one. The *watcher* holds an IDLE connection on INBOX while the account is hot; where the server
has NOTIFY it looks at the other folders as soon as they move. A pass, or a window of history, holds the lock;
everything in between sees whole events only.

Invariant: a runner never concludes anything from a failure; it keeps the cursor and tries again on its schedule (row
S16). Its sessions belong to it, not to the log: a lost log is read again while the connections stay.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from streams.contracts import mailbox as events
from streams.contracts import topics
from streams.contracts.account import (
    SET_ASIDE_LIMIT,
    AccountStateChanged,
    AccountSyncStatus,
    AccountTierChanged,
    Phase,
    SyncError,
    Tier,
    TierReason,
)
from streams.domain import mirror
from streams.domain.backoff import full_jitter, jittered
from streams.errors import (
    AccountError,
    CredentialsRefused,
    HostBusy,
    MailstreamsError,
    MirrorDamaged,
    ProducerLost,
    RetryLater,
    ShardError,
)
from streams.imap.hosts import server_key
from streams.imap.pacing import Rates, Turn
from streams.imap.session import ImapSession
from streams.observer import RuntimeObserver
from streams.settings import Settings
from streams.sync.backfill import Backfill
from streams.sync.connections import AccountLink, Connector, NotLive
from streams.sync.context import Memory, has_open
from streams.sync.hints import Hints
from streams.sync.log import ShardLog
from streams.sync.passes import AccountPass
from streams.sync.reading import Trouble
from streams.sync.removal import erase
from streams.sync.state import AccountState

log = logging.getLogger(__name__)

STATUS_EVERY_S: Final = 900.0
"""An unchanged status is published again this often."""
NOOP_EVERY_S: Final = 30.0
"""How often INBOX is asked where the server has no IDLE."""
TIER_TOLD_WITHIN_S: Final = 1.0
"""Within this long is recorded and published that an account became hot; its next write takes it along."""
DEMOTION_TOLD_WITHIN_S: Final = 15.0
"""The same of any other new tier: an evaluation may change thousands at once, and nothing waits for it."""
HEAT_TOLD_WITHIN_S: Final = 5.0
"""Within this long the status tells of new session heat, and of an account that is seen for the first time."""
TELL_S: Final = 5.0
"""Time to publish that an account has stopped."""
ERASE_S: Final = 120.0
"""Time for one attempt to write that a removed account's mail is gone."""
CRASH_LOOP_AFTER: Final = 3
"""Processes in a row that ended while they began to work on an account, after which it has to wait (case 18)."""
CRASH_LOOP_WAIT_S: Final = 60.0
"""How long, the first time; twice as long with each further one, up to BACKOFF_MAX_S."""
STABLE_AFTER_S: Final = 60.0
"""A watching connection that lived this long forgives earlier failures."""


class ShardPort(Protocol):
    """What a runner needs of its shard."""

    partition: int

    async def running(self) -> ShardLog:
        """The log in force; waits until the shard runs."""
        ...

    def mirror_unreadable(self, error: MirrorDamaged) -> None:
        """The shard must stop until a person looks."""
        ...


@dataclass(slots=True)
class RunnerServices:
    """What all runners of a worker share."""

    settings: Settings
    connector: Connector
    observer: RuntimeObserver
    worker: str
    backfills: asyncio.Semaphore
    on_dead: Callable[[AccountRunner, str], None]
    on_mail: Callable[[AccountRunner], None]
    wall: Callable[[], float] = time.time
    """For what is recorded and shown."""
    clock: Callable[[], float] = time.monotonic
    """For what is waited for: a wall clock may be set while a poll is due."""


@dataclass(slots=True)
class Failure:
    """The last thing that went wrong, as status shows it."""

    code: str
    message: str
    at: float
    count: int = 1


class AccountRunner:
    """Runs one account of a shard until stopped or dead."""

    def __init__(self, account_id: str, shard: ShardPort, services: RunnerServices) -> None:
        self.account_id = account_id
        self.shard = shard
        self.tier: Tier = "warm"
        self.tier_reason: TierReason = "default"
        self.heat_until: datetime | None = None
        self.phase: Phase = "starting"
        self.since = services.wall()
        self.newest_mail_at: float | None = None
        self.mail_known = False
        self.failure: Failure | None = None
        self.retry_at: float | None = None
        self.last_sync_at: float | None = None
        self.mailboxes = 0
        self.messages = 0
        self.dead: str | None = None
        self._services = services
        self._settings = services.settings
        self._link = AccountLink(account_id)
        self._memory = Memory(Trouble(services.settings.FETCH_WINDOW), refused=self._link.refused)
        self._lock = asyncio.Lock()
        self._state: AccountState | None = None
        self._states: WeakSet[AccountState] = WeakSet()
        self._poll_wake = asyncio.Event()
        self._watch_wake = asyncio.Event()
        self._ready = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._watch_session: ImapSession | None = None
        self._credential_refusals = 0
        self._published: tuple[object, ...] = ()
        self._published_at = 0.0
        self._tier_told_within: float | None = None
        self._tier_moved = False
        self._tier_event = asyncio.Event()
        self._due_at = 0.0
        self._not_before = 0.0
        self._begun: set[str] = set()
        self._working: set[str] = set()
        self._marked = False
        self._history_at = 0.0
        self._reading_history = False
        self._look_due = False

    # --- life --------------------------------------------------------------------------------------------------------
    def start(self, log_now: ShardLog, *, session_active: bool) -> None:
        """Take over what the last owner recorded (row S11) and begin."""
        recorded = False
        value = log_now.read(mirror.account_key(self.account_id))
        if value is not None:
            record = mirror.decode_account(value)
            recorded = record.tier in ("hot", "warm", "cold")
            if recorded:
                self.tier = record.tier  # type: ignore[assignment]
                self.tier_reason = record.tier_reason or "default"  # type: ignore[assignment]
            self.newest_mail_at = record.newest_mail_at
            self.mail_known = record.caught_up and (
                record.newest_mail_at is not None or not self._history_left(log_now)
            )
            if record.caught_up:
                # INBOX is known: a hot account is watched at once, whenever its next poll is due.
                self._ready.set()
            self._guard_against_crash_loop(record)
            if record.caught_up and record.last_poll_at is not None and not self._history_left(log_now):
                left = record.last_poll_at + self._interval() - self._services.wall()
                self._due_at = self._services.clock() + min(max(left, 0.0), random.random() * self._interval())
        if session_active and self.tier != "hot":
            self.set_tier("hot", "session")
        elif not recorded:
            self._tell_tier(HEAT_TOLD_WITHIN_S)
        self._task = asyncio.create_task(self._run(), name=f"runner-{self.account_id}")

    def _guard_against_crash_loop(self, record: mirror.AccountRecord) -> None:
        """An account during whose work the process died again and again has to wait, so that the others get their
        turn.
        """
        count = record.unfinished
        if count < CRASH_LOOP_AFTER:
            return
        longest = min(self._settings.BACKOFF_MAX_S, CRASH_LOOP_WAIT_S * 2.0 ** min(count - CRASH_LOOP_AFTER, 16))
        # not longer than this from now on, should the process that ended have had a wrong clock
        since = min(record.unfinished_at, self._services.wall())
        self.retry_at = since + longest * (0.5 + random.random())
        self._not_before = self._services.clock() + self.retry_at - self._services.wall()
        self.failure = Failure(
            "crash_loop", f"{count} processes in a row ended while they worked on this account", self._services.wall()
        )
        self._enter("backing_off")
        log.error("account %s: %s", self.account_id, self.failure.message)

    def _history_left(self, log_now: ShardLog) -> bool:
        """Whether the last owner was still reading history: that goes on now, not at the next poll."""
        for _, value in log_now.scan(f"{self.account_id}/mailbox/"):
            box = mirror.decode_mailbox(value)
            if box.selectable and not box.view and not box.backfill_done and not box.aside:
                return True
        return False

    async def stop(self, deadline_s: float) -> None:
        """End IDLE with DONE and LOGOUT, give up what is in progress after the deadline. Never raises.

        Whatever still is in progress afterwards, a command most likely, writes nothing more: the account's next
        runner may begin.
        """
        self._stopping = True
        self._ready.set()
        self._tier_event.set()
        self._wake_all()
        task = self._task
        if task is not None:
            if deadline_s > 0 and not task.done():
                await asyncio.wait({task}, timeout=deadline_s)
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=3.0)
        self._end_states()

    def _end_states(self) -> None:
        """What a command still holds reaches the log no more."""
        for state in self._states:
            state.end()

    async def tell(self, phase: Phase) -> None:
        """After `stop`: publish that nobody serves the account any more (and why), while the shard is still ours."""
        if self.dead is not None or self._task is None or not self._task.done():
            return
        try:
            async with asyncio.timeout(TELL_S):
                shard_log = await self.shard.running()
                async with self._lock:
                    state = self._load(shard_log)
                    self._enter(phase)
                    self._publish_status(state)
                    await state.commit()
        except (TimeoutError, MailstreamsError) as error:
            log.info("account %s: that it stopped could not be published: %s", self.account_id, error)

    async def erase(self) -> int:
        """After `stop`, or instead of `start`: the account was removed; its log tells that its mail is gone.

        Returns the mailboxes. Raises `ShardError` when the log was lost, and `TimeoutError`; it may be done again then.
        """
        self._stopping = True
        async with asyncio.timeout(ERASE_S):
            shard_log = await self.shard.running()
            async with self._lock:
                self._state = None
                try:
                    return await erase(self._load(shard_log))
                finally:
                    self._state = None

    def set_tier(self, tier: Tier, reason: TierReason) -> None:
        """Change shape in place; recorded and published with the next write of the account."""
        if (tier, reason) == (self.tier, self.tier_reason):
            return
        now = self._services.clock()
        previous, self.tier, self.tier_reason = self.tier, tier, reason
        self._tell_tier(TIER_TOLD_WITHIN_S if tier == "hot" else DEMOTION_TOLD_WITHIN_S)
        if previous != tier:
            self._tier_moved = True
            self._services.observer.tier_changed(tier, reason)
            if tier == "hot":
                # What came meanwhile is looked for over the connection that watches: a poll would be a second login.
                self._look_due = self._ready.is_set()
                soon = random.random() * self._settings.POLL_WARM if self._look_due else 0.0
                self._due_at = min(self._due_at, now + soon)
                self._wake_all()
            elif previous == "hot":
                self._watch_wake.set()
            elif tier == "warm":
                self._due_at = min(self._due_at, now + random.random() * self._settings.POLL_WARM)
                self._poll_wake.set()

    def set_heat(self, until: datetime | None) -> None:
        """Until when a session keeps the account hot; told with its status. The tier is the host's to decide."""
        if until != self.heat_until:
            self.heat_until = until
            self._tell_tier(HEAT_TOLD_WITHIN_S)

    def _tell_tier(self, within_s: float) -> None:
        """Tier and heat are to be told within this time."""
        if self._tier_told_within is None or within_s < self._tier_told_within:
            self._tier_told_within = within_s
            self._tier_event.set()

    def account_changed(self) -> None:
        """Address, credentials or owner changed: forget what was read, try again now."""
        self._link.forget()
        self._credential_refusals = 0
        self.poke()

    def poke(self) -> None:
        """Poll now."""
        self._due_at = 0.0
        self.retry_at = None
        self._not_before = 0.0
        self._wake_all()

    def _wake_all(self) -> None:
        self._poll_wake.set()
        self._watch_wake.set()

    @property
    def next_poll_at(self) -> float:
        """When the next poll is due (unix seconds, as the wall clock stands now); 0 for at once."""
        if self._due_at == 0.0:
            return 0.0
        return self._services.wall() + self._due_at - self._services.clock()

    @property
    def watching(self) -> bool:
        """Whether the IDLE connection stands."""
        return self._watch_session is not None

    # --- the loops ---------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    shard_log = await self.shard.running()
                except ShardError:
                    return  # the shard is not ours any more
                try:
                    await self._serve(shard_log)
                except ExceptionGroup as group:
                    if not await self._survives(group):
                        return
                if self.dead is not None:
                    return
        finally:
            # Nobody may stop a runner that ends by itself; the account's next one may begin at any time.
            self._stopping = True
            self._end_states()
            self._state = None
            self.phase = "stopped"

    async def _survives(self, group: ExceptionGroup[Exception]) -> bool:
        """What a failed loop means for the runner: start over (True) or end."""
        self._log_lost()
        damaged = _first(group, MirrorDamaged)
        if damaged is not None:
            log.error("account %s: %s", self.account_id, damaged)
            self.shard.mirror_unreadable(damaged)
            return False
        gone = _first(group, NotLive)
        if gone is not None:
            self._die(str(gone))
            return False
        if _first(group, ShardError) is None:
            log.error("account %s: the runner failed and starts again", self.account_id, exc_info=group)
            wait = self._fail("internal", "the runner failed unexpectedly")
            self._enter("backing_off")
            await self._pause(wait)
        return True

    async def _serve(self, shard_log: ShardLog) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll_forever(shard_log), name=f"poller-{self.account_id}")
            group.create_task(self._watch_forever(shard_log), name=f"watcher-{self.account_id}")
            group.create_task(self._record_tiers(shard_log), name=f"tiers-{self.account_id}")

    def _die(self, reason: str) -> None:
        self.dead = reason
        self._services.on_dead(self, reason)

    async def _poll_forever(self, shard_log: ShardLog) -> None:
        if self._not_before > self._services.clock():
            await self._tell(shard_log)
        while not self._stopping:
            delay = max(self._due_at, self._not_before) - self._services.clock()
            if delay > 0:
                await _wait(self._poll_wake, delay)
                continue
            if self.last_sync_at is not None and self._due_at > 0:
                self._services.observer.poll_lateness(-delay)
            if self.phase != "running":
                self._enter("syncing")
            try:
                try:
                    async with self._session("poll") as session:
                        await self._poll(shard_log, session)
                except MailstreamsError as error:
                    if isinstance(error, ShardError | NotLive):
                        raise
                    wait = await self._failed(shard_log, error)
                    if self.retry_at is not None:  # else it was poked, or went well elsewhere, while this was written
                        self._due_at = self._services.clock() + wait
            except ProducerLost:
                shard_log = await self._next_log()

    async def _poll(self, shard_log: ShardLog, session: ImapSession) -> None:
        """Passes and history on one connection, until there is no history left or the account changes shape."""
        await self._begin_work(shard_log, "poll")
        while not self._stopping:
            started = self._services.clock()
            async with self._at_work(partial(self._load, shard_log)) as (state, account_pass):
                await account_pass.run(session)
                await self._passed(state, account_pass, started)
            self._ready.set()
            self._due_at = started + jittered(self._interval(), random=random.random())
            if not await self._read_history(shard_log, session, slowly=self._throttled(session)):
                return

    def _throttled(self, session: ImapSession) -> bool:
        """Whether the server asked for less (case 76): logins to it wait, and history is read by single windows."""
        if not session.take_changes().throttled:
            return False
        if self._link.connection is not None:
            self._services.connector.slow_down(self._host(), None)
        return True

    async def _read_history(self, shard_log: ShardLog, session: ImapSession, *, slowly: bool) -> bool:
        """Windows of history until the next poll is due (True: another pass) or no more is to be read now (False).

        Whoever waits for a rate leaves its place among the accounts that read to others, and its memory.
        """
        slots = self._services.backfills
        backfill: Backfill | None = None
        has_slot = False
        self._reading_history = True
        try:
            while not self._stopping:
                turn = await self._history_turn(patient=not has_slot)
                if turn is None and has_slot:
                    slots.release()
                    has_slot = False
                    async with self._lock:
                        if self._state is not None:
                            self._give_back_memory(self._state)
                    continue
                if turn is None:
                    return not self._stopping
                read, mark = 0, session.traffic.bytes_received
                try:
                    if not has_slot:
                        has_slot = bool(await self._unless_due(slots.acquire(), lambda _: slots.release()))
                        if not has_slot:
                            return not self._stopping
                    async with self._holding(partial(self._load, shard_log)) as state:
                        if backfill is None or backfill.state is not state:
                            backfill = self._new_backfill(state)
                        before = backfill.read
                        more = await backfill.step(session)
                        read = backfill.read - before
                        self._seen(state)
                        self._unmark(state, "poll")
                        if not more:
                            self._enter(_phase_of(state))
                            self._publish_status(state)
                            await backfill.settle()
                            self._leave_quietly(state)
                            return False
                finally:
                    self._pay(turn, read, session.traffic.bytes_received - mark)
                if slowly or self._throttled(session):
                    return False
                await asyncio.sleep(0)
        finally:
            self._reading_history = False
            if has_slot:
                slots.release()
        return False

    def _new_backfill(self, state: AccountState) -> Backfill:
        account_pass = AccountPass(
            state, self._settings, self._services.observer, self._memory, wall=self._services.wall
        )
        return Backfill(state, self._settings, self._memory, account_pass, wall=self._services.wall)

    async def _history_turn(self, *, patient: bool) -> Turn | None:
        """Leave to read one window, of the account's rates and of the host's. None: a poll is due first, the runner
        stops, or (not `patient`) it has to be waited for.
        """
        while self._history_at > (now := self._services.clock()) and not self._stopping and now < self._due_at:
            if not patient:
                return None
            await _wait(self._poll_wake, min(self._history_at, self._due_at) - now)
        if self._stopping or self._services.clock() >= self._due_at:
            return None
        connector, host = self._services.connector, self._host()
        turn = connector.history_turn_now(host)
        if turn is None and patient:
            turn = await self._unless_due(
                connector.history_turn(host, timeout_s=2 * self._interval()), lambda turn: turn.settle(0, 0)
            )
        return turn

    async def _unless_due(self, waiting: Coroutine[Any, Any, _T], give_back: Callable[[_T], None]) -> _T | None:
        """What is waited for; None when a poll is due, or the runner stops, before it comes. `give_back` gets what came
        when nobody wanted it any more.
        """
        task = asyncio.ensure_future(waiting)
        taken = False
        try:
            while not task.done():
                left = self._due_at - self._services.clock()
                if self._stopping or left <= 0:
                    return None
                wake = asyncio.ensure_future(self._poll_wake.wait())
                try:
                    await asyncio.wait({task, wake}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    wake.cancel()
                if wake.done():
                    self._poll_wake.clear()
            taken = True
            return task.result()
        finally:
            if not taken:
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled() and task.exception() is None:
                    give_back(task.result())

    def _host(self) -> str:
        connection = self._link.connection
        return server_key(connection.host, connection.port) if connection is not None else ""

    def _wake_for_history(self, state: AccountState) -> None:
        """The watcher has found a folder whose history is to be read: that is the poller's work, and not due only with
        the next poll.
        """
        if not self._reading_history and _phase_of(state) == "syncing":
            self._due_at = min(self._due_at, self._services.clock())
            self._poll_wake.set()

    def _pay(self, turn: Turn, messages: int, received: int) -> None:
        """What a window cost: to the host's rates, and to the account's own, which say when its next may be read."""
        turn.settle(messages, received)
        own = Rates(self._settings.BACKFILL_MESSAGES_PER_S, self._settings.BACKFILL_BYTES_PER_S)
        self._history_at = max(self._history_at, self._services.clock()) + own.seconds(messages, received)

    async def _begin_work(self, shard_log: ShardLog, what: str) -> None:
        """Leave a mark that work has begun; found later, it says that the process did not live to take it away."""
        if what in self._begun:
            return
        self._begun.add(what)
        self._working.add(what)
        async with self._holding(partial(self._load, shard_log)) as state:
            if self._marked:
                return
            self._marked = True
            state.record.unfinished += 1
            state.record.unfinished_at = self._services.wall()
            state.touch()
            self._put_tier(state)
            await state.commit()
            self._leave_quietly(state)

    def _unmark(self, state: AccountState, *what: str) -> None:
        """This went well, or failed without harm to the process: the mark goes with the next write."""
        self._working.difference_update(what)
        if self._marked and not self._working:
            self._marked = False
            state.record.unfinished = 0
            state.touch()

    async def _tell(self, shard_log: ShardLog) -> None:
        """Publish the status now."""
        async with self._holding(partial(self._load, shard_log)) as state:
            self._publish_status(state)
            await state.commit()
            self._leave_quietly(state)

    async def _watch_forever(self, shard_log: ShardLog) -> None:
        failures = 0
        while not self._stopping:
            if self.tier != "hot":
                await _wait(self._watch_wake, None)
                continue
            if self._not_before > self._services.clock():
                await _wait(self._watch_wake, self._not_before - self._services.clock())
                continue
            if not self._ready.is_set():
                # the first pass tells whether there is an INBOX, and whether the account can be reached at all
                await self._ready.wait()
                continue
            started = time.monotonic()
            try:
                async with self._session("watch") as session:
                    self._watch_session = session
                    while True:
                        try:
                            await self._watch(shard_log, session)
                            break
                        except ProducerLost:
                            # the connection stays; what it told and was not committed is found by looking again
                            shard_log = await self._next_log()
                            session.take_changes()
                            await session.unselect()
            except MailstreamsError as error:
                if isinstance(error, ShardError | NotLive):
                    raise
                failures = 1 if time.monotonic() - started > STABLE_AFTER_S else failures + 1
                self._services.observer.reconnect(error.code)
                await self._pause(await self._failed(shard_log, error, failures=failures))
            else:
                failures = 0
            finally:
                self._watch_session = None

    async def _next_log(self) -> ShardLog:
        """The log was lost: drop what was in memory, wait for the shard's next one. Raises `ShardError` when there is
        none.
        """
        self._log_lost()
        return await self.shard.running()

    def _log_lost(self) -> None:
        """What was put and not committed is gone: what was told of tier and status is told again."""
        self._state = None
        self._published = ()
        self._tell_tier(TIER_TOLD_WITHIN_S)

    async def _watch(self, shard_log: ShardLog, session: ImapSession) -> None:
        """IDLE on INBOX. Nothing falls between: INBOX is looked at after it was opened, and what came meanwhile
        waits. After a failure the whole account is looked at first: over this connection, since a poll would be a
        second login when a host that came back has thousands to take.
        """
        await self._begin_work(shard_log, "watch")
        failed = self.failure is not None
        hints = Hints()
        while self._wants_watch():
            async with self._at_work(partial(self._load, shard_log)) as (state, account_pass):
                box = state.watched()
                if box is None or not box.record.selectable:
                    raise RetryLater("the server shows no INBOX", code="no_inbox")
                inbox = box.record.wire_name
                if failed:
                    failed, self._look_due, started = False, False, self._services.clock()
                    await account_pass.run(session, always=inbox)
                    await self._passed(state, account_pass, started)
                    if session.selected != inbox:
                        continue
                if not has_open(session, box):
                    await account_pass.visit(session, box)
                first = hints.due and self._settings.IMAP_NOTIFY and session.has("NOTIFY")
                if first:
                    # the STATUS of every folder comes first, so that nothing lies between a look and the watching
                    hints.answered(accepted=await session.notify())
                promoted, started = self._look_due, self._services.clock()
                look = promoted or hints.wait_s(time.monotonic()) == 0.0
                if session.pending_changes:
                    changes = session.take_changes()
                    if changes.throttled:
                        raise HostBusy("the server asks for less", code="throttled")
                    look = not await account_pass.take(session, box, changes) or look
                    modseqs = session.has("CONDSTORE") or session.has("QRESYNC")
                    hints.take(state, changes, modseqs=modseqs, first=first, wall=self._services.wall())
                    self._seen(state)
                if look:
                    result = await account_pass.run(session, always=inbox)
                    surprised = result.listing > 0 or bool(result.failed)
                    hints.looked(time.monotonic(), elsewhere=result.visited > 1, surprised=surprised)
                    if promoted:
                        self._look_due = False
                        await self._passed(state, account_pass, started)
                    self._seen(state)
                    self._wake_for_history(state)
                    if session.selected != inbox:
                        continue
                self._unmark(state, "watch")
            if session.selected != inbox or session.pending_changes:
                continue
            if self._phase_after() != self.phase:
                self._enter(self._phase_after())
            self._watch_wake.clear()
            if not self._wants_watch():
                return
            wait = hints.wait_s(time.monotonic())
            if wait == 0.0:
                continue
            if session.has("IDLE"):
                await session.idle(timeout_s=wait, wake=self._watch_wake)
            else:
                await _wait(self._watch_wake, NOOP_EVERY_S if wait is None else min(wait, NOOP_EVERY_S))
                await session.noop()

    async def _record_tiers(self, shard_log: ShardLog) -> None:
        """Write changes of tier and heat (row S15) that no other write has taken along in time."""
        while not self._stopping:
            within = self._tier_told_within
            await _wait(self._tier_event, None if within is None else self._until_told_together(within))
            if within is None or within != self._tier_told_within:
                continue  # new, more urgent, or told meanwhile
            try:
                async with self._holding(partial(self._load, shard_log)) as state:
                    self._put_tier(state)
                    await state.commit()
                    self._leave_quietly(state)
            except ProducerLost:
                self._tell_tier(within)
                shard_log = await self._next_log()

    def _until_told_together(self, period_s: float) -> float:
        """Seconds until all accounts of the shard tell what they have to tell every `period_s`: one transaction takes
        them all. Shards do so at different times.
        """
        clock = self._services.clock() + period_s * self.shard.partition / self._settings.PARTITIONS
        return period_s - clock % period_s

    def _put_tier(self, state: AccountState) -> None:
        """What is to be told of tier and heat: the record for the next owner, the event, and the status."""
        if self._tier_told_within is None:
            return
        self._tier_told_within = None
        record = state.record
        previous = record.tier
        record.tier, record.tier_reason = self.tier, self.tier_reason
        state.touch()
        if self._tier_moved or previous != self.tier:  # it may have gone and come back for another reason
            self._tier_moved = False
            state.publish(
                topics.TIER_CHANGED,
                AccountTierChanged(
                    account_id=self.account_id,
                    tier=self.tier,
                    previous=_tier(previous),
                    reason=self.tier_reason,
                    at=state.now(),
                ),
                record_type="account.tier_changed",
            )
        self._publish_status(state)

    # --- for commands ------------------------------------------------------------------------------------------------
    async def perform(
        self, purpose: str, work: Callable[[ImapSession, AccountState, AccountPass], Awaitable[_T]]
    ) -> _T:
        """Do something with a connection of its own, under the account's lock. Raises what the work raises."""
        shard_log = await self.shard.running()
        async with (
            self._session(purpose) as session,
            self._at_work(partial(self._load_for_command, shard_log)) as (state, account_pass),
        ):
            return await work(session, state, account_pass)

    async def read_history(self, mailbox_ids: frozenset[str], report: Callable[[AccountState, int], None]) -> int:
        """Read the history of some mailboxes to its end, window by window; returns the messages added."""
        shard_log = await self.shard.running()
        backfill: Backfill | None = None
        added = 0
        async with self._session("command") as session:
            while not self._stopping:
                if (left := self._history_at - self._services.clock()) > 0:
                    await asyncio.sleep(min(left, 1.0))
                    continue
                turn = await self._services.connector.history_turn(self._host())
                read, mark = 0, session.traffic.bytes_received
                try:
                    async with self._holding(partial(self._load_for_command, shard_log)) as state:
                        if backfill is None or backfill.state is not state:
                            backfill = self._new_backfill(state)
                        emitted, before = state.emitted["message.added"], backfill.read
                        more = await backfill.step(session, only=mailbox_ids)
                        read = backfill.read - before
                        added += state.emitted["message.added"] - emitted
                        report(state, backfill.read)
                        if not more:
                            await backfill.settle()
                            self._leave_quietly(state)
                            return added
                finally:
                    self._pay(turn, read, session.traffic.bytes_received - mark)
                await asyncio.sleep(0)
        raise RetryLater("the runner stops", code="stopping")

    # --- the state ---------------------------------------------------------------------------------------------------
    def _load(self, shard_log: ShardLog) -> AccountState:
        """The account's state; read from the mirror when it is not in memory. The caller holds the lock."""
        if self._state is None or self._state.log is not shard_log or self._state.ended:
            self._state = AccountState(self.account_id, shard_log, _now, self._settings.topic)
            self._states.add(self._state)
        return self._state

    def _load_for_command(self, shard_log: ShardLog) -> AccountState:
        """The same, unless the runner has stopped while the command waited: what is loaded then is not ended by
        anybody. Raises `RetryLater`.
        """
        if self._stopping:
            raise RetryLater("the runner stops", code="stopping")
        return self._load(shard_log)

    @asynccontextmanager
    async def _holding(self, load: Callable[[], AccountState]) -> AsyncIterator[AccountState]:
        """The state, under the account's lock.

        Who fails in a way that nothing foresees may have made one half of a change (a UID known, its identity and its
        event missing). Then nothing that is in memory is written any more, by nobody.
        """
        async with self._lock:
            state = load()
            try:
                yield state
            except BaseException as error:
                if not _leaves_whole(error):
                    state.end()
                raise

    @asynccontextmanager
    async def _at_work(self, load: Callable[[], AccountState]) -> AsyncIterator[tuple[AccountState, AccountPass]]:
        """The state under the account's lock, and a pass. In the end what is pending is written, also after a failure
        that was foreseen, and the memory given back.
        """
        async with self._lock:
            state = load()
            account_pass = AccountPass(
                state, self._settings, self._services.observer, self._memory, wall=self._services.wall
            )
            try:
                try:
                    yield state, account_pass
                except BaseException as error:
                    if not _leaves_whole(error):
                        state.end()
                    if not state.ended:
                        await account_pass.reader.settle()
                    raise
                await account_pass.reader.settle()  # raises when the state was ended: what was done is not written
            finally:
                self._leave_quietly(state)

    def _leave_quietly(self, state: AccountState) -> None:
        if not state.ended:
            self._seen(state)
        if state.ended or state.pending or self.tier != "hot":
            self._state = None
        else:
            self._give_back_memory(state)

    def _give_back_memory(self, state: AccountState) -> None:
        """Drop what can be read again. The caller holds the lock."""
        if state.pending:
            return
        for box in state.mailboxes.values():
            box.release()

    def _seen(self, state: AccountState) -> None:
        """Take over what others want to know of the state."""
        self.mailboxes, self.messages = len(state.mailboxes), state.total_messages()
        newest = state.record.newest_mail_at
        # until some history was read, no date does not mean no mail
        self.mail_known = state.record.caught_up and (newest is not None or _phase_of(state) == "running")
        if newest is not None and newest != self.newest_mail_at:
            self.newest_mail_at = newest
            self._services.on_mail(self)

    async def _passed(self, state: AccountState, account_pass: AccountPass, started: float) -> None:
        """A pass went well: what follows from it."""
        record = state.record
        self.failure, self.retry_at, self._credential_refusals = None, None, 0
        self.last_sync_at = self._services.wall()
        record.last_poll_at = self.last_sync_at - (self._services.clock() - started)
        state.touch()
        if not record.caught_up and all(
            box.record.visited or box.record.aside is not None or not box.synced for box in state.mailboxes.values()
        ):
            record.caught_up = True
            state.emit(events.AccountCaughtUp, mailboxes=len(state.mailboxes), messages=state.total_messages())
        self._enter(_phase_of(state))
        self._due_at = started + jittered(self._interval(), random=random.random())
        self._put_tier(state)
        self._publish_status(state)
        await account_pass.reader.settle()

    def _publish_status(self, state: AccountState) -> None:
        """`account.sync_status`, when something about it changed."""
        now = self._services.wall()
        failure = self.failure
        aside = _set_aside(state)
        told = (
            self.phase,
            self.tier,
            self.tier_reason,
            self.heat_until,
            failure and (failure.code, failure.message),
            aside,
            len(state.mailboxes),
            state.total_messages(),
        )
        if told == self._published and self._services.clock() - self._published_at < STATUS_EVERY_S:
            return
        self._published, self._published_at = told, self._services.clock()
        error = None
        if failure is not None:
            error = SyncError(code=failure.code, message=failure.message, at=_at(failure.at))
        elif aside:
            name, reason = next(iter(aside.items()))
            code, _, text = reason.partition(": ")
            error = SyncError(code=code, message=text, at=_at(now), mailbox=name)
        last_sync_at = self.last_sync_at if self.last_sync_at is not None else state.record.last_poll_at
        left = sum(1 for b in state.mailboxes.values() if b.synced and not b.record.backfill_done)
        state.publish(
            topics.SYNC_STATUS,
            AccountSyncStatus(
                account_id=self.account_id,
                phase=self.phase,
                since=_at(self.since),
                at=_at(now),
                tier=self.tier,
                worker=self._services.worker,
                partition=self.shard.partition,
                error=error,
                retry_at=None if self.retry_at is None else _at(self.retry_at),
                mailboxes=len(state.mailboxes),
                messages=state.total_messages(),
                backfill_remaining=left,
                last_sync_at=None if last_sync_at is None else _at(last_sync_at),
                next_poll_at=_at(self.next_poll_at) if self._due_at > 0 else None,
                newest_mail_at=None if self.newest_mail_at is None else _at(self.newest_mail_at),
                tier_reason=self.tier_reason,
                heat_until=self.heat_until,
                set_aside=aside,
            ),
            record_type="account.sync_status",
        )

    # --- failures ----------------------------------------------------------------------------------------------------
    def _fail(self, code: str, message: str) -> float:
        """Remember a failure; returns the seconds to wait."""
        count = 1 if self.failure is None else self.failure.count + 1
        self.failure = Failure(code, message[:300], self._services.wall(), count)
        settings = self._settings
        return full_jitter(
            count, minimum_s=settings.BACKOFF_MIN_S, maximum_s=settings.BACKOFF_MAX_S, random=random.random()
        )

    async def _failed(self, shard_log: ShardLog, error: MailstreamsError, *, failures: int | None = None) -> float:
        """Classify a failure, tell the status, return the seconds to wait. Ends the account when it is refused for
        good.
        """
        settings = self._settings
        wait = self._fail(error.code, str(error))
        if failures is not None:
            wait = full_jitter(
                failures, minimum_s=settings.BACKOFF_MIN_S, maximum_s=settings.BACKOFF_MAX_S, random=random.random()
            )
        if isinstance(error, CredentialsRefused):
            self._credential_refusals += 1
            wait = min(settings.BACKOFF_MAX_S, 60.0) * self._credential_refusals * (0.75 + 0.5 * random.random())
        elif isinstance(error, AccountError):
            wait = settings.BACKOFF_MAX_S * (0.75 + 0.5 * random.random())
        elif error.retry_after_s is not None:
            wait = max(wait, error.retry_after_s * (1.0 + 0.2 * random.random()))
        self.retry_at = self._services.wall() + wait
        self._enter("backing_off")
        log.info("account %s: %s (%s); again in %.0f s", self.account_id, error, error.code, wait)
        async with self._lock:
            state = self._load(shard_log)
            if self._credential_refusals >= settings.CREDENTIALS_RETRIES:
                await self._give_up(state, error)
            self._begun.clear()
            self._unmark(state, *self._working)
            self._publish_status(state)
            await state.commit()
            self._leave_quietly(state)
        if self.dead is not None:
            raise NotLive(self.dead)
        return wait

    async def _give_up(self, state: AccountState, error: MailstreamsError) -> None:
        """Credentials refused for good: `error` in PostgreSQL unless the account changed meanwhile, then the event
        (S9).
        """
        connection = self._link.connection
        if connection is None:
            return
        reason = f"{error.code}: {error}"[:300]
        try:
            version = await self._services.connector.store.set_state(
                self.account_id, "error", reason, if_version=connection.version
            )
        except RetryLater as unavailable:
            log.warning("account %s: its state could not be stored: %s", self.account_id, unavailable)
            return
        if version is None:
            self._link.forget()
            self._credential_refusals = 0
            return
        state.publish(
            topics.STATE_CHANGED,
            AccountStateChanged(
                account_id=self.account_id,
                user_id=connection.user_id,
                state="error",
                version=version,
                reason=reason,
                at=state.now(),
            ),
            record_type="account.state_changed",
        )
        self.dead = reason
        self._enter("stopped")

    def _wants_watch(self) -> bool:
        return self.tier == "hot" and not self._stopping

    def _phase_after(self) -> Phase:
        if self.failure is not None:
            return self.phase
        return self.phase if self.phase in ("running", "syncing") else "running"

    def _enter(self, phase: Phase) -> None:
        if phase != self.phase:
            self.phase, self.since = phase, self._services.wall()

    def _interval(self) -> float:
        return self._settings.POLL_COLD if self.tier == "cold" else self._settings.POLL_WARM

    async def _pause(self, seconds: float) -> None:
        """Wait out a backoff; a poke or a stop ends it."""
        if not self._stopping:
            await _wait(self._watch_wake, seconds)

    @asynccontextmanager
    async def _session(self, purpose: str) -> AsyncIterator[ImapSession]:
        """A session for as long as it is used; closed with LOGOUT, or dropped when its work was cancelled."""
        session = await self._services.connector.open(self._link)
        host = self._host()
        reason = purpose
        try:
            yield session
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        except MailstreamsError as error:
            reason = error.code
            if isinstance(error, HostBusy):
                self._services.connector.slow_down(host, error.retry_after_s)
            raise
        finally:
            await self._services.connector.close(session, reason=reason)


_E = TypeVar("_E", bound=Exception)
_T = TypeVar("_T")


def _first(group: BaseExceptionGroup[BaseException], kind: type[_E]) -> _E | None:
    """First exception of a kind, however deep."""
    for error in group.exceptions:
        if isinstance(error, kind):
            return error
        if isinstance(error, BaseExceptionGroup):
            found = _first(error, kind)
            if found is not None:
                return found
    return None


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event or the time; the event is clear afterwards."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    finally:
        event.clear()


def _phase_of(state: AccountState) -> Phase:
    """`running` once the history of every mailbox that can be read is in the log."""
    boxes = state.mailboxes.values()
    done = all(box.record.backfill_done or not box.synced or box.record.aside for box in boxes)
    return "running" if done else "syncing"


def _leaves_whole(error: BaseException) -> bool:
    """Whether a state is as good as the mirror after this failure: it was foreseen, between two changes and not in the
    middle of one.
    """
    foreseen = isinstance(error, MailstreamsError) and not isinstance(error, ShardError)
    return foreseen or isinstance(error, asyncio.CancelledError)


def _set_aside(state: AccountState) -> dict[str, str]:
    """Folders that are not followed for now, and why; the first by name where there are many."""
    found = sorted((b.record.name, b.record.aside) for b in state.mailboxes.values() if b.record.aside)
    return dict(found[:SET_ASIDE_LIMIT])


def _tier(name: str | None) -> Tier | None:
    return name if name in ("hot", "warm", "cold") else None  # type: ignore[return-value]


def _now() -> datetime:
    return datetime.now(UTC)


def _at(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)
