"""Whole workers over a light mail host: Kafka, PostgreSQL and thousands of accounts, and who is watched when."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
from pydantic import SecretStr

from streams.directory.accounts import AccountStore, NewAccount
from streams.directory.credentials import CredentialBox, StoredPassword
from streams.imap.credentials import Secret
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from streams.settings import Settings
from tests.bench.imap_host import many_files
from tests.bench.watched_mail import PASSWORD, Happened, WatchedMail, watched_mail
from tests.rig.fleet import Fleet, now, running_fleet

AS_IN_PRODUCTION: Final[Mapping[str, str]] = {
    "PARTITIONS": "64",
    "KAFKA_SESSION_TIMEOUT_S": "10",
    "POLL_WARM": "3600",
    "POLL_COLD": "7200",
    "TIER_EVALUATION_S": "120",
    "RECONCILE_S": "300",
    "FULL_RECONCILE_S": "86400",
    "FLAG_SCAN_S": "3600",
    "BACKOFF_MIN_S": "1",
    "BACKOFF_MAX_S": "60",
    "IMAP_CONNECT_TIMEOUT_S": "20",
    "IMAP_COMMAND_TIMEOUT_S": "60",
    "HOST_LOGINS_PER_S": "100000",
    "WORKER_SHUTDOWN_GRACE_S": "30",
}
"""Cadences of the product, but that polls do not come between and the host takes logins as fast as they come."""

AT_ONCE: Final = 16

AT_REST_FOR_S: Final = 2.0
AT_REST_LATE_S: Final = 0.05
"""A worker whose loop was late by no more than this for that long is at rest."""


@dataclass
class Deployment:
    """One fleet and its mail host. Users are accounts, by the same name."""

    fleet: Fleet
    mail: WatchedMail
    settings: Settings
    accounts: dict[str, str] = field(default_factory=dict)

    async def add(self, users: Iterable[str]) -> None:
        """Store accounts; nobody is told yet."""
        box = CredentialBox.from_settings(self.settings)
        store = await AccountStore.open(self.settings)
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(user: str) -> None:
            account = self.fleet._account_id(None)
            new = NewAccount(
                user_id=user,
                host="127.0.0.1",
                port=self.mail.port,
                tls="plain",
                username=user,
                auth="password",
                sealed=box.seal(account, StoredPassword(Secret(PASSWORD))),
                account_id=account,
            )
            async with gate:
                row = await store.add(new)
            self.accounts[user] = account
            self.fleet.users[account] = user
            self.fleet.versions[account] = row.version

        try:
            await asyncio.gather(*(one(user) for user in users))
        finally:
            await store.close()

    async def announce(self, users: Iterable[str]) -> None:
        """`live` for each."""
        topic = self.fleet.kafka.topic("account.state_changed")
        for user in users:
            account = self.accounts[user]
            event = {
                "account_id": account,
                "user_id": user,
                "state": "live",
                "version": self.fleet.versions[account],
                "at": now(),
            }
            await self.fleet.producer.send(topic, json.dumps(event).encode(), key=account.encode())
        await self.fleet.producer.flush()

    async def until(self, condition: Callable[[], Any], within_s: float, what: str) -> float:
        """Take what happens at the mail host until the condition holds; returns the seconds it took."""
        began = time.monotonic()
        while True:
            await self.mail.take()
            if condition():
                return time.monotonic() - began
            if time.monotonic() - began > within_s:
                raise AssertionError(f"not within {within_s:g} s: {what}\n{self.fleet._tails()}")
            await asyncio.sleep(0.25)

    async def at_rest(self, *probes: Path, within_s: float = 60.0) -> None:
        """Until nothing happened at the mail host, and no probed loop was late, for some time."""
        seen, since = len(self.mail.happened), time.time()

        def quiet() -> bool:
            nonlocal seen, since
            now = time.time()
            late = [each for path in probes for line in probe_lines(path, since, now) for each in line["late_s"]]
            if len(self.mail.happened) > seen or max(late, default=0.0) > AT_REST_LATE_S:
                seen, since = len(self.mail.happened), now
            return now - since > AT_REST_FOR_S

        await self.until(quiet, within_s, "the workers are at rest")

    def watched(self) -> set[str]:
        """Users with an IDLE that stands."""
        return {each.user for each in standing(self.mail.happened).values()}

    def logged_in(self) -> set[str]:
        """Users that were ever logged in."""
        return {each.user for each in self.mail.happened if each.what == "login"}

    def open_connections(self) -> int:
        """Connections that are logged in."""
        came = sum(each.what == "login" for each in self.mail.happened)
        return came - sum(each.what == "closed" for each in self.mail.happened)


def standing(happened: Sequence[Happened]) -> dict[int, Happened]:
    """The IDLEs that stand after all this, by connection."""
    found: dict[int, Happened] = {}
    for each in happened:
        if each.what == "idle":
            found[each.connection] = each
        elif each.what in ("done", "closed"):
            found.pop(each.connection, None)
    return found


def first(happened: Iterable[Happened], what: str, user: str, since: float) -> float:
    """Seconds from `since` until the user's client did this for the first time."""
    return min(each.at for each in happened if each.what == what and each.user == user and each.at >= since) - since


@asynccontextmanager
async def deployment(users: Sequence[tuple[str, int, float]], **settings: str) -> AsyncIterator[Deployment]:
    """Services, the mail host with its users (see `watched_mail`) and a fleet without workers; all gone afterwards."""
    many_files()
    directory = Path(tempfile.mkdtemp(prefix="ms-bench-"))
    directory.chmod(0o711)
    kafka, postgres = Kafka(directory / "kafka"), Postgres(directory / "postgres")
    try:
        await asyncio.gather(kafka.start(), postgres.start())
        connection = await asyncpg.connect(postgres.dsn())
        await connection.execute("CREATE DATABASE bench")
        await connection.close()
        async with (
            watched_mail(users) as mail,
            running_fleet(
                directory,
                bootstrap=kafka.bootstrap,
                prefix="b.",
                dsn=postgres.dsn("bench"),
                settings={**AS_IN_PRODUCTION, **settings},
                module="tests.bench.probed_worker",
            ) as fleet,
        ):
            own = Settings(
                KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap,
                KAFKA_TOPIC_PREFIX="b.",
                PARTITIONS=fleet.partitions,
                ENCRYPTION_KEYS=SecretStr(fleet.environment["ENCRYPTION_KEYS"]),
                POSTGRES_DSN=SecretStr(postgres.dsn("bench")),
            )
            yield Deployment(fleet, mail, own)
    finally:
        await asyncio.gather(kafka.stop(), postgres.stop(), return_exceptions=True)
        shutil.rmtree(directory, ignore_errors=True)


def probe_lines(path: Path, began: float, ended: float) -> list[dict[str, Any]]:
    """What a probed worker wrote between two moments (unix time)."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if began < line["at"] <= ended]


def milliseconds(seconds: Iterable[float], prefix: str = "") -> dict[str, float]:
    """p50, p99 and the largest; nothing of nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return {}

    def at(part: float) -> float:
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1000

    return {f"{prefix}p50_ms": at(0.5), f"{prefix}p99_ms": at(0.99), f"{prefix}max_ms": ordered[-1] * 1000}
