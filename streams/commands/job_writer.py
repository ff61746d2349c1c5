"""The transactional writer of one partition of `sync.jobs`: entries in, transactions out.

Fenced like a shard: *fence* (initialise the transactional id `jobs-p`, which ends every older holder and its open
transaction), then *prove* that we are a member of the group's current generation, then *restore* what is known from
`sync.jobs.state`. Invariants:

* one transaction at a time, entries in order, several to a transaction; committed only after every send succeeded;
* each transaction says in the state topic which run wrote it and how many entries that run has written. So after any
  error, which may or may not have been a commit, fencing and reading again tells exactly which entries are in, and only
  the others are written again;
* when someone else has written in between, the lane is lost: what this process believes may be out of date.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition, errors
from aiokafka.errors import KafkaError

from streams.commands.job_batches import Batches, raise_first, seen
from streams.commands.job_state import CommandMemory, encode_state, encode_writer
from streams.commands.kafka_reading import close_within, read_to_end
from streams.commands.ports import CommandState, Entry
from streams.contracts import topics
from streams.errors import ProducerLost, ShardError
from streams.observer import NoopObserver, RuntimeObserver
from streams.settings import Settings

log = structlog.get_logger(__name__)

MAX_ENTRIES: Final = 500
MAX_BYTES: Final = 4 * 1024 * 1024
BATCH_BYTES: Final = topics.MAX_RECORD_BYTES
EXPIRE_AT_ONCE: Final = 200
COMMIT_LIMIT_S: Final = 30.0
"""Longest that one transaction may take; it is more than the broker's own limit, which then has aborted it."""
FULL: Final = 400
"""Entries that are worth a transaction of their own at once."""
RETRY_MIN_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
CLOSE_LIMIT_S: Final = 1.0

RECORD_REFUSALS: Final = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTopicError,
    errors.TopicAuthorizationFailedError,
)
"""Errors of a topic which trying again does not cure: the entry whose record it is is found, and replaced by what it
says is to be written otherwise."""
REFUSALS: Final = (
    *RECORD_REFUSALS,
    errors.GroupAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)
"""Errors which nothing cures, where nothing can be replaced. The lane is given up, so that the attempts of its commands
are counted."""

Prove = Callable[[], Awaitable[int]]
"""Commits an offset as a member of the current generation and returns it: the position that the group has for the
partition. Raises `MembershipLost` when the partition is not ours any more."""


class Pace:
    """How often the partitions of one process write, when they have something to write all the time.

    A transaction costs this process some 2 ms and the broker more, whatever is in it, so all partitions that have
    something to write begin at most `PER_S` a second together; one that has not written for a while writes at once.
    And the more there is to write, the longer it is gathered: commands are late then by what waits before them, not by
    their transaction.
    """

    PER_S: Final = 150.0
    ENTRY_S: Final = 0.001
    MIN_S: Final = 0.02
    MAX_S: Final = 0.25

    def __init__(self) -> None:
        self._writing = 0

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """While a partition has something to write."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1

    def pause_s(self, last_s: float, entries: int) -> float:
        """How long a partition gathers after a transaction of `entries` that took `last_s`: at least as long as it
        took, so that what a slow broker or a busy process costs is shared by more entries."""
        return min(self.MAX_S, max(self.MIN_S, self._writing / self.PER_S, last_s, entries * self.ENTRY_S))


@dataclass(slots=True, eq=False)
class _Queued:
    entry: Entry
    future: asyncio.Future[None]
    number: int


class JobWriter:
    """Writes for one partition. `open`, then `submit` as much as you like, then `close`."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        group: str,
        prove: Prove,
        *,
        observer: RuntimeObserver | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._settings = settings
        self._pace = pace or Pace()
        self._began_at = self._ended_at = 0.0  # of the last transaction
        self._entries = 0  # in the last transaction
        self._partition = partition
        self._group = group
        self._prove = prove
        self._observer: RuntimeObserver = observer or NoopObserver()
        self._loop = asyncio.get_running_loop()
        self._run = uuid.uuid4().hex
        self._queue: deque[_Queued] = deque()
        self._numbers = 0
        self._committed = 0  # entries of this run that are in the log
        self._alone = 0  # entries up to this one have a transaction each: a record of theirs was refused
        self._loose_apart = False  # from the first refusal on
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._producer: AIOKafkaProducer | None = None
        self._read_to: int | None = None
        self._opened_after: str | None = None  # the run that had written last when we opened
        self._lost: ShardError | None = None
        self.position = 0
        self.memory = CommandMemory(settings.COMMANDS_REMEMBERED)

    # --- from outside ----------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Fence, prove, restore. Raises `ShardError`; on any error nothing is left open."""
        try:
            await self._fence()
            self.position = await self._prove()
            await self._read_state()
        except (KafkaError, TimeoutError, OSError) as error:
            await self._drop_producer()
            raise ProducerLost(f"the partition could not be opened: {type(error).__name__}") from error
        except BaseException:
            await self._drop_producer()
            raise
        self._task = asyncio.create_task(self._write(), name=f"jobs-{self._partition}")

    def submit(self, entry: Entry) -> asyncio.Future[None]:
        """Queue an entry; its future is done when it is committed, or fails with a `ShardError`."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        self._numbers += 1
        self._queue.append(_Queued(entry, future, self._numbers))
        self._wake.set()
        return future

    async def close(self) -> None:
        """Stop. What is not committed fails; an open transaction is left to the next fence or the broker's limit."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_LIMIT_S)
        self._fail(ProducerLost("the lane was closed"))
        await self._drop_producer()

    # --- writing ---------------------------------------------------------------------------------------------------
    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                with self._pace.writing():
                    while self._queue:
                        await self._gather()
                        await self._write_some()
        except asyncio.CancelledError:
            raise
        except ShardError as error:
            self._fail(error)
        except Exception as error:  # a fault of ours: the lane ends visibly instead of standing still
            log.error("the writer of a partition failed", partition=self._partition, exc_info=error)
            self._fail(ProducerLost(f"the writer failed: {type(error).__name__}"))

    async def _gather(self) -> None:
        """Wait for more entries, when there was a transaction a moment ago."""
        until = self._ended_at + self._pace.pause_s(self._ended_at - self._began_at, self._entries)
        while len(self._queue) < FULL and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, Pace.MIN_S))

    async def _write_some(self) -> None:
        batch = self._next_batch()
        self._began_at = began = time.monotonic()
        try:
            async with asyncio.timeout(COMMIT_LIMIT_S):
                count = await self._transact(batch)
        except RECORD_REFUSALS as error:
            await self._refused(batch, error)
            return
        except REFUSALS as error:
            raise ProducerLost(f"Kafka refuses what is to be written: {type(error).__name__}") from error
        except (KafkaError, TimeoutError, OSError, AssertionError, errors.IllegalOperation) as error:
            # The last two are what aiokafka raises in the middle of a transaction that has failed meanwhile.
            self._observer.transaction("failed", time.monotonic() - began, 0)
            log.warning("a transaction failed", partition=self._partition, error=type(error).__name__)
            await self._start_over()
            return
        self._ended_at, self._entries = time.monotonic(), len(batch)
        self._observer.transaction("committed", self._ended_at - began, count)
        self._committed = batch[-1].number
        self._settle()

    async def _refused(self, batch: list[_Queued], error: KafkaError) -> None:
        """Kafka refuses a record: write the entries one by one, until it is the only one's; replace that one.

        Raises `ProducerLost` when nothing is to be written in its place.
        """
        reason = type(error).__name__
        if self._loose_apart and len(batch) == 1:
            refused = batch[0]
            if refused.entry.otherwise is None:
                raise ProducerLost(f"Kafka refuses what is to be written: {reason}") from error
            log.error("Kafka refuses what a handler emits", partition=self._partition, error=reason)
            refused.entry = refused.entry.otherwise(reason)
        self._alone, self._loose_apart = max(self._alone, batch[-1].number), True
        await self._start_over()

    def _next_batch(self) -> list[_Queued]:
        batch: list[_Queued] = []
        size = 0
        for queued in self._queue:
            for record in queued.entry.records:
                size += len(record.value or b"") + len(record.key or b"") + 200
            if batch and (len(batch) >= MAX_ENTRIES or size > MAX_BYTES or batch[0].number <= self._alone):
                break
            batch.append(queued)
        return batch

    async def _transact(self, batch: list[_Queued]) -> int:
        producer = self._producer
        if producer is None:
            raise ProducerLost("there is no producer")
        batches = Batches(producer, self._settings, self._partition, loose_apart=self._loose_apart)
        states: dict[tuple[str, str], CommandState] = {}
        position: int | None = None
        for queued in batch:
            for record in queued.entry.records:
                batches.add(record)
            if (state := queued.entry.state) is not None:
                states[state.account_id, state.command_id] = state
            if queued.entry.position is not None:
                position = queued.entry.position
        for state in states.values():  # of several states of one command the last one is enough
            batches.add_state(*encode_state(state), b"concluded" if state.concluded else b"begun")
        expired = self.memory.expire(datetime.now(UTC), max(self.position, position or 0), EXPIRE_AT_ONCE)
        for key in expired:
            batches.add_state(key, None, b"forgotten")
        batches.add_state(*encode_writer(self._run, batch[-1].number, self._settings.WORKER_NAME), b"writer")
        await producer.begin_transaction()
        parts = [batches.send()]
        if position is not None:
            tp = TopicPartition(self._settings.topic(topics.JOBS), self._partition)
            parts.append(producer.send_offsets_to_transaction({tp: position}, self._group))
        # Side by side, since each takes a turn or two to the broker; and all of them over before the commit.
        raise_first(await asyncio.gather(*parts, return_exceptions=True))
        await producer.commit_transaction()
        return batches.count

    def _settle(self) -> None:
        """Tell about every entry that is in the log."""
        while self._queue and self._queue[0].number <= self._committed:
            queued = self._queue.popleft()
            if queued.entry.state is not None:
                self.memory.put(queued.entry.state)
            if queued.entry.position is not None:
                self.position = queued.entry.position
            if not queued.future.done():
                queued.future.set_result(None)

    def _fail(self, error: ShardError) -> None:
        self._lost = self._lost or error
        while self._queue:
            future = self._queue.popleft().future
            if not future.done():
                future.set_exception(error)

    # --- fencing, reading ------------------------------------------------------------------------------------------
    async def _start_over(self) -> None:
        """After an error: fence again, prove again, and learn from the log what of ours is in it. Ends only when that
        worked, or with a `ShardError` when the partition is not ours."""
        wait_s = RETRY_MIN_S
        while True:
            await self._drop_producer()
            try:
                await self._fence()
                await self._prove()
                await self._read_state()
                break
            except (KafkaError, TimeoutError, OSError) as error:
                log.warning("cannot fence again", partition=self._partition, error=type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(RETRY_MAX_S, wait_s * 2)
        writer = self.memory.writer
        if self._committed and (writer is None or writer.run != self._run):
            raise ProducerLost("another process wrote to the partition")
        if writer is not None and writer.run == self._run:
            self._committed = writer.entries
        elif self._foreign_since_open():
            raise ProducerLost("another process wrote to the partition")
        self._settle()
        log.info("fenced again", partition=self._partition, committed=self._committed, waiting=len(self._queue))

    def _foreign_since_open(self) -> bool:
        writer = self.memory.writer
        return writer is not None and writer.run != self._opened_after

    async def _fence(self) -> None:
        self._observer.fenced("open" if self._read_to is None else "again")
        settings = self._settings
        producer = AIOKafkaProducer(
            **settings.kafka_client(),
            transactional_id=settings.transactional_id("jobs", self._partition),
            transaction_timeout_ms=int(settings.KAFKA_TRANSACTION_TIMEOUT_S * 1000),
            compression_type="zstd",  # events are much alike; to send them as they are takes longer
            max_batch_size=BATCH_BYTES,
            max_request_size=BATCH_BYTES * 2,
            enable_idempotence=True,
            acks="all",
        )
        self._producer = producer
        async with asyncio.timeout(COMMIT_LIMIT_S):
            await producer.start()
            # The id is initialised lazily; an empty transaction makes it happen now, and costs no round trip.
            await producer.begin_transaction()
            await producer.abort_transaction()

    async def _read_state(self) -> None:
        first = self._read_to is None

        def take(record: ConsumerRecord) -> None:
            self.memory.load(record.key, record.value)

        self._read_to = await read_to_end(
            self._settings.kafka_client(),
            self._settings.topic(topics.JOB_STATE),
            self._partition,
            take,
            start=self._read_to,
        )
        if first:
            self._opened_after = self.memory.writer.run if self.memory.writer is not None else None

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_within(producer.stop(), CLOSE_LIMIT_S)
            _see_waiters(producer)


def _see_waiters(producer: AIOKafkaProducer) -> None:
    """Look at what aiokafka leaves behind in a fenced producer; else asyncio logs an error for each batch."""
    begun = producer._txn_manager._transaction_waiter
    waiters = [] if begun is None else [begun]  # none in a producer that did not come as far as a transaction
    waiters += [batch._drain_waiter for batches in producer._message_accumulator._batches.values() for batch in batches]
    for waiter in waiters:
        if waiter.done():
            seen(waiter)
