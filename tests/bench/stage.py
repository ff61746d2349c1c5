"""What benchmarks share: services of their own, mailboxes filled behind the server's back, results as JSON lines.

A figure is a ratio or a count taken side by side in one run; times of this machine alone say nothing elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.header import Header
from email.utils import formatdate
from pathlib import Path
from random import Random
from typing import Any

import asyncpg

from streams.contracts.keys import partition_for
from streams.directory.accounts import AccountStore, NewAccount
from streams.directory.credentials import CredentialBox, StoredPassword, generate_key
from streams.directory.sources import CredentialSources
from streams.domain.ownership import AccountEntry
from streams.imap.credentials import Secret
from streams.imap.hosts import HostGate, HostPolicy
from streams.imap.tls import client_tls_context
from streams.local.dovecot import Dovecot, DovecotOptions
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from streams.observer import NoopObserver
from streams.projection.migrations import migrate
from streams.runtime.process import new_event_loop
from streams.runtime.topics import TopicAdmin, wanted_topics
from streams.settings import Settings, load_settings
from streams.sync.connections import Connector
from streams.sync.hosting import Host

IMAPFLOW = "2.10.2"


def report(name: str, **figures: Any) -> None:
    """One JSON line."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"bench": name, **rounded}), flush=True)


def run(work: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` on the event loop that the worker uses."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)


class AlwaysMember:
    """A membership that holds: benchmarks have one worker."""

    async def prove(self) -> None:
        """Nothing to prove."""


@dataclass
class Bench:
    """Services and a directory; `host` starts a data plane in this process."""

    directory: Path
    dovecot: Dovecot
    settings: Settings
    store: AccountStore
    box: CredentialBox
    entries: dict[str, AccountEntry]

    async def add(self, user: str, password: str) -> str:
        """An account for a user of the Dovecot."""
        new = NewAccount(
            user_id=user, host="127.0.0.1", port=self.dovecot.port, tls="plain", username=user, auth="password"
        )
        sealed = self.box.seal(new.account_id, StoredPassword(Secret(password)))
        stored = NewAccount(
            user_id=user,
            host="127.0.0.1",
            port=self.dovecot.port,
            tls="plain",
            username=user,
            auth="password",
            sealed=sealed,
            account_id=new.account_id,
        )
        row = await self.store.add(stored)
        self.entries[row.account_id] = AccountEntry(row.account_id, user, "live", row.version)
        return row.account_id

    async def accounts(self, partition: int) -> AsyncIterator[AccountEntry]:
        """Entries of a partition, as the control plane would give them."""
        for entry in list(self.entries.values()):
            if partition_for(entry.account_id, self.settings.PARTITIONS) == partition:
                yield entry

    @asynccontextmanager
    async def host(self, **overrides: Any) -> AsyncIterator[Host]:
        """A data plane that owns every partition."""
        settings = self.settings.model_copy(update=overrides)
        connector = Connector(
            settings,
            self.store,
            CredentialSources(self.store, self.box),
            HostGate(HostPolicy(logins_per_s=1000)),
            client_tls_context(),
            NoopObserver(),
        )
        host = Host(settings, connector, NoopObserver(), worker="bench")
        await host.start()
        await host.assigned(frozenset(range(settings.PARTITIONS)), AlwaysMember(), self.accounts)
        try:
            yield host
        finally:
            await host.stop(5.0)


@asynccontextmanager
async def bench(
    *, partitions: int = 4, options: DovecotOptions | None = None, **overrides: Any
) -> AsyncIterator[Bench]:
    """Kafka, PostgreSQL and Dovecot for one benchmark, gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="ms-bench-"))
    directory.chmod(0o711)
    kafka = Kafka(directory / "kafka")
    postgres = Postgres(directory / "postgres")
    dovecot = Dovecot(directory / "dovecot", options=options or DovecotOptions())
    try:
        await asyncio.gather(kafka.start(), postgres.start(), dovecot.start())
        connection = await asyncpg.connect(postgres.dsn())
        await connection.execute("CREATE DATABASE bench")
        await connection.close()
        os.environ["MAILSTREAMS_ENV_FILE"] = "/dev/null"
        settings = load_settings(
            KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap,
            PARTITIONS=partitions,
            POSTGRES_DSN=postgres.dsn("bench"),
            ENCRYPTION_KEYS=generate_key(),
            IMAP_ALLOW_PRIVATE=True,
            IMAP_ALLOW_PLAINTEXT=True,
            DATA_DIR=directory / "data",
            **overrides,
        )
        await migrate(postgres.dsn("bench"))
        async with TopicAdmin.connected(settings) as admin:
            await admin.create(wanted_topics(settings))
        store = await AccountStore.open(settings)
        try:
            yield Bench(directory, dovecot, settings, store, CredentialBox.from_settings(settings), {})
        finally:
            await store.close()
    finally:
        await asyncio.gather(kafka.stop(), postgres.stop(), dovecot.stop(), return_exceptions=True)
        shutil.rmtree(directory, ignore_errors=True)


def fill(dovecot: Dovecot, user: str, messages: Iterator[bytes], *, folder: str = "INBOX") -> int:
    """Write messages into a Maildir folder; the user must never have logged in."""
    home = dovecot.home(user)
    maildir = home / "mail" if folder == "INBOX" else home / "mail" / folder
    for part in ("cur", "new", "tmp"):
        (maildir / part).mkdir(parents=True, exist_ok=True)
    count = 0
    for count, raw in enumerate(messages, 1):
        path = maildir / "cur" / f"{1_700_000_000 + count}.M{count}P1.bench,S={len(raw)}:2,{'S' if count % 3 else ''}"
        path.write_bytes(raw)
        os.utime(path, (1_700_000_000 + count, 1_700_000_000 + count))
    own(home, dovecot)
    return count


def own(path: Path, dovecot: Dovecot) -> None:
    """Give files to whom the mail of this Dovecot belongs."""
    owner = (dovecot.home("x").parent).stat()
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(path)], check=True)


_WORDS = [
    "order",
    "invoice",
    "meeting",
    "report",
    "attached",
    "update",
    "customer",
    "delivery",
    "project",
    "review",
    "team",
    "schedule",
    "payment",
    "question",
    "release",
    "version",
    "budget",
    "contract",
    "draft",
    "shipping",
    "status",
    "confirm",
    "account",
    "number",
    "monthly",
    "support",
    "ticket",
    "reply",
]
_NAMES = (
    "Anna Schmidt",
    "John Smith",
    "Dr. Karin Olsen",
    "Paul van Dijk",
    "Sales Team",
    "Marta Nowak",
    "Zo\u00eb Bront\u00eb",
)
_DOMAINS = ("example.com", "mail.example.org", "shop.example.net", "lists.example.org")


def realistic(count: int, seed: int = 1) -> Iterator[bytes]:
    """Messages of 2 to 10 KB with headers as senders write them: one name in seven and one subject in four encoded."""
    random = Random(seed)

    def words(number: int) -> str:
        return " ".join(random.choice(_WORDS) for _ in range(number))

    def person() -> str:
        name = random.choice(_NAMES)
        shown = Header(name, "utf-8").encode() if not name.isascii() else f'"{name}"' if "." in name else name
        return f"{shown} <{random.choice(_WORDS)}.{random.randrange(900)}@{random.choice(_DOMAINS)}>"

    for number in range(count):
        subject = words(random.randint(3, 9)).capitalize()
        if random.random() < 0.25:
            subject = Header(subject + " \u2013 Gr\u00f6\u00dfe", "utf-8").encode()
        parent = f"<{random.getrandbits(64):x}@{random.choice(_DOMAINS)}>"
        fields = [
            f"Received: from mx.{random.choice(_DOMAINS)} by relay with ESMTPS id {random.getrandbits(48):x}",
            f"From: {person()}",
            f"To: {', '.join(person() for _ in range(random.randint(1, 3)))}",
            f"Subject: {subject}",
            f"Date: {formatdate(1_700_000_000 + number * 900)}",
            f"Message-ID: <{random.getrandbits(64):x}.{number}@{random.choice(_DOMAINS)}>",
        ]
        if random.random() < 0.4:
            fields.append(f"Cc: {', '.join(person() for _ in range(random.randint(1, 4)))}")
            fields += [f"In-Reply-To: {parent}", f"References: {parent}"]
        body = "\r\n".join(words(11) for _ in range(random.randint(20, 110)))
        fields += ["MIME-Version: 1.0", "Content-Type: text/plain; charset=utf-8"]
        yield ("\r\n".join(fields) + "\r\n\r\n" + body + "\r\n").encode()


def imapflow() -> Path:
    """Directory with the npm package imapflow, installed once per machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mailstreams" / f"imapflow-{IMAPFLOW}"
    if not (cache / "node_modules" / "imapflow").exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(cache), f"imapflow@{IMAPFLOW}"],
            check=True,
        )
    return cache
