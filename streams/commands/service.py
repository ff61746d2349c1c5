"""Jobs as a service of the process, in workers and in job mode (rows W5-W9).

In job mode the service ends by itself: when its quota of commands is settled, or when nothing has arrived for the idle
time. In a worker it runs until it is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.commands.engine import Engine
from streams.commands.handlers import Handlers
from streams.commands.job_group import JobGroup
from streams.commands.kafka_reading import close_within
from streams.commands.limits import EngineLimits
from streams.commands.surroundings import Surroundings
from streams.domain.retry import RetryLimits
from streams.errors import ConfigurationError, MailstreamsError, ServiceUnavailable
from streams.observer import RuntimeObserver
from streams.runtime.services import Health
from streams.settings import SAFETY_MARGIN_S, Settings

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.25
STANDSTILL_S: Final = 60.0
"""Reading that has not come round for this long is stuck; a round takes a fraction of a second."""
PUBLISH_RESERVE_S: Final = 1.0
"""Of the grace, kept to publish and acknowledge what was finished in it."""


class HandlersIgnored(MailstreamsError):
    """Handlers did not react to their cancellation; the process ends without them, with exit code 1 (row W7)."""

    code = "handlers_ignored"


def engine_limits(settings: Settings) -> EngineLimits:
    """The limits of an engine as settings have them."""
    return EngineLimits(
        retry=RetryLimits(
            retries=settings.WORKER_RETRY_LIMIT,
            backoff_s=settings.WORKER_RETRY_BACKOFF_S,
            backoff_max_s=settings.WORKER_RETRY_BACKOFF_MAX_S,
            attempt_s=settings.WORKER_TASK_TIMEOUT_S,
            # The margin of row W2: what is given up must be settled before the delivery is too old.
            give_up_s=settings.WORKER_CONSUMER_TIMEOUT_S - SAFETY_MARGIN_S,
        ),
        concurrency=settings.WORKER_CONCURRENCY,
        ahead=settings.COMMANDS_AHEAD,
        overrun_grace_s=settings.WORKER_TASK_OVERRUN_GRACE_S,
    )


def surroundings(
    settings: Settings, limits: EngineLimits, observer: RuntimeObserver, *, resources: Mapping[str, Any]
) -> Surroundings:
    """For an engine of this process."""
    return Surroundings(
        limits,
        partitions=settings.PARTITIONS,
        worker=settings.WORKER_NAME,
        service=settings.KAFKA_GROUP,
        resources=resources,
        observer=observer,
    )


class JobService:
    """Runs `sync.jobs` in this process. `job_mode` makes it the one-shot kind (row W8)."""

    name = "jobs"

    def __init__(
        self,
        settings: Settings,
        handlers: Handlers,
        observer: RuntimeObserver,
        *,
        resources: Mapping[str, Any] | None = None,
        job_mode: bool = False,
    ) -> None:
        self._settings = settings
        self._handlers = handlers
        self._observer = observer
        self._resources = dict(resources or {})
        self._job_mode = job_mode
        self._engine: Engine | None = None
        self._group: JobGroup | None = None
        self._arrived_at = time.monotonic()
        self._stopping = False

    # --- life ------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Check the topics that handlers emit to, join the group. Raises `ConfigurationError`, `ServiceUnavailable`."""
        await self._check_emitted()
        limits = engine_limits(self._settings)
        if self._job_mode:
            limits = dataclasses.replace(limits, concurrency=1, quota=self._settings.WORKER_JOB_MAX_TASKS)
        self._engine = Engine(
            self._handlers, surroundings(self._settings, limits, self._observer, resources=self._resources)
        )
        self._group = JobGroup(
            self._settings, self._engine, one_by_one=self._job_mode, observer=self._observer, arrived=self._saw
        )
        self._saw()
        await self._group.start()

    async def wait(self) -> None:
        """Job mode: until the work is done. Raises when reading has failed for good."""
        engine, group = self._engine, self._group
        assert engine is not None
        assert group is not None
        while True:
            if self._job_mode:
                with contextlib.suppress(TimeoutError):  # looked at anyway: idleness is told by no event
                    async with asyncio.timeout(LOOK_S):
                        await engine.changed()
            else:
                await asyncio.sleep(LOOK_S)
            if (error := group.failed) is not None:
                raise error
            if not self._job_mode:
                continue
            if not engine.idle:
                self._saw()
            elif engine.quota_reached:
                log.info("the quota of jobs is settled", tasks=engine.taken)
                return
            elif time.monotonic() - self._arrived_at >= self._settings.WORKER_JOB_IDLE_TIMEOUT_S:
                log.info("nothing arrived, ending", idle_s=self._settings.WORKER_JOB_IDLE_TIMEOUT_S, tasks=engine.taken)
                return

    async def stop(self, deadline_s: float) -> None:
        """Drain (row W5), then leave the group. Raises `HandlersIgnored`. May be cancelled and called again with 0."""
        self._stopping = True
        engine, group = self._engine, self._group
        if engine is None or group is None:
            return
        group.stop_reading()
        report = await engine.drain(max(0.0, deadline_s - min(PUBLISH_RESERVE_S, deadline_s / 10)))
        await group.stop()
        if report.requeued:
            log.warning("commands were left to other processes", count=report.requeued)
        if report.ignored:
            raise HandlersIgnored(f"{len(report.ignored)} handlers did not end: {', '.join(report.ignored)[:500]}")

    def health(self) -> Health:
        """Ready while it takes commands; dead when reading has stopped by itself. Overrunning tasks by id (row W9)."""
        engine, group = self._engine, self._group
        if engine is None or group is None:
            return Health(ready=False, reason="not started")
        snapshot = engine.snapshot()
        detail = {
            "running": [
                {"task_id": task.task_id, "kind": task.kind, "attempt": task.attempt, "seconds": round(task.seconds, 1)}
                for task in snapshot.running[:100]
            ],
            "waiting": snapshot.waiting,
            "backing_off": snapshot.backing_off,
            "partitions": snapshot.lanes,
            "stuck": snapshot.stuck,
            "taken": engine.taken,
        }
        reason = None
        alive = group.failed is None and (self._stopping or time.monotonic() - group.read_at < STANDSTILL_S)
        if not alive:
            reason = "jobs are not read any more"
        elif self._stopping:
            reason = "draining"
        elif engine.quota_reached:
            reason = "the quota is reached"
        elif not group.assigned.is_set():
            reason = "not in the group yet"
        return Health(alive=alive, ready=reason is None, reason=reason, overrunning=snapshot.overrunning, detail=detail)

    # --- within ----------------------------------------------------------------------------------------------------
    def _saw(self) -> None:
        self._arrived_at = time.monotonic()

    async def _check_emitted(self) -> None:
        """A record for a topic that does not exist would hold up everything behind it."""
        wanted = sorted({topic for spec in self._handlers for topic in spec.emits})
        if not wanted:
            return
        producer = AIOKafkaProducer(**self._settings.kafka_client())
        try:
            await producer.start()
            known = producer.client.cluster
            await producer.client.force_metadata_update()
            for topic in wanted:
                producer.client.add_topic(self._settings.topic(topic))
            await producer.client.force_metadata_update()
            missing = [topic for topic in wanted if not known.partitions_for_topic(self._settings.topic(topic))]
        except (KafkaError, OSError) as error:
            raise ServiceUnavailable(f"Kafka: {type(error).__name__}") from None
        finally:
            await close_within(producer.stop(), 2.0)
        if missing:
            raise ConfigurationError(f"handlers emit to topics that do not exist: {', '.join(missing)}")
