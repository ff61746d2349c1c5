"""The consumer group of `sync.jobs`: worker and job processes share its partitions, this is one member.

Invariants: a revocation stops nothing, only an assignment without the partition does (fencing protects the log in
between); a partition that stays keeps its running commands; offsets are committed only by the transactions of
`JobWriter` and by proofs of membership, which repeat what is committed already.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from streams.commands.engine import Engine
from streams.commands.job_assignor import Claim, assignor_for
from streams.commands.job_partition import JobPartition
from streams.commands.job_writer import JobWriter, Pace
from streams.commands.kafka_reading import close_within
from streams.commands.ports import Delivery
from streams.contracts import topics
from streams.errors import MembershipLost, ServiceUnavailable
from streams.observer import NoopObserver, RuntimeObserver
from streams.runtime.clients import cancelled_from_elsewhere, start_with_brokers
from streams.runtime.coordination import ended, rejoin_if_silent
from streams.settings import Settings

log = structlog.get_logger(__name__)

POLL_MS: Final = 200
POLL_RECORDS: Final = 1000
FETCH_BYTES: Final = 262_144
"""Of one partition. What was fetched and not taken when a partition is paused is fetched again."""
CLOSE_LIMIT_S: Final = 1.0
PROVE_LIMIT_S: Final = 60.0
ERROR_PAUSE_S: Final = 1.0
LONG_S: Final = 5.0
"""A command that has run for this long keeps its partition in this process; shorter ones are repeated elsewhere."""
SHED_AFTER_S: Final = 2.0
"""A job process whose command takes longer than this lets go of the other partitions."""
FRESH_S: Final = 2.0
"""For this long after it was opened for a record, job mode reads that partition alone."""


def job_group(settings: Settings) -> str:
    """Id of the group that reads `sync.jobs`: what an autoscaler watches the lag of."""
    return f"{settings.KAFKA_TOPIC_PREFIX}{settings.KAFKA_GROUP}.jobs"


class JobGroup:
    """Reads `sync.jobs` for an engine. `one_by_one` is for job mode: nothing is read that would not start at once."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        *,
        one_by_one: bool = False,
        observer: RuntimeObserver | None = None,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._one_by_one = one_by_one
        self._observer: RuntimeObserver = observer or NoopObserver()
        self._arrived = arrived
        self._topic = settings.topic(topics.JOBS)
        self._consumer: AIOKafkaConsumer | None = None
        self._partitions: dict[int, JobPartition] = {}
        self._owned: frozenset[int] = frozenset()
        self._generation = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._accepting = True
        self._pace = Pace()
        self.assigned = asyncio.Event()
        self.read_at = time.monotonic()
        """When reading last came round."""

    # --- life ------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Connect and join. Raises `ServiceUnavailable` when no broker answers."""
        await self._join()
        self._reading = asyncio.create_task(self._read(), name="jobs-reader")

    async def _join(self) -> None:
        settings = self._settings
        consumer = AIOKafkaConsumer(
            **settings.kafka_client(),
            group_id=job_group(settings),
            client_id=f"{settings.WORKER_NAME}.jobs",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=int(settings.KAFKA_SESSION_TIMEOUT_S * 1000),
            # Others learn of a rebalance by their heartbeat; it is short because job processes come and go.
            heartbeat_interval_ms=max(200, min(1000, int(settings.KAFKA_SESSION_TIMEOUT_S * 1000 / 6))),
            max_poll_records=1 if self._one_by_one else POLL_RECORDS,
            max_partition_fetch_bytes=FETCH_BYTES,
            partition_assignment_strategy=(assignor_for(self),),
        )
        self._consumer = consumer
        try:
            await start_with_brokers(consumer)
        except (KafkaError, OSError, TimeoutError) as error:
            await close_within(consumer.stop(), CLOSE_LIMIT_S)
            self._consumer = None
            raise ServiceUnavailable(f"Kafka: {type(error).__name__}") from None
        consumer.subscribe([self._topic], listener=_Listener(self))

    async def _join_anew(self) -> None:
        """Give up a consumer that has ended by itself, and everything it was assigned; join with another one."""
        log.warning("the consumer of jobs has ended, another one takes its place")
        self.on_assigned(())
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_within(consumer.stop(), CLOSE_LIMIT_S)
        while not self._stopping:
            self.read_at = time.monotonic()  # a broker that is away is no standstill
            try:
                await self._join()
            except ServiceUnavailable as error:
                log.warning("jobs cannot be read", error=str(error))
                await asyncio.sleep(ERROR_PAUSE_S)
            else:
                break

    def stop_reading(self) -> None:
        """Take nothing any more; membership stays, so that what runs can be concluded."""
        self._stopping = True

    async def stop(self) -> None:
        """Give up every partition and leave the group, so that peers take over at once."""
        self._stopping = True
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading}, timeout=CLOSE_LIMIT_S)
        partitions, self._partitions = list(self._partitions.values()), {}
        await asyncio.gather(*(partition.end() for partition in partitions), *self._ending)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_within(consumer.stop(), CLOSE_LIMIT_S)

    @property
    def failed(self) -> BaseException | None:
        """Why reading ended by itself, if it did."""
        reading = self._reading
        return reading.exception() if reading is not None and reading.done() and not reading.cancelled() else None

    # --- reading ---------------------------------------------------------------------------------------------------
    async def _read(self) -> None:
        while not self._stopping and (consumer := self._consumer) is not None:
            self._reconsider()
            try:
                if self._one_by_one:
                    self._choose()
                batches = await consumer.getmany(
                    timeout_ms=POLL_MS, max_records=1 if self._one_by_one else POLL_RECORDS
                )
            except (KafkaError, OSError, RuntimeError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and not cancelled_from_elsewhere(error):
                    raise
                log.warning("jobs cannot be read", error=type(error).__name__)
                await asyncio.sleep(ERROR_PAUSE_S)
                # As it does when uvloop refuses, with a RuntimeError, to write to a connection that is closed.
                if ended(consumer._coordinator):
                    await self._join_anew()
                else:
                    rejoin_if_silent(consumer._coordinator)
                continue
            self.read_at = time.monotonic()
            for tp, records in batches.items():
                partition = self._reader_of(tp.partition)
                if partition is not None and records:
                    self._arrived()
                    partition.deliver(
                        [
                            Delivery(record.partition, record.offset, record.key, record.value, tuple(record.headers))
                            for record in records
                        ]
                    )

    def _reader_of(self, number: int) -> JobPartition | None:
        if number not in self._owned:
            return None
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = JobPartition(number, self._engine, self, self._make_writer)
        return partition

    def _make_writer(self, partition: int) -> JobWriter:
        async def prove() -> int:
            return await self.prove(partition)

        return JobWriter(
            self._settings, partition, job_group(self._settings), prove, observer=self._observer, pace=self._pace
        )

    def _choose(self) -> None:
        """In job mode: nothing is read while a command runs or a partition opens, and then first of that partition."""
        consumer = self._consumer
        assert consumer is not None
        partitions = self._partitions
        wanted: frozenset[int] = frozenset()
        if self._engine.hungry and not any(partition.opening for partition in partitions.values()):
            fresh = {
                number
                for number, partition in partitions.items()
                if (unread_s := partition.unread_for_s) is not None and unread_s < FRESH_S
            }
            blocked = {number for number, partition in partitions.items() if partition.blocked}
            wanted = frozenset(fresh or self._owned) - blocked
        for tp in consumer.assignment():
            (consumer.resume if tp.partition in wanted else consumer.pause)(tp)

    # --- what the group is told ------------------------------------------------------------------------------------
    def claim(self) -> Claim:
        """What this process claims when the group is formed anew."""
        busy = self._engine.busy_partitions(0.0 if self._one_by_one else LONG_S)
        return Claim(busy, self._owned, self._accepting and not self._stopping)

    def _reconsider(self) -> None:
        """In job mode: let go of what waits behind a command that we run, take partitions when we are free again."""
        if not self._one_by_one or not self.assigned.is_set():
            return
        if self._engine.hungry:
            accepting = True
        elif self._engine.busy_partitions(SHED_AFTER_S):
            accepting = False
        else:
            return  # a short command is not worth a rebalance
        if accepting == self._accepting:
            return
        self._accepting = accepting
        if accepting or self._owned - self.claim().busy:
            log.debug("asking for another share of the partitions", accepting=accepting)
            self._rejoin()

    def _rejoin(self) -> None:
        assert self._consumer is not None
        self._consumer.subscribe([self._topic], listener=_Listener(self))

    # --- rebalances ------------------------------------------------------------------------------------------------
    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The group was formed anew."""
        self._owned = frozenset(tp.partition for tp in partitions)
        for number in sorted(self._partitions.keys() - self._owned):
            task = asyncio.create_task(self._partitions.pop(number).end(), name=f"jobs-end-{number}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        for partition in self._partitions.values():
            partition.reassigned()
        log.info("partitions of jobs", owned=len(self._owned), working=len(self._partitions))
        self._generation.set()
        self._generation = asyncio.Event()
        self.assigned.set()

    async def prove(self, partition: int) -> int:
        """Commit what is committed, as a member of the current generation; returns that offset.

        Raises `MembershipLost` when the partition is not ours (any more), and `KafkaError` when Kafka does not answer.
        """
        tp = TopicPartition(self._topic, partition)
        ends_at = time.monotonic() + PROVE_LIMIT_S
        while time.monotonic() < ends_at:
            consumer = self._consumer
            if consumer is None or partition not in self._owned:
                break
            formed_anew = self._generation
            try:
                offset = await consumer.committed(tp)
                if offset is None:
                    offset = (await consumer.beginning_offsets([tp]))[tp]
                await consumer.commit({tp: offset})
            except (CommitFailedError, IllegalStateError):
                # The group is being formed anew; whether the partition stays ours is known when that is done.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await formed_anew.wait()
            else:
                return int(offset)
        raise MembershipLost(f"partition {partition} of jobs is not ours any more")

    # --- for JobPartition ------------------------------------------------------------------------------------------
    def seek(self, partition: int, offset: int) -> None:
        """Go on reading at `offset`; nothing while the partition is being reassigned, which asks again."""
        self._on(partition, lambda consumer, tp: consumer.seek(tp, offset))

    def pause(self, partition: int) -> None:
        """Read nothing of it."""
        self._on(partition, lambda consumer, tp: consumer.pause(tp))

    def resume(self, partition: int) -> None:
        """Read it again."""
        self._on(partition, lambda consumer, tp: consumer.resume(tp))

    def _on(self, partition: int, action: Callable[[Any, TopicPartition], None]) -> None:
        consumer, tp = self._consumer, TopicPartition(self._topic, partition)
        if consumer is not None and tp in consumer.assignment():
            action(consumer, tp)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, group: JobGroup) -> None:
        self._group = group

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Stops nothing: see the module."""

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._group.on_assigned(assigned)
