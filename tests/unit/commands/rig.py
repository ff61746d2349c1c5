"""An engine on lanes in memory, driven by a test: commands in, everything that was committed out."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from streams.commands.engine import Engine
from streams.commands.handlers import Handlers, Task
from streams.commands.limits import EngineLimits
from streams.commands.memory_lane import MemoryLane, MemoryTopic
from streams.commands.session import Session
from streams.commands.surroundings import Surroundings
from streams.contracts.codec import header
from streams.contracts.commands import AnyCommandEvent, Command, CommandFailure, CommandSuccess
from streams.contracts.keys import partition_for
from streams.domain.retry import RetryLimits
from streams.observer import NoopObserver

DEADLINE_S = 10.0
RETRY = RetryLimits(retries=3, backoff_s=0.01, backoff_max_s=0.04, attempt_s=5.0, give_up_s=60.0)
_EVENTS: msgspec.json.Decoder[AnyCommandEvent] = msgspec.json.Decoder(AnyCommandEvent)


class Anything(msgspec.Struct, frozen=True):
    """Arguments of handlers of tests."""

    number: int = 0


async def noop(args: Anything, task: Task) -> dict[str, int]:
    """Nothing, and says which."""
    return {"number": args.number}


def registry(**functions: Any) -> Handlers:
    """Handlers of these kinds."""
    handlers = Handlers()
    for kind, function in functions.items():
        handlers.add(kind, function, args=Anything)
    return handlers


def tested_limits(**limits: Any) -> EngineLimits:
    """Limits of a test: retries come soon, and progress at once."""
    return EngineLimits(**{"retry": RETRY, "progress_interval_s": 0.0, **limits})


class CountingObserver(NoopObserver):
    """Counts what the engine reports."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()

    def task_started(self, kind: str) -> None:
        self.counts["started", kind] += 1

    def task_stopped(self, kind: str) -> None:
        self.counts["stopped", kind] += 1

    def task_finished(self, kind: str, status: str, code: str, seconds: float) -> None:
        self.counts["finished", kind, status, code] += 1

    def task_retried(self, kind: str, code: str) -> None:
        self.counts["retried", kind, code] += 1

    def poison(self, topic: str, reason: str) -> None:
        self.counts["poison", topic, reason] += 1

    def published(self, record_type: str, count: int = 1) -> None:
        self.counts["published", record_type] += count

    def publish_failed(self, record_type: str) -> None:
        self.counts["publish_failed", record_type] += 1

    def acknowledge_failed(self, lane: str) -> None:
        self.counts["acknowledge_failed", lane] += 1

    def progress_dropped(self, reason: str) -> None:
        self.counts["progress_dropped", reason] += 1

    def shutdown_requeued(self, count: int) -> None:
        self.counts["requeued",] += count

    def rekeyed(self, topic: str) -> None:
        self.counts["rekeyed", topic] += 1


def accounts(partitions: int = 1, partition: int = 0) -> Iterator[str]:
    """Account ids of one partition."""
    number = 0
    while True:
        number += 1
        account_id = str(uuid.UUID(int=number))
        if partition_for(account_id, partitions) == partition:
            yield account_id


ACCOUNT = next(accounts())


class Rig:
    """An engine, its topic, and what was committed."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        topic: MemoryTopic | None = None,
        partitions: int = 1,
        worker: str = "w1",
        resources: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.topic = topic or MemoryTopic()
        self.observer = CountingObserver()
        self.partitions = partitions
        self.engine = Engine(
            handlers,
            Surroundings(
                tested_limits(**limits),
                partitions=partitions,
                worker=worker,
                service="tests",
                resources=resources,
                observer=self.observer,
            ),
        )
        self.lane = MemoryLane(self.topic)
        self.session: Session = self.engine.attach(self.lane, self.feed)

    def feed(self) -> None:
        """Deliver what there is room for."""
        self.lane.feed(self.session)

    def send(self, kind: str, account_id: str = ACCOUNT, *, command_id: str | None = None, **rest: Any) -> str:
        """Produce a command; returns its id."""
        command = command_of(kind, account_id, command_id=command_id, **rest)
        self.topic.produce(account_id.encode(), msgspec.json.encode(command))
        self.feed()
        return command.command_id

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until it is true, looking whenever the engine has changed."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.wait({asyncio.ensure_future(self.engine.changed())}, timeout=0.01)

    async def finish(self) -> None:
        """Wait until everything delivered is settled."""
        await self.until(lambda: self.engine.idle and self.session.next_offset == len(self.topic.deliveries))

    def events(self, command_id: str | None = None) -> list[AnyCommandEvent]:
        """Committed events, of one command or of all, in order."""
        return events_of(self.topic, command_id)

    def letters(self) -> list[tuple[str, bytes | None]]:
        """Reasons and values of dead letters."""
        return [
            ((header(record.headers, "dlq_reason") or b"").decode(), record.value)
            for record in self.topic.committed
            if record.topic.endswith(".dlq")
        ]


def command_of(
    kind: str, account_id: str = ACCOUNT, *, command_id: str | None = None, expires_s: float | None = None, **args: Any
) -> Command:
    """A command of now."""
    now = datetime.now(UTC)
    return Command(
        command_id=command_id or str(uuid.uuid4()),
        account_id=account_id,
        kind=kind,
        at=now,
        args=args,
        deadline=None if expires_s is None else now + timedelta(seconds=expires_s),
    )


def events_of(topic: MemoryTopic, command_id: str | None = None) -> list[AnyCommandEvent]:
    """Committed events of a topic."""
    events = [
        _EVENTS.decode(record.value)
        for record in topic.committed
        if record.topic == "sync.command_events" and record.value is not None
    ]
    return [event for event in events if command_id in (None, event.command_id)]


def conclusions(events: list[AnyCommandEvent]) -> list[CommandSuccess | CommandFailure]:
    """Only the conclusions among events."""
    return [event for event in events if isinstance(event, CommandSuccess | CommandFailure)]


@contextlib.asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """End the engine with the block, whatever happens in it."""
    try:
        yield rig
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await rig.engine.drain(0.0)
