"""The composition root: the Faust app, the services beside it, and the process they run in.

The only module that knows every other. Whatever takes part is constructed here and handed what it needs; nothing is
looked up in a global place. Making the app connects to nothing and needs no event loop, so that `faust -A streams`
can do it for every subcommand; what needs either is made when the worker starts.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Any

import faust

from streams.agents import attach as attach_control_plane
from streams.agents.resuming import RewindingTransport
from streams.commands.export.handler import Exporter
from streams.commands.handlers import load_handlers
from streams.commands.job_group import job_group
from streams.commands.owner_service import OwnerService
from streams.commands.service import JobService
from streams.contracts.topics import JOBS
from streams.directory.accounts import AccountStore
from streams.directory.postgres import open_pool
from streams.directory.sources import CredentialSources
from streams.imap.hosts import HostGate
from streams.imap.session import ImapSession
from streams.imap.tls import client_tls_context
from streams.observer import RuntimeObserver
from streams.projection.migrations import migrate
from streams.projection.projector import Projector
from streams.projection.truths import ProjectedTruths
from streams.runtime.checks import kafka_check, take_data_directory
from streams.runtime.extensions import Extension, extend
from streams.runtime.faust_service import FaustService
from streams.runtime.hooks import Hooks
from streams.runtime.later import Later
from streams.runtime.launch import launch
from streams.runtime.metrics import PrometheusObserver
from streams.runtime.probes import Probe
from streams.runtime.services import Check, Health, Service, Stage
from streams.runtime.topics import topics_check
from streams.settings import Settings
from streams.sync.connections import AccountLink, Connector, host_policy
from streams.sync.hosting import Host
from streams.sync.operations import Operations


@dataclass
class Parts:
    """What one process is put together from.

    `first` holds what others need (the pool of connections). `owning` runs what the assignment of partitions decides.
    `tasks` runs commands and may use the whole grace of a drain. `beside` runs independently of the assignment.
    """

    settings: Settings
    observer: RuntimeObserver
    exposition: Callable[[], tuple[bytes, str]]
    """Body and content type of `/metrics`."""

    hooks: Hooks = field(default_factory=Hooks)
    first: list[Service] = field(default_factory=list)
    owning: list[Service] = field(default_factory=list)
    control: list[Service] = field(default_factory=list)
    tasks: list[Service] = field(default_factory=list)
    beside: list[Service] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    before: list[Callable[[], None]] = field(default_factory=list)
    """Called before anything listens or connects; raise `ConfigurationError` for what can be seen without
    connecting.
    """

    held: list[IO[str]] = field(default_factory=list)
    """Files that stay open, and locked, until the process ends."""

    probes: dict[str, tuple[Probe, bool]] = field(default_factory=dict)
    """Custom probes by name; True where one counts for liveness instead of readiness."""


class StreamsApp(faust.App):
    """The Faust app, with the parts of the process that it runs in."""

    parts: Parts

    def _new_transport(self) -> Any:
        return RewindingTransport(self.conf.broker_consumer, self)


# Else mode derives it from this module's name, and Faust's lines look like ours.
StreamsApp.logger = logging.getLogger("faust.app.base")


class Directory:
    """The pool of connections to the directory of accounts, and the sources of credentials, as a service."""

    name = "directory"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool: Later[Any] = Later("the pool of PostgreSQL connections")
        self._sources: Later[CredentialSources] = Later("the sources of credentials")
        self.store = AccountStore(self._pool.stand_in())
        self.sources = self._sources.stand_in()

    def check(self) -> None:
        """See that keys and providers can be used. Raises `ConfigurationError`."""
        self._sources.set(CredentialSources.from_settings(self.store, self._settings))

    async def start(self) -> None:
        """Make the pool; nothing connects yet."""
        dsn = self._settings.POSTGRES_DSN.get_secret_value()
        self._pool.set(await open_pool(dsn, self._settings.POSTGRES_POOL_SIZE))

    async def stop(self, deadline_s: float) -> None:
        """Close what is open."""
        if self._sources.is_set:
            await self._sources.value.close()
        if self._pool.is_set:
            # Closing waits for whoever holds a connection; at the end of a process nobody has a right to one.
            self._pool.value.terminate()

    def health(self) -> Health:
        """PostgreSQL being away stops no running account: never a reason to be restarted."""
        return Health()


class ProjectorService:
    """The projector as a service of the process. A lane that has failed needs a person: it is shown, nothing
    restarts.
    """

    name = "projector"

    def __init__(self, settings: Settings, observer: RuntimeObserver) -> None:
        self._projector: Later[Projector] = Later("the projector")
        self._settings = settings
        self._observer = observer

    async def start(self) -> None:
        """Start projecting in tasks of its own."""
        self._projector.set(Projector(self._settings, self._observer))
        await self._projector.value.start()

    async def stop(self, deadline_s: float) -> None:
        """Finish the batch at hand, leave the group."""
        if self._projector.is_set:
            await self._projector.value.stop(deadline_s)

    def health(self) -> Health:
        """Dead when its task has ended."""
        if not self._projector.is_set:
            return Health(ready=False, reason="not started")
        found = self._projector.value.health()
        detail = {
            "lanes": found.lanes,
            "lanes_ready": found.ready,
            "lanes_failed": len(found.failed),
            "failures": sorted(set(found.failed.values()))[:3],
            "waiting": found.waiting,
        }
        if not found.running:
            return Health(alive=False, ready=False, reason="the projector has ended", detail=detail)
        return Health(detail=detail)


def create_app(
    settings: Settings, *, observer: RuntimeObserver | None = None, attach: Sequence[Service] = ()
) -> StreamsApp:
    """Make the app and everything that runs beside it; connects to nothing.

    `observer` replaces the Prometheus one (then `/metrics` is empty). `attach` adds services of third parties.
    """
    if observer is None:
        prometheus = PrometheusObserver()
        parts = Parts(settings, prometheus, prometheus.exposition)
    else:
        parts = Parts(settings, observer, lambda: (b"", "text/plain"))
    app = StreamsApp(**faust_settings(settings))
    app.parts = parts

    directory = Directory(settings)
    parts.first.append(directory)
    parts.before += [lambda: parts.held.append(take_data_directory(settings)), directory.check]
    parts.checks.append(Check("PostgreSQL", lambda: _migrated(settings)))

    connector = _connector(settings, directory, parts.observer)
    host = Host(settings, connector, parts.observer, worker=settings.WORKER_NAME)
    truths = ProjectedTruths(settings)
    commands = OwnerService(settings, Operations(host, truths), parts.observer)
    host.commands = commands
    parts.owning.append(host)
    plane = attach_control_plane(app, settings=settings, host=host, store=directory.store, observer=parts.observer)
    parts.control.append(FaustService(app, parts.observer, problems=plane.problems))
    if settings.PROJECTION == "worker":
        parts.beside.append(ProjectorService(settings, parts.observer))
    parts.hooks.on_shutdown(truths.close)
    parts.tasks.append(commands)
    parts.tasks.append(job_service(settings, connector, parts.observer))
    parts.beside.extend(attach)
    return app


def _connector(settings: Settings, directory: Directory, observer: RuntimeObserver) -> Connector:
    return Connector(
        settings,
        directory.store,
        directory.sources,
        HostGate(host_policy(settings)),
        client_tls_context(settings.IMAP_CA_FILE),
        observer,
    )


class JobSessions:
    """IMAP sessions for jobs, through the same gate and limits as those of the runners of this process."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    @asynccontextmanager
    async def open(self, account_id: str) -> AsyncIterator[ImapSession]:
        """A session for the block, logged in. Raises `AccountError` (`not_live` among them) or `RetryLater`."""
        link = AccountLink(account_id)
        session = await self._connector.open(link)
        reason = "failed"
        try:
            yield session
            reason = "done"
        except (asyncio.CancelledError, GeneratorExit):
            reason = "cancelled"
            raise
        finally:
            await self._connector.close(session, reason=reason)


def job_service(
    settings: Settings, connector: Connector, observer: RuntimeObserver, *, job_mode: bool = False
) -> JobService:
    """What runs `sync.jobs`, with the product's own handlers and those that WORKER_HANDLERS names; handlers find
    sessions with mail servers as `task.resources["mail"]`. Raises `ConfigurationError`.
    """
    mail = JobSessions(connector)
    exporter = Exporter(mail, settings.EXPORT_DIR, max_message_bytes=settings.IMAP_MAX_LITERAL_BYTES)
    handlers = exporter.handlers()
    handlers.include(load_handlers(settings.WORKER_HANDLERS))
    return JobService(settings, handlers, observer, resources={"mail": mail}, job_mode=job_mode)


async def _migrated(settings: Settings) -> None:
    await migrate(settings.POSTGRES_DSN.get_secret_value())


def faust_settings(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of `faust.App`, each with the reason for its value."""
    options: dict[str, Any] = {
        "id": f"{settings.KAFKA_TOPIC_PREFIX}{settings.KAFKA_GROUP}",
        "origin": "streams",
        "autodiscover": False,
        "broker": [f"kafka://{address.strip()}" for address in settings.KAFKA_BOOTSTRAP_SERVERS.split(",")],
        "broker_client_id": f"{settings.KAFKA_GROUP}-{settings.WORKER_NAME}",
        # Silent peers are replaced after this long; Faust's default is 60 s.
        "broker_session_timeout": settings.KAFKA_SESSION_TIMEOUT_S,
        # Members learn of a rebalance by a heartbeat's answer: this is how long the quickest of them may be held up.
        "broker_heartbeat_interval": min(0.5, settings.KAFKA_SESSION_TIMEOUT_S / 5),
        # Members must rejoin within this; nothing of ours holds up a rebalance.
        "broker_rebalance_timeout": max(30.0, settings.KAFKA_SESSION_TIMEOUT_S),
        "broker_request_timeout": max(40.0, settings.KAFKA_SESSION_TIMEOUT_S + 5),
        "broker_commit_interval": 1.0,
        "consumer_auto_offset_reset": "earliest",
        "topic_partitions": settings.PARTITIONS,
        "topic_replication_factor": settings.KAFKA_REPLICATION_FACTOR,
        # Topics are created and checked by `streams.runtime.topics`; Faust asks the controller at each start, and ends
        # the process when a broker that restarts has none at that moment.
        "topic_allow_declare": False,
        # The leader topic has no use here, and its election is one more thing that a rebalance waits for.
        "topic_disable_leader": True,
        # Loses no event when streams are resumed after a rebalance; Faust's own do.
        "TableManager": "streams.agents.resuming.OrderlyTables",
        "store": "rocksdb://",
        "datadir": settings.DATA_DIR / "faust",
        # Without a standby a takeover replays the changelog.
        "table_standby_replicas": 1,
        "stream_recovery_delay": 0.0,
        # One unacknowledged event would hold a rebalance and a stop.
        "stream_wait_empty": False,
        "stream_buffer_maxsize": 1024,
        # Values are raw bytes, decoded by our own code, where a failure can be dead-lettered.
        "key_serializer": "raw",
        "value_serializer": "raw",
        "producer_acks": -1,
        # What events lead to comes in twos and threes (a record and the changelogs): one request for them.
        "producer_linger": 0.005,
        # A producer that cannot reach a broker must fail in time for a retry, not after twenty minutes.
        "producer_request_timeout": 30.0,
        # The web server shows the content of tables to whoever asks; it is off, and bound to loopback when switched on.
        "web_enabled": settings.WEB_PORT != 0,
        "web_bind": settings.WEB_HOST,
        "web_host": settings.WEB_HOST,
        "web_port": settings.WEB_PORT or 6066,
        "web_tables_enabled": False,
        "web_stats_enabled": False,
        "web_graph_enabled": False,
        "worker_redirect_stdouts": False,
    }
    credentials = faust_credentials(settings)
    if credentials is not None:
        options["broker_credentials"] = credentials
    return options


def faust_credentials(settings: Settings) -> Any:
    """Faust's form of the broker credentials; None for plain connections. Raises `ConfigurationError` for unusable
    files.
    """
    context: ssl.SSLContext | None = settings.kafka_ssl_context()
    if settings.KAFKA_SECURITY_PROTOCOL.startswith("SASL"):
        password = settings.KAFKA_SASL_PASSWORD
        return faust.SASLCredentials(
            username=settings.KAFKA_SASL_USERNAME,
            password=password.get_secret_value() if password is not None else None,
            ssl_context=context,
            mechanism=settings.KAFKA_SASL_MECHANISM,
        )
    return faust.SSLCredentials(context) if context is not None else None


def run_worker(app: StreamsApp, *, log_level: str | None = None, log_file: str | None = None) -> int:
    """Run a worker to its end; returns the exit code.

    Raises `ConfigurationError` for what is wrong before anything connects.
    """
    parts = app.parts
    settings = parts.settings
    extension = Extension(settings, parts.observer, parts.hooks, parts.probes, parts.beside)

    def before() -> None:
        extend(extension, settings.WORKER_EXTENSIONS)
        for check in parts.before:
            check()

    first, beside, owning = Stage(parts.first), Stage(parts.beside), Stage(parts.owning)
    control, tasks = Stage(parts.control), Stage(parts.tasks, uses_grace=True)
    return launch(
        settings,
        # Shards must be there when the first assignment comes, and be done with their transactions when the group is
        # left: peers fence them from that moment on.
        stages=[first, beside, owning, control, tasks],
        stop_order=[tasks, owning, control, beside, first],
        checks=[kafka_check(settings), topics_check(settings, changelog_topics(app)), *parts.checks],
        hooks=parts.hooks,
        observer=parts.observer,
        exposition=parts.exposition,
        custom_probes=parts.probes,
        log_level=log_level,
        log_file=log_file,
        before=before,
    )


def run_job(settings: Settings, *, log_level: str | None = None, log_file: str | None = None) -> int:
    """Run the one-shot process that takes jobs to its end (row W8); returns the exit code.

    It needs Kafka to begin; the directory is asked when a job needs it. Raises `ConfigurationError`.
    """
    settings = settings.model_copy(update={"WORKER_MODE": "job"})
    prometheus = PrometheusObserver()
    directory = Directory(settings)
    jobs = job_service(settings, _connector(settings, directory, prometheus), prometheus, job_mode=True)
    extension = Extension(settings, prometheus)

    def before() -> None:
        extend(extension, settings.WORKER_EXTENSIONS)
        directory.check()

    first, beside = Stage([directory]), Stage(extension.services)
    tasks = Stage([jobs], uses_grace=True)
    return launch(
        settings,
        stages=[first, beside, tasks],
        stop_order=[tasks, beside, first],
        checks=[kafka_check(settings), topics_check(settings, [])],
        hooks=extension.hooks,
        custom_probes=extension.probes,
        observer=prometheus,
        exposition=prometheus.exposition,
        connect_timeout_s=settings.WORKER_JOB_CONNECT_TIMEOUT_S,
        log_level=log_level,
        log_file=log_file,
        before=before,
    )


def changelog_topics(app: StreamsApp) -> list[str]:
    """Full names of the changelogs of Faust's tables."""
    return sorted(str(table.changelog_topic.get_topic_name()) for table in app.tables.values())


def consumer_groups(app: StreamsApp) -> dict[str, list[str]]:
    """Consumer groups that follow topics from their committed offsets, with the full names of those topics."""
    topics = {str(name) for agent in app.agents.values() for name in agent.channel.topics}
    settings = app.parts.settings
    return {str(app.conf.id): sorted(topics), job_group(settings): [settings.topic(JOBS)]}
