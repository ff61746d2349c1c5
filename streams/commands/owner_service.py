"""Commands for the accounts of this worker: reads `sync.commands` of the partitions whose shards run here.

The consumer is assigned, not subscribed: who reads a partition is decided by who runs its shard. Invariant: a partition
is read from the moment its shard tells that it runs (`opened`) to the moment it tells that it does not (`closed`), from
the position in its mirror.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from streams.commands.engine import Engine
from streams.commands.kafka_reading import close_within
from streams.commands.operations import AccountOperations, owner_handlers
from streams.commands.owner_lane import OwnerLane, OwnerLog
from streams.commands.ports import Delivery
from streams.commands.service import HandlersIgnored, engine_limits, surroundings
from streams.commands.session import Session
from streams.contracts import topics
from streams.errors import ProducerLost
from streams.observer import RuntimeObserver
from streams.runtime.services import Health
from streams.settings import Settings

log = structlog.get_logger(__name__)

POLL_MS: Final = 200
POLL_RECORDS: Final = 500
ERROR_PAUSE_S: Final = 1.0
CLOSE_LIMIT_S: Final = 1.0
CONNECT_LIMIT_S: Final = 30.0
STANDSTILL_S: Final = 60.0


@dataclass(slots=True)
class _Open:
    session: Session
    lane: OwnerLane
    kept: deque[Delivery] = field(default_factory=deque)
    checked: bool = False
    placed: bool = False
    """Whether the consumer reads from the session's position. What it gives before was read for the shard's former log:
    taken, it would pass over what that one had begun and not committed."""


class OwnerService:
    """Runs `sync.commands` for the shards of this process."""

    name = "commands"

    def __init__(
        self,
        settings: Settings,
        operations: AccountOperations,
        observer: RuntimeObserver,
        *,
        resources: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings
        self._operations = operations
        self._observer = observer
        self._resources = dict(resources or {})
        self._topic = settings.topic(topics.COMMANDS)
        self._engine: Engine | None = None
        self._open: dict[int, _Open] = {}
        self._early: dict[int, OwnerLog] = {}
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._stopping = False
        self._read_at = time.monotonic()

    # --- life ------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Be ready for shards. Connects when the first one opens."""
        self._engine = Engine(
            owner_handlers(self._operations),
            surroundings(self._settings, engine_limits(self._settings), self._observer, resources=self._resources),
        )
        self._reading = asyncio.create_task(self._read(), name="commands-reader")
        early, self._early = self._early, {}
        for shard_log in early.values():
            self.opened(shard_log)

    async def stop(self, deadline_s: float) -> None:
        """Take nothing any more, let what runs finish. The shards close after this. Raises `HandlersIgnored`."""
        self._stopping = True
        self._changed.set()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading}, timeout=CLOSE_LIMIT_S)
        if self._engine is None:
            return
        report = await self._engine.drain(deadline_s)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_within(consumer.stop(), CLOSE_LIMIT_S)
        if report.ignored:
            raise HandlersIgnored(f"{len(report.ignored)} handlers did not end: {', '.join(report.ignored)[:500]}")

    def health(self) -> Health:
        """Dead when reading has ended by itself; what runs, and overrunning tasks by id."""
        if self._engine is None:
            return Health(ready=False, reason="not started")
        snapshot = self._engine.snapshot()
        reading = self._reading
        ended = reading is not None and reading.done()
        stands = bool(self._open) and time.monotonic() - self._read_at > STANDSTILL_S
        alive = self._stopping or not (ended or stands)
        return Health(
            alive=alive,
            ready=alive and not self._stopping,
            reason=None
            if alive and not self._stopping
            else ("draining" if alive else "commands are not read any more"),
            overrunning=snapshot.overrunning,
            detail={
                "partitions": len(self._open),
                "running": [{"task_id": task.task_id, "kind": task.kind} for task in snapshot.running[:100]],
                "waiting": snapshot.waiting,
                "backing_off": snapshot.backing_off,
                "stuck": snapshot.stuck,
            },
        )

    # --- what shards tell ------------------------------------------------------------------------------------------
    def opened(self, shard_log: OwnerLog) -> None:
        """A shard runs: take up its commands. Raises `MirrorDamaged` when what is known of them cannot be read."""
        self.closed(shard_log.partition)
        if self._engine is None:
            self._early[shard_log.partition] = shard_log  # shards run before commands are taken
            return
        if self._stopping:
            return
        try:
            lane = OwnerLane(shard_log, remembered=self._settings.COMMANDS_REMEMBERED, full_name=self._settings.topic)
        except ProducerLost:
            return  # lost already: its commands are taken up with the shard's next log
        partition = shard_log.partition
        session = self._engine.attach(lane, lambda: self._pass_on(partition))
        self._open[partition] = _Open(session, lane)
        self._changed.set()

    def closed(self, partition: int) -> None:
        """The shard does not run any more: its commands are left to the next one."""
        self._early.pop(partition, None)
        was = self._open.pop(partition, None)
        if was is not None:
            assert self._engine is not None
            self._engine.detach(was.session)
            self._changed.set()

    # --- reading ---------------------------------------------------------------------------------------------------
    async def _read(self) -> None:
        while not self._stopping:
            self._read_at = time.monotonic()  # a broker that is away is no standstill
            try:
                if self._changed.is_set() or self._consumer is None:
                    await self._changed.wait()
                    self._changed.clear()
                    self._read_at = time.monotonic()
                    await self._assign()
                if not self._open:
                    await self._changed.wait()
                    continue
                assert self._consumer is not None
                batches = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("commands cannot be read", error=type(error).__name__)
                self._changed.set()
                await asyncio.sleep(ERROR_PAUSE_S)
                continue
            self._read_at = time.monotonic()
            for tp, records in batches.items():
                opened = self._open.get(tp.partition)
                if opened is not None and opened.placed:
                    opened.kept.extend(
                        Delivery(record.partition, record.offset, record.key, record.value, tuple(record.headers))
                        for record in records
                    )
                    self._pass_on(tp.partition)

    async def _assign(self) -> None:
        consumer = self._consumer
        if consumer is None:
            consumer = AIOKafkaConsumer(
                **self._settings.kafka_client(),
                client_id=f"{self._settings.WORKER_NAME}.commands",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                max_poll_records=POLL_RECORDS,
            )
            self._consumer = consumer
            try:
                async with asyncio.timeout(CONNECT_LIMIT_S):
                    await consumer.start()
            except BaseException:
                self._consumer = None
                await close_within(consumer.stop(), CLOSE_LIMIT_S)
                raise
        opened = dict(self._open)
        consumer.unsubscribe()
        if not opened:
            return
        tps = {number: TopicPartition(self._topic, number) for number in opened}
        consumer.assign(list(tps.values()))
        self._read_at = time.monotonic()
        unchecked = [tps[number] for number, it in opened.items() if not it.checked]
        ends = await consumer.end_offsets(unchecked) if unchecked else {}
        for number, it in opened.items():
            if self._open.get(number) is not it:
                continue  # closed or opened anew meanwhile, which assigns again
            it.kept.clear()
            if ends.get(tps[number], it.session.next_offset) < it.session.next_offset:
                # The topic was made anew. Going on would mean to wait for offsets that may take years to come.
                log.error("the position lies beyond the topic", partition=number, position=it.session.next_offset)
                it.session.restart_at(0)
            it.checked = True
            consumer.seek(tps[number], it.session.next_offset)
            it.placed = True
            if it.session.room == 0:
                consumer.pause(tps[number])

    def _pass_on(self, partition: int) -> None:
        opened = self._open.get(partition)
        if opened is None or opened.session.over:
            return
        more = opened.session.deliver_from(opened.kept)
        consumer, tp = self._consumer, TopicPartition(self._topic, partition)
        if consumer is not None and tp in consumer.assignment():
            with contextlib.suppress(IllegalStateError):  # it is being assigned anew, and paused then if it must be
                (consumer.resume if more else consumer.pause)(tp)
