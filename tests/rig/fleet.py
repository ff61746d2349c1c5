"""One fleet: settings, topics and database of its own, accounts, workers, and waiting until everything is at rest."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaProducer
from pydantic import SecretStr

from streams.contracts.keys import partition_for
from streams.directory.accounts import AccountStore, NewAccount
from streams.directory.credentials import CredentialBox, StoredPassword, generate_key
from streams.imap.credentials import Secret
from streams.imap.values import TlsMode
from streams.projection.migrations import migrate
from streams.settings import Settings
from tests.rig.letters import ordinary
from tests.rig.mailer import Mailer
from tests.rig.watch import LogWatch
from tests.rig.worker import ROOT, Worker
from tests.storm.checker import rules
from tests.storm.checker.clocks import Jump
from tests.storm.checker.database import read_database
from tests.storm.checker.log import Kafka, read_raw
from tests.storm.checker.server import Login
from tests.storm.checker.truth import Seen, World, check, read_contradicted, read_servers

T = TypeVar("T")

COMMAND_S: Final = 180.0
PREPARED_TRIES: Final = 3
"""A broker that has just come up on a busy machine may need longer for its first topics than the command waits."""
REST_S: Final = 120.0

QUICK: Final[Mapping[str, str]] = {
    "PARTITIONS": "4",
    "KAFKA_SESSION_TIMEOUT_S": "6",
    "POLL_WARM": "1.5",
    "POLL_COLD": "2",
    "TIER_EVALUATION_S": "1",
    "TIER_HOT_ACTIVITY_H": "24",
    "TIER_COLD_AFTER_D": "14",
    "RECONCILE_S": "5",
    "FULL_RECONCILE_S": "10",
    "FLAG_SCAN_S": "2",
    "BACKOFF_MIN_S": "0.2",
    "BACKOFF_MAX_S": "2",
    "IMAP_CONNECT_TIMEOUT_S": "5",
    "IMAP_COMMAND_TIMEOUT_S": "15",
    "HOST_LOGINS_PER_S": "200",
    "WORKER_SHUTDOWN_GRACE_S": "10",
    "LOG_FORMAT": "json",
}
"""Cadences of production are minutes; a test has seconds."""


class Fleet:
    """Everything that belongs together. Made with `running_fleet`."""

    def __init__(
        self,
        directory: Path,
        *,
        bootstrap: str,
        prefix: str,
        dsn: str,
        settings: Mapping[str, str] | None = None,
        seed: int = 0,
        module: str = "streams",
        worker_settings: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`worker_settings` are of workers by name: addresses of their proxies; the fleet itself goes around them."""
        self.directory = directory
        self.kafka = Kafka(bootstrap, prefix)
        self.dsn = dsn
        self.random = random.Random(seed)
        self.environment: dict[str, str] = {
            **QUICK,
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "KAFKA_TOPIC_PREFIX": prefix,
            "POSTGRES_DSN": dsn,
            "ENCRYPTION_KEYS": generate_key(),
            "IMAP_ALLOW_PRIVATE": "true",
            "IMAP_ALLOW_PLAINTEXT": "true",
            "MAILSTREAMS_ENV_FILE": "/dev/null",
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            **(settings or {}),
        }
        self.worker_settings = dict(worker_settings or {})
        self._module = module
        self.workers: dict[str, Worker] = {}
        self.mailers: dict[str, Mailer] = {}
        self.users: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.secrets: list[str] = self.environment["ENCRYPTION_KEYS"].split(",")
        self.commands: set[str] = set()
        self.jumps: list[Jump] = []
        self.watch = LogWatch(self.kafka)
        self.producer: AIOKafkaProducer

    @property
    def partitions(self) -> int:
        """How many partitions each topic has."""
        return int(self.environment["PARTITIONS"])

    # --- setting up
    async def prepare(self) -> None:
        """Topics and database schema, as an operator makes them."""
        for _ in range(PREPARED_TRIES):
            code, output = await self.run("topics")
            if code == 0:
                break
        assert code == 0, f"topics: exit code {code}\n{output}"
        await migrate(self.dsn)

    async def run(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """`faust -A streams ...`: exit code and output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "faust", "-A", "streams", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**self.environment, "PYTHONPATH": str(ROOT), "DATA_DIR": str(self.directory / "cli")},
            cwd=self.directory,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), COMMAND_S)
        except TimeoutError:
            process.kill()
            raise
        assert process.returncode is not None
        return process.returncode, output.decode("utf-8", "replace")

    async def add(
        self,
        name: str,
        password: str,
        host: str,
        port: int,
        *,
        user_id: str | None = None,
        partition: int | None = None,
        tls: TlsMode = "plain",
        dial: tuple[str, int] | None = None,
        announce: bool = True,
        age: timedelta = timedelta(0),
        stored_password: str | None = None,
    ) -> Mailer:
        """Store an account and announce it. The client goes to host and port; the workers to `dial` when given, and
        with `stored_password` instead of the right one. `age` is how old the mail is that the client appends.
        """
        account = self._account_id(partition)
        settings = self._settings()
        box = CredentialBox.from_settings(settings)
        store = await AccountStore.open(settings)
        dial_host, dial_port = dial or (host, port)
        try:
            row = await store.add(
                NewAccount(
                    user_id=user_id or f"user-{account[:8]}",
                    host=dial_host,
                    port=dial_port,
                    tls=tls,
                    username=name,
                    auth="password",
                    sealed=box.seal(account, StoredPassword(Secret(stored_password or password))),
                    account_id=account,
                )
            )
        finally:
            await store.close()
        mailer = Mailer(Login(account, host, port, name, password), age=age)
        self.mailers[account] = mailer
        self.users[account] = row.user_id
        self.versions[account] = row.version
        self.secrets.extend({password, stored_password or password})
        if announce:
            await self.announce(account, "live")
        return mailer

    def _settings(self) -> Settings:
        keys = SecretStr(self.environment["ENCRYPTION_KEYS"])
        return Settings(ENCRYPTION_KEYS=keys, POSTGRES_DSN=SecretStr(self.dsn))

    def _account_id(self, partition: int | None) -> str:
        while True:
            account = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
            if partition is None or partition_for(account, self.partitions) == partition:
                return account

    def start_worker(self, name: str, **changes: str) -> Worker:
        """Start a worker; does not wait."""
        worker = self.workers.get(name)
        if worker is None:
            environment = {**self.environment, **self.worker_settings.get(name, {})}
            worker = self.workers[name] = Worker(name, self.directory, environment, module=self._module)
        worker.start(**changes)
        return worker

    async def ready_worker(self, name: str, **changes: str) -> Worker:
        """Start a worker and wait until it is ready."""
        worker = self.start_worker(name, **changes)
        await worker.ready()
        return worker

    # --- what other services say
    async def produce(self, topic: str, key: str, value: Any, *, partition: int | None = None) -> None:
        """Write a record into a topic: JSON, or bytes as they are."""
        raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        await self.producer.send_and_wait(self.kafka.topic(topic), raw, key=key.encode(), partition=partition)

    async def announce(self, account: str, state: str, *, version: int | None = None) -> None:
        """`account.state_changed`."""
        event = {
            "account_id": account,
            "user_id": self.users[account],
            "state": state,
            "version": version if version is not None else self.versions[account],
            "at": now(),
        }
        await self.produce("account.state_changed", account, event)

    async def change_state(self, account: str, state: str) -> None:
        """Change the state in the database, where the truth is, and announce it, as the product's API does."""
        store = await AccountStore.open(self._settings())
        try:
            version = await store.set_state(account, state, reason=None)
        finally:
            await store.close()
        assert version is not None
        self.versions[account] = version
        await self.announce(account, state)

    async def active(self, account: str, source: str = "login") -> None:
        """`user.active` for the user of an account."""
        user = self.users[account]
        await self.produce("user.active", user, {"user_id": user, "source": source, "at": now()})

    async def command(
        self, account: str, kind: str, topic: str = "sync.commands", *, command_id: str | None = None, **args: Any
    ) -> str:
        """Send a command, or one that was sent before again; returns its id."""
        command_id = command_id or f"c-{self.random.getrandbits(64):016x}"
        self.commands.add(command_id)
        value = {"command_id": command_id, "account_id": account, "kind": kind, "args": args, "at": now()}
        await self.produce(topic, account, value)
        return command_id

    # --- the end
    def world(self, *, stopped: Iterable[str] = ()) -> World:
        """What the checker needs to know."""
        return World(
            kafka=self.kafka,
            dsn=self.dsn,
            logins=[mailer.login for mailer in self.mailers.values()],
            journals={account: mailer.journal for account, mailer in self.mailers.items()},
            commands=frozenset(self.commands),
            secrets=self.secrets,
            logs=[worker.log for worker in self.workers.values()],
            outside=self._outside,
            jumps=self.jumps,
            stopped=frozenset(stopped),
        )

    def _outside(self) -> Iterator[tuple[str, bytes]]:
        for worker in self.workers.values():
            yield from worker.outside()

    async def at_rest(
        self, *, within_s: float = REST_S, stopped: Iterable[str] = (), marker: bool = True, strict: bool = True
    ) -> Seen:
        """Wait until log and database have caught up with the mail servers, then check everything.

        With `marker` it is done twice, with a new message in each account between: what comes late, comes before it.
        Not `strict`: what does not come to rest in time is left to the check's report, and nothing is raised.
        """
        still = frozenset(stopped)
        try:
            await self._come_to_rest(within_s, still, marker=marker)
        except AssertionError:
            if strict:
                raise
        seen = await check(self.world(stopped=still))
        if strict:
            seen.report.require_true()
        return seen

    async def _come_to_rest(self, within_s: float, still: frozenset[str], *, marker: bool) -> None:
        await self.caught_up(within_s=within_s, stopped=still)
        if marker:
            for account, mailer in self.mailers.items():
                if account not in still:
                    letter = ordinary(self.random.getrandbits(40), subject="marker")
                    await asyncio.to_thread(mailer.append, "INBOX", letter)
            await self.caught_up(within_s=within_s, stopped=still)
        await self.projected(within_s=within_s)

    async def caught_up(self, *, within_s: float = REST_S, stopped: Iterable[str] = ()) -> None:
        """Wait until the log says what the servers say now."""
        still = frozenset(stopped)
        logins = [mailer.login for account, mailer in self.mailers.items() if account not in still]
        servers = await read_servers(logins)
        refused = await read_contradicted(logins, servers)
        open_ = dict(servers)

        def all_told() -> bool:
            for name in list(open_):
                if next(rules.log_against_server(self.watch.account(name), open_[name], refused[name]), None) is None:
                    del open_[name]
            return not open_

        try:
            await self.watch.until(all_told, within_s=within_s, what="the log says what the mail servers say")
        except AssertionError as error:
            missing = [
                str(finding)
                for name, server in open_.items()
                for finding in list(rules.log_against_server(self.watch.account(name), server, refused[name]))[:5]
            ]
            raise AssertionError("\n".join([str(error), "still different:", *missing[:20], self._tails()])) from None

    async def projected(self, *, within_s: float = REST_S) -> None:
        """Wait until the projection stands at the end of the log."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            behind = list(rules.positions(await read_database(self.dsn), "mailbox.changes", self.watch.events))
            if not behind:
                return
            if loop.time() > deadline:
                raise AssertionError("\n".join(["the projection is behind:", *map(str, behind), self._tails()]))
            await asyncio.sleep(0.25)

    def _tails(self) -> str:
        return "\n".join(
            f"--- {worker.name} (running: {worker.running})\n{worker.tail(25)}" for worker in self.workers.values()
        )

    async def tiers(self) -> dict[str, str]:
        """The tier of each account as `account.tier_changed` has it."""
        found: dict[str, str] = {}
        async for raw in read_raw(self.kafka, "account.tier_changed"):
            if raw.value:
                found[(raw.key or b"").decode()] = json.loads(raw.value)["tier"]
        return found

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """The latest `account.sync_status` of each account."""
        found: dict[str, dict[str, Any]] = {}
        async for raw in read_raw(self.kafka, "account.sync_status"):
            if raw.value:
                found[(raw.key or b"").decode()] = json.loads(raw.value)
        return found

    async def eventually(
        self, ask: Callable[[], Awaitable[T]], good: Callable[[T], Any], *, within_s: float = 30.0, what: str = ""
    ) -> T:
        """Ask until the answer is good. Raises `AssertionError` with the last answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not good(answer := await ask()):
            if loop.time() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {what or good}; last: {answer}\n{self._tails()}")
            await asyncio.sleep(0.2)
        return answer

    async def concluded(self, command_id: str, *, within_s: float = 60.0) -> dict[str, Any]:
        """Wait for the end of a command; returns its success or failure."""

        async def told() -> list[dict[str, Any]]:
            bodies = [json.loads(raw.value or b"{}") async for raw in read_raw(self.kafka, "sync.command_events")]
            return [b for b in bodies if b.get("command_id") == command_id and b.get("type") in ("success", "failure")]

        return (await self.eventually(told, bool, within_s=within_s, what=f"{command_id} is concluded"))[0]


def now() -> str:
    """The time, as records carry it."""
    return datetime.now(UTC).isoformat()


@asynccontextmanager
async def running_fleet(directory: Path, **options: Any) -> AsyncIterator[Fleet]:
    """A fleet with its topics and schema, without workers yet. At the end every worker is killed."""
    fleet = Fleet(directory, **options)
    async with AsyncExitStack() as stack:
        await fleet.prepare()
        fleet.producer = AIOKafkaProducer(bootstrap_servers=fleet.kafka.bootstrap, enable_idempotence=True)
        await fleet.producer.start()
        stack.push_async_callback(fleet.producer.stop)
        await stack.enter_async_context(fleet.watch)
        try:
            yield fleet
        finally:
            for worker in fleet.workers.values():
                await worker.kill()
            for mailer in fleet.mailers.values():
                await asyncio.to_thread(mailer.close)
