"""Runs the projection: Kafka's group spreads the partitions over the workers, PostgreSQL says where each goes on.

Per partition (a *lane*)::

    OPENING ──position read, topic is the same, log still has it──▶ READY ──written──▶ READY
       ▲                                                              │
       ├── PostgreSQL away, or the row had moved: read it again ──────┤
       └── after a while ── FAILED ◀── malformed event, gap, ─────────┘
                                        another topic, log gone

Invariants: positions live in PostgreSQL with the rows; what is committed to Kafka is for people who look at the lag. A
lane that fails stops alone, loudly, and tries again; PostgreSQL being away holds all lanes where they are, and nothing
is skipped or dead-lettered for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar
from uuid import UUID

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from streams.contracts import topics
from streams.errors import MailstreamsError, ServiceUnavailable
from streams.observer import NoopObserver, RuntimeObserver
from streams.projection.batch import LogStartGone, Outcome, Position, Slice, Source, WrongTopic
from streams.projection.migrations import migrate
from streams.projection.reading import PROJECTED, Reader
from streams.projection.tables import Tables, open_projection_pool
from streams.projection.topic_ids import topic_facts
from streams.runtime.clients import cancelled_from_elsewhere, start_with_brokers
from streams.settings import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_MS: Final = 500
FAILED_RETRY_S: Final = 30.0
"""A failed lane is tried this often: what made it fail may have been repaired."""
BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 10.0
COMMIT_EVERY_S: Final = 5.0
KAFKA_CALL_S: Final = 15.0
REJOIN_MS: Final = 30_000
"""A rebalance waits this long for a member; its own default would be the poll interval, a day."""
LAG_EVERY_S: Final = 5.0
FETCHED_AT_ONCE: Final = 250
"""Records that aiokafka may unpack between two turns of the event loop: about 3 ms."""
FETCH_BYTES: Final = 8 << 20


class LaneState(Enum):
    """Where a partition is."""

    OPENING = "opening"
    READY = "ready"
    FAILED = "failed"


@dataclass(slots=True)
class _Lane:
    source: Source
    partition: TopicPartition
    state: LaneState = LaneState.OPENING
    position: Position | None = None
    error: MailstreamsError | None = None
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ProjectorHealth:
    """What probes and `status` show. `waiting` says what all lanes wait for, if anything."""

    running: bool
    waiting: str | None
    lanes: int
    ready: int
    failed: dict[str, str] = field(default_factory=dict)
    lag: dict[int, int] = field(default_factory=dict)
    events: int = 0
    repeats: int = 0
    odd: int = 0
    stubs: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    last_write_age_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing needs a person."""
        return self.running and not self.failed


class Projector:
    """The projection of this process's share of the log. `start` returns at once; everything else is its own task."""

    def __init__(self, settings: Settings, observer: RuntimeObserver | None = None) -> None:
        self._settings = settings
        self._observer = observer or NoopObserver()
        self._prefix = settings.KAFKA_TOPIC_PREFIX
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._assigned = asyncio.Event()
        self._reader = Reader(self._on_ignored)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._waiting: str | None = "start"
        self._totals = Outcome()
        self._ignored: Counter[str] = Counter()
        self._lag: dict[int, int] = {}
        self._last_write: float | None = None
        self._tables: Tables | None = None
        self._consumer: Any = None
        self._committed_at = 0.0
        self._lag_at = 0.0
        self._away_wait_s = BACKOFF_MIN_S

    # --- life ------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start projecting. Neither Kafka nor PostgreSQL need to be there yet."""
        if self._task is not None:
            raise RuntimeError("the projector was started already")
        self._stopping.clear()
        self._task = asyncio.create_task(self._run(), name="projector")

    async def stop(self, deadline: float = 10.0) -> None:
        """Finish the batch at hand and leave the group, in `deadline` seconds at most. Harmless when not running."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping.set()
        done, _ = await asyncio.wait([task], timeout=deadline)
        if not done:
            task.cancel()
            await asyncio.wait([task], timeout=2.0)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("projector ended with an error", extra={"action": "projector_failed", "error": repr(error)})

    def health(self) -> ProjectorHealth:
        """How it goes, right now."""
        lanes = list(self._lanes.values())
        return ProjectorHealth(
            running=self._task is not None and not self._task.done(),
            waiting=self._waiting,
            lanes=len(lanes),
            ready=sum(lane.state is LaneState.READY for lane in lanes),
            failed={
                f"{lane.source.topic}-{lane.source.partition}": f"{lane.error.code}: {lane.error}"
                for lane in lanes
                if lane.state is LaneState.FAILED and lane.error is not None
            },
            lag=dict(self._lag),
            events=self._totals.events,
            repeats=self._totals.repeats,
            odd=self._totals.odd,
            stubs=self._totals.stubs,
            ignored=dict(self._ignored),
            last_write_age_s=None if self._last_write is None else time.monotonic() - self._last_write,
        )

    async def _run(self) -> None:
        pool: Any = None
        try:
            dsn = self._settings.POSTGRES_DSN.get_secret_value()
            pool = await open_projection_pool(dsn, 2)
            self._tables = Tables(pool)
            await self._until_it_works("PostgreSQL", lambda: self._or_stop(migrate(dsn)))
            while not self._stopping.is_set():
                await self._until_it_works("Kafka", self._consume)
        finally:
            if pool is not None:
                pool.terminate()

    async def _until_it_works(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Repeat `step` with backoff until it returns, or until we are stopped."""
        wait_s = BACKOFF_MIN_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await step()
            except _Stopped:
                return
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and not cancelled_from_elsewhere(error):
                    raise
                # A wrong setting waits too: inside a worker the start-up checks have the say, and they exit with 2.
                expected = isinstance(error, (MailstreamsError, KafkaError, OSError))
                self._waiting = f"{what}: {_plain(error)}"
                log.log(
                    logging.WARNING if expected else logging.ERROR,
                    "projector waits",
                    extra={"action": "projector_waits", "what": what, "error": _plain(error)},
                    exc_info=None if expected else error,
                )
                if time.monotonic() - began > BACKOFF_MAX_S:
                    wait_s = BACKOFF_MIN_S
                await self._pause(wait_s)
                wait_s = min(wait_s * 2, BACKOFF_MAX_S)
            else:
                return

    async def _or_stop(self, step: Coroutine[Any, Any, T]) -> T:
        """Await `step`; a stop cancels it at once and raises `_Stopped`."""
        work = asyncio.ensure_future(step)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([work, stop], timeout=KAFKA_CALL_S, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            work.cancel()
            await asyncio.wait([work], timeout=1.0)
            if self._stopping.is_set():
                raise _Stopped
            raise ServiceUnavailable(f"no answer within {KAFKA_CALL_S:g} s")
        finally:
            work.cancel()
            stop.cancel()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    # --- one consumer's life ---------------------------------------------------------------------------------------
    async def _consume(self) -> None:
        settings = self._settings
        consumer = AIOKafkaConsumer(
            **settings.kafka_client(),
            group_id=f"{settings.KAFKA_TOPIC_PREFIX}{settings.KAFKA_GROUP}.projection",
            client_id=f"{settings.WORKER_NAME}-projection",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=int(settings.KAFKA_SESSION_TIMEOUT_S * 1000),
            heartbeat_interval_ms=int(settings.KAFKA_SESSION_TIMEOUT_S * 1000 / 3),
            max_poll_interval_ms=24 * 3600 * 1000,  # the loop below polls; PostgreSQL may be away for hours
            rebalance_timeout_ms=REJOIN_MS,
            fetch_max_bytes=FETCH_BYTES,
        )
        self._lanes.clear()
        self._assigned.clear()
        self._consumer = consumer
        try:
            await self._or_stop(start_with_brokers(consumer))
            facts = await self._or_stop(topic_facts(consumer, [settings.topic(name) for name in PROJECTED]))
            consumer.subscribe([settings.topic(name) for name in PROJECTED], listener=_Listener(self))
            self._waiting = None
            await self._loop(consumer, {name: found.topic_id for name, found in facts.items()})
        finally:
            self._lanes.clear()
            self._consumer = None
            await _quietly(consumer.stop())

    async def _loop(self, consumer: Any, ids: dict[str, UUID]) -> None:
        while not self._stopping.is_set():
            await self._open_lanes(consumer, ids)
            ready = [lane for lane in self._lanes.values() if lane.state is LaneState.READY]
            if not ready:
                await self._idle()
                continue
            records = await self._fetch(consumer, ready)
            if records:
                await self._project(records)
            await self._tell(consumer)

    async def _idle(self) -> None:
        """No lane can go on: wait for an assignment, for the time of the next attempt, or for the stop."""
        self._assigned.clear()
        waits = [asyncio.ensure_future(self._assigned.wait()), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(waits, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _fetch(self, consumer: Any, ready: Sequence[_Lane]) -> dict[TopicPartition, list[Any]]:
        # Naming partitions costs aiokafka a search for each that has records; without names it gives what it has.
        partitions = [] if len(ready) == len(self._lanes) else [lane.partition for lane in ready]
        found: dict[TopicPartition, list[Any]] = {}
        count, timeout_ms = 0, POLL_MS
        try:
            while count < self._settings.PROJECTION_BATCH:
                part = await consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=FETCHED_AT_ONCE)
                if not part:
                    break
                for partition, records in part.items():
                    found.setdefault(partition, []).extend(records)
                    count += len(records)
                timeout_ms = 0
                await asyncio.sleep(0)
        except OffsetOutOfRangeError as error:
            for partition in error.args[0]:
                self._fail(partition, LogStartGone("the log does not reach back to our position"))
        except NoOffsetForPartitionError:
            pass  # asked before we had sought; the lane says where to go
        return found

    # --- lanes -----------------------------------------------------------------------------------------------------
    def _on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self._lanes = {
            partition: _Lane(Source(partition.topic.removeprefix(self._prefix), partition.partition), partition)
            for partition in partitions
        }
        self._lag = {}
        self._assigned.set()

    def _on_revoked(self) -> None:
        self._lanes = {}

    async def _open_lanes(self, consumer: Any, ids: dict[str, UUID]) -> None:
        now = time.monotonic()
        opening = [
            lane
            for lane in self._lanes.values()
            if lane.state is LaneState.OPENING or (lane.state is LaneState.FAILED and now >= lane.retry_at)
        ]
        if not opening:
            return
        assert self._tables is not None
        try:
            stored = {name: await self._tables.positions(name) for name in {lane.source.topic for lane in opening}}
        except ServiceUnavailable as error:
            await self._postgres_away(error)
            return
        partitions = [lane.partition for lane in opening]
        begins = await self._or_stop(consumer.beginning_offsets(partitions))
        ends = await self._or_stop(consumer.end_offsets(partitions))
        for lane in opening:
            if self._lanes.get(lane.partition) is not lane:
                continue  # reassigned meanwhile
            begin, end = begins[lane.partition], ends[lane.partition]
            topic_id = ids[lane.partition.topic]
            try:
                position = stored[lane.source.topic].get(lane.source.partition)
                if position is None:
                    position = _first_position(lane.source, topic_id, begin)
                    await self._tables.start_at(lane.source, position)
                _check(lane.source, position, topic_id, begin, end)
            except ServiceUnavailable as error:
                await self._postgres_away(error)
                return
            except MailstreamsError as error:
                self._fail(lane.partition, error)
                continue
            consumer.seek(lane.partition, position.next_offset)
            lane.position, lane.state, lane.error = position, LaneState.READY, None
        self._waiting = None

    def _fail(self, partition: TopicPartition, error: MailstreamsError) -> None:
        lane = self._lanes.get(partition)
        if lane is None:
            return
        told_already = lane.error is not None and str(lane.error) == str(error)
        lane.state, lane.error, lane.retry_at = LaneState.FAILED, error, time.monotonic() + FAILED_RETRY_S
        log.log(
            logging.WARNING if told_already else logging.ERROR,
            "projection of a partition stands still",
            extra={
                "action": "projection_stopped",
                "topic": lane.source.topic,
                "partition": lane.source.partition,
                "code": error.code,
                "error": str(error),
            },
        )

    async def _postgres_away(self, error: MailstreamsError) -> None:
        """Whether a transaction at hand was committed is unknown: every lane reads its position again."""
        if self._waiting is None:
            log.warning("projection waits for PostgreSQL", extra={"action": "projection_waits", "error": str(error)})
            self._away_wait_s = BACKOFF_MIN_S
        self._waiting = f"PostgreSQL: {error}"
        for lane in self._lanes.values():
            if lane.state is LaneState.READY:
                lane.state = LaneState.OPENING
        await self._pause(self._away_wait_s)
        self._away_wait_s = min(self._away_wait_s * 2, BACKOFF_MAX_S)

    # --- batches ---------------------------------------------------------------------------------------------------
    async def _project(self, records: dict[TopicPartition, list[Any]]) -> None:
        assert self._tables is not None
        slices: list[tuple[_Lane, Slice]] = []
        unreadable: list[tuple[_Lane, MailstreamsError]] = []
        for partition, found in records.items():
            lane = self._lanes.get(partition)
            if lane is None or lane.position is None or lane.state is not LaneState.READY:
                continue
            if found[0].offset < lane.position.next_offset:
                lane.state = LaneState.OPENING  # fetched before the seek took effect
                continue
            piece, malformed = await self._reader.slice_of(lane.source, lane.position, found)
            if malformed is not None:
                unreadable.append((lane, malformed))
            if piece.next_offset > piece.start:
                slices.append((lane, piece))
        began = time.monotonic()
        if slices:
            try:
                outcome = await self._tables.write([piece for _, piece in slices])
            except ServiceUnavailable as error:
                await self._postgres_away(error)
                return
            self._settle(slices, outcome)
            self._observer.projected(outcome.events, time.monotonic() - began)
            self._last_write = time.monotonic()
        for lane, reason in unreadable:
            self._fail(lane.partition, reason)

    def _settle(self, slices: Iterable[tuple[_Lane, Slice]], outcome: Outcome) -> None:
        for lane, piece in slices:
            if self._lanes.get(lane.partition) is not lane:
                continue
            if piece.source in outcome.failed:
                self._fail(lane.partition, outcome.failed[piece.source])
            elif piece.source in outcome.moved:
                log.warning(
                    "somebody else has projected this partition; going on from the row's position",
                    extra={
                        "action": "projection_moved",
                        "topic": lane.source.topic,
                        "partition": lane.source.partition,
                        "expected": piece.start,
                        "found": outcome.moved[piece.source].next_offset,
                    },
                )
                lane.state = LaneState.OPENING
            else:
                lane.position = Position(piece.topic_id, piece.next_offset)
        totals = self._totals
        totals.events += outcome.events
        totals.repeats += outcome.repeats
        totals.odd += outcome.odd
        totals.stubs += outcome.stubs  # which slices moved or failed is the lanes' to say
        if outcome.odd or outcome.stubs or outcome.repeats:
            log.warning(
                "the log holds what does not fit",
                extra={
                    "action": "projection_odd",
                    "repeats": outcome.repeats,
                    "odd": outcome.odd,
                    "stubs": outcome.stubs,
                },
            )

    def _on_ignored(self, topic: str, reason: str) -> None:
        name = f"{topic}:{reason}"
        self._ignored[name] += 1
        if (count := self._ignored[name]) & (count - 1) == 0:  # 1, 2, 4, 8, ...: loud at first, never a flood
            log.warning(
                "records passed over",
                extra={"action": "projection_ignored", "topic": topic, "reason": reason, "count": count},
            )

    # --- what others may see ---------------------------------------------------------------------------------------
    async def _tell(self, consumer: Any) -> None:
        """Lag for the metrics, offsets for those who look at the group in Kafka. Neither decides anything."""
        now = time.monotonic()
        lanes = [lane for lane in self._lanes.values() if lane.state is LaneState.READY and lane.position is not None]
        if now - self._lag_at >= LAG_EVERY_S:
            self._lag_at = now
            for lane in lanes:
                if lane.source.topic == topics.CHANGES:
                    with contextlib.suppress(KafkaError, TimeoutError):  # reassigned meanwhile
                        end = consumer.last_stable_offset(lane.partition)
                        # the consumer's own position is behind control records, which are nobody's lag
                        at = await asyncio.wait_for(consumer.position(lane.partition), 1.0)
                        self._lag[lane.source.partition] = 0 if end is None else max(0, end - at)
                        self._observer.projector_lag(lane.source.partition, self._lag[lane.source.partition])
        if now - self._committed_at >= COMMIT_EVERY_S:
            self._committed_at = now
            offsets = {lane.partition: lane.position.next_offset for lane in lanes if lane.position is not None}
            if offsets:
                await _quietly(consumer.commit(offsets))


class _Stopped(Exception):
    """We were told to stop."""


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, projector: Projector) -> None:
        self._projector = projector

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._projector._on_revoked()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._projector._on_assigned(assigned)


def _first_position(source: Source, topic_id: UUID, begin: int) -> Position:
    if source.topic == topics.CHANGES and begin > 0:
        raise LogStartGone(
            f"{source.topic}-{source.partition} begins at offset {begin}: what was before it is gone, "
            "so the projection cannot be built from this log"
        )
    return Position(topic_id, begin)


def _check(source: Source, position: Position, topic_id: UUID, begin: int, end: int) -> None:
    if position.topic_id != topic_id:
        raise WrongTopic(
            f"{source.topic} was made anew since it was projected; run `faust -A streams projection rebuild`"
        )
    if source.topic == topics.CHANGES and position.next_offset < begin:
        raise LogStartGone(
            f"{source.topic}-{source.partition} begins at offset {begin}, we are at {position.next_offset}: "
            "the records between are gone"
        )
    if position.next_offset > end:
        raise WrongTopic(
            f"{source.topic}-{source.partition} ends at offset {end}, we are at {position.next_offset}: "
            "the log has lost records; run `faust -A streams projection rebuild`"
        )


def _plain(error: BaseException) -> str:
    return str(error) if isinstance(error, MailstreamsError) else type(error).__name__


async def _quietly(step: Any) -> None:
    """Let `step` have its time, whatever comes of it: offsets in Kafka and goodbyes decide nothing here."""
    try:
        await asyncio.wait_for(step, KAFKA_CALL_S)
    except (KafkaError, TimeoutError, OSError) as error:
        log.debug("ignored", extra={"action": "projector_ignored", "error": repr(error)})
