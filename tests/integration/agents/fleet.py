"""Starts, signals and listens to workers of `tests.integration.agents.worker`, and sends them events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from streams.agents import attach
from streams.assembly import StreamsApp, changelog_topics, faust_settings
from streams.contracts import topics
from streams.contracts.account import AccountState, AccountStateChanged, UserActive
from streams.contracts.codec import encode
from streams.observer import NoopObserver
from streams.runtime.topics import TopicAdmin, wanted_topics
from streams.settings import Settings

Line = dict[str, Any]


def account_id(number: int) -> str:
    """A valid account id, the same for the same number."""
    return str(uuid.UUID(int=number + (4 << 76) + (2 << 62)))


@dataclass
class Worker:
    """One worker process. What its host is told is read with `said`."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    output: Path
    _by_kind: dict[str, list[Line]] = field(default_factory=dict)
    _read: int = 0

    def said(self, what: str, **details: object) -> list[Line]:
        """Lines of a kind, with these details, in order."""
        self._catch_up()
        lines = self._by_kind.get(what, [])
        if not details:
            return lines
        return [line for line in lines if all(line.get(name) == value for name, value in details.items())]

    @property
    def lines(self) -> list[Line]:
        """All lines, in order."""
        self._catch_up()
        return sorted((line for lines in self._by_kind.values() for line in lines), key=lambda line: int(line["n"]))

    @property
    def held(self) -> frozenset[int]:
        """Partitions as last assigned."""
        lines = self.said("assigned")
        return frozenset(lines[-1]["partitions"]) if lines else frozenset()

    @property
    def running(self) -> frozenset[int]:
        """Partitions held whose accounts were read since they came."""
        found: set[int] = set()
        for line in self.lines:
            if line["what"] == "assigned":
                found &= set(line["kept"])
            elif line["what"] == "unassigned":
                found.clear()
            elif line["what"] == "started":
                found.add(line["partition"])
        return self.held & found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def _catch_up(self) -> None:
        with self.output.open("rb") as source:
            source.seek(self._read)
            for raw in source:
                if not raw.endswith(b"\n"):
                    break
                self._read += len(raw)
                line = json.loads(raw)
                line["n"] = self._read
                self._by_kind.setdefault(line["what"], []).append(line)


class Fleet:
    """Workers of one deployment, and a producer for their topics."""

    def __init__(self, settings: Settings, directory: Path, producer: AIOKafkaProducer) -> None:
        self.settings = settings
        self.directory = directory
        self.producer = producer
        self.workers: list[Worker] = []

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.process.returncode is None]

    async def start(self, *, data: str | None = None, **more: str) -> Worker:
        """Start a worker; it is up when it holds partitions. `data` names a data directory to use again."""
        name = f"w{len(self.workers)}"
        log = self.directory / f"{name}.log"
        environment = os.environ | {
            "KAFKA_BOOTSTRAP_SERVERS": self.settings.KAFKA_BOOTSTRAP_SERVERS,
            "KAFKA_TOPIC_PREFIX": self.settings.KAFKA_TOPIC_PREFIX,
            "KAFKA_SESSION_TIMEOUT_S": str(self.settings.KAFKA_SESSION_TIMEOUT_S),
            "PARTITIONS": str(self.settings.PARTITIONS),
            "WORKER_NAME": name,
            "DATA_DIR": str(self.directory / (data or name)),
            "MAILSTREAMS_ENV_FILE": "/dev/null",
            **more,
        }
        (self.directory / (data or name)).mkdir(exist_ok=True)
        output = self.directory / f"{name}.lines"
        with log.open("ab") as sink, output.open("wb") as lines:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.integration.agents.worker",
                stdout=lines,
                stderr=sink,
                env=environment,
            )
        worker = Worker(name, process, log, output)
        self.workers.append(worker)
        return worker

    async def settled(self, deadline_s: float = 60.0) -> None:
        """Every partition runs in exactly one of the living workers, and each of them has some."""

        def spread() -> bool:
            running = [worker.running for worker in self.alive]
            held = [worker.held for worker in self.alive]
            return all(running) and sum(map(len, running)) == self.settings.PARTITIONS == sum(map(len, held))

        await self.until(spread, deadline_s)

    async def until(self, condition: Callable[[], object], deadline_s: float = 30.0) -> None:
        """Wait for it; on the deadline say where the workers are."""
        try:
            async with asyncio.timeout(deadline_s):
                while not condition():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            states = {w.name: (w.process.returncode, sorted(w.held), sorted(w.running)) for w in self.workers}
            tails = "\n".join(f"--- {w.name}\n{w.log.read_text()[-3000:]}" for w in self.workers)
            raise AssertionError(f"not within {deadline_s:g} s; workers: {states}\n{tails}") from None

    async def state(
        self,
        account: int,
        state: AccountState,
        version: int | None,
        *,
        user: str | None = None,
        partition: int | None = None,
        key: bytes | None = None,
    ) -> None:
        """Announce a state of an account (of user `u<account>`)."""
        name = account_id(account)
        event = AccountStateChanged(
            account_id=name, user_id=user or f"u{account}", state=state, at=datetime.now(UTC), version=version
        )
        await self.send(topics.STATE_CHANGED, key or name.encode(), encode(event), partition=partition)

    async def active(self, user: str, *, ago: timedelta = timedelta(0)) -> None:
        """The user has a session."""
        event = UserActive(user_id=user, source="ws_ping", at=datetime.now(UTC) - ago)
        await self.send(topics.USER_ACTIVE, user.encode(), encode(event))

    async def send(self, topic: str, key: bytes, value: bytes | None, *, partition: int | None = None) -> None:
        """Send and wait until Kafka has it."""
        await self.producer.send_and_wait(self.settings.topic(topic), value, key, partition=partition)

    async def read_until(self, topic: str, count: int) -> list[Any]:
        """All records of a topic, once there are so many."""
        async with asyncio.timeout(30):
            while len(found := await self.read(topic)) < count:
                await asyncio.sleep(0.2)
        return found

    async def read(self, topic: str) -> list[Any]:
        """All records of a topic as of now, as aiokafka gives them."""
        name = self.settings.topic(topic)
        consumer = AIOKafkaConsumer(name, **self.settings.kafka_client(), auto_offset_reset="earliest")
        await consumer.start()
        try:
            found: list[Any] = []
            ends = await consumer.end_offsets(list(consumer.assignment()))
            async with asyncio.timeout(20):
                while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found.extend(records)
            return found
        finally:
            await consumer.stop()

    def everywhere(self, what: str, **details: object) -> list[Line]:
        """Such lines of all workers, by time."""
        lines = [line for worker in self.workers for line in worker.said(what, **details)]
        return sorted(lines, key=lambda line: float(line["at"]))

    async def stop(self) -> None:
        """End all workers, gently where they still live."""
        for worker in self.alive:
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                async with asyncio.timeout(20):
                    await worker.process.wait()
            except TimeoutError:
                worker.process.kill()
                await worker.process.wait()


@asynccontextmanager
async def fleet(
    bootstrap: str, prefix: str, directory: Path, *, partitions: int = 8, session_timeout_s: float = 4.0
) -> AsyncIterator[Fleet]:
    """A deployment with its topics, and no worker yet."""
    settings = Settings(
        KAFKA_BOOTSTRAP_SERVERS=bootstrap,
        KAFKA_TOPIC_PREFIX=prefix,
        KAFKA_SESSION_TIMEOUT_S=session_timeout_s,
        PARTITIONS=partitions,
        DATA_DIR=directory / "admin",
    )
    app = StreamsApp(**faust_settings(settings))
    attach(app, settings=settings, host=None, store=None, observer=NoopObserver())  # type: ignore[arg-type]
    wanted = wanted_topics(settings, changelog_topics(app))
    async with TopicAdmin.connected(settings) as admin:
        await admin.create((await admin.inspect(wanted, {})).missing)
        sources = sorted(str(agent.channel.get_topic_name()) for agent in app.agents.values())
        for group, missing in (await admin.inspect(wanted, {str(app.conf.id): sources})).offsets.items():
            await admin.commit_first_offsets(group, missing)
    producer = AIOKafkaProducer(**settings.kafka_client())
    await producer.start()
    workers = Fleet(settings, directory, producer)
    try:
        yield workers
    finally:
        await workers.stop()
        await producer.stop()


def wall() -> float:
    """The clock of the lines that workers write."""
    return time.time()
