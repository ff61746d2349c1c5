"""The order of the demo: services, product, two accounts with some history, then mail for as long as it runs.

Invariant: whatever ends it, everything it started is stopped and everything it made is removed.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
from aiokafka import AIOKafkaProducer
from cryptography.fernet import Fernet
from rich.console import Console

import streams
from streams.contracts.account import UserActive
from streams.contracts.codec import encode
from streams.contracts.topics import CHANGES, USER_ACTIVE
from streams.local.demo.deeds import Deeds
from streams.local.demo.postman import MAIL_ERRORS, Mailbox, Postman
from streams.local.demo.product import Worker, account_id_of, command
from streams.local.demo.view import View
from streams.local.demo.watch import Watch
from streams.local.errors import ServiceFailed
from streams.local.ports import free_port
from streams.local.stack import LocalStack

USERS = ("ada", "grace")
HISTORY = 12  # messages of each account that are there before anybody synchronises
CAUGHT_UP_DEADLINE_S = 120.0
PAUSE_S = (0.4, 1.6)  # between two deeds
SETTLE_S = 4.0  # for the events of the last deeds
CONNECT_S = 20.0

# Cadences of production are minutes; nobody watches a demo that long. The environment may set all of them otherwise.
DEMO_SETTINGS = {
    "PARTITIONS": "8",
    "POLL_WARM": "5",
    "POLL_COLD": "15",
    "TIER_EVALUATION_S": "10",
    "RECONCILE_S": "30",
    "WORKER_SHUTDOWN_GRACE_S": "5",
    "WORKER_NAME": "demo",
}

_REMARKS = {"Dovecot": "Dovecot holds its notices back for up to 0.5 s by itself; that time is in every figure."}


@dataclass(slots=True)
class Progress:
    """Says what is going on during set-up, with the time since it began."""

    console: Console
    began: float = field(default_factory=time.monotonic)

    def __call__(self, line: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/]  {line}", highlight=False, soft_wrap=True)


class Demo:
    """One run. `interrupt()` ends it: during set-up at once, later as if its time were over."""

    def __init__(self, console: Console, seconds: float | None) -> None:
        """`seconds` is how long mail flows; None is until it is interrupted."""
        self._console = console
        self._seconds = seconds
        self._progress = Progress(console)
        self._chance = random.Random()
        self._task: asyncio.Task[bool] | None = None
        self._enough = asyncio.Event()
        self._flowing = False

    async def run(self) -> bool:
        """Whether mail flowed. Raises `LocalStackError` when it could not, `CancelledError` when interrupted before."""
        self._task = asyncio.create_task(self._run(), name="demo")
        return await self._task

    def interrupt(self) -> None:
        """End it. Once is enough: stopping has deadlines of its own."""
        if self._flowing or self._task is None:
            self._enough.set()
        elif not self._task.cancelling():
            self._task.cancel()

    async def _run(self) -> bool:
        async with AsyncExitStack() as ends:
            stack = await ends.enter_async_context(LocalStack(progress=self._progress))
            settings = await ends.enter_async_context(_settings(stack))
            boxes = _mailboxes(stack)
            self._progress(f"{stack.mail.name}: {HISTORY * len(boxes)} messages of history")
            await self._write_history(boxes)
            self._progress("topics: faust -A streams topics")
            await command(settings, "topics")
            self._progress("accounts: faust -A streams accounts add")
            await _add_accounts(settings, boxes)
            self._progress("worker: faust -A streams worker")
            worker = Worker(stack.directory, settings, free_port())
            ends.push_async_callback(worker.stop)
            await worker.start()
            watch = Watch(Deeds(), settings["KAFKA_TOPIC_PREFIX"] + CHANGES)
            reading = watch.running(settings["KAFKA_BOOTSTRAP_SERVERS"], settings["POSTGRES_DSN"])
            await ends.enter_async_context(reading)
            await _caught_up(watch, worker, boxes)
            self._progress(f"history is in the log: {watch.counts['message.added']} messages")
            await _say_active(settings, boxes)
            names = {box.account_id: box.user for box in boxes}
            view = View(self._console, watch, names, _hints(stack, settings, worker))
            await self._flow(view, watch, worker, boxes)
            self._progress("stopping")
        return view.summary(_REMARKS.get(stack.mail.name, ""))

    async def _write_history(self, boxes: Sequence[Mailbox]) -> None:
        historian = Postman(Deeds(), self._chance)
        try:
            for box in boxes:
                for _ in range(HISTORY):
                    await asyncio.to_thread(historian.deliver, box)
        finally:
            await asyncio.to_thread(historian.close)

    async def _flow(self, view: View, watch: Watch, worker: Worker, boxes: Sequence[Mailbox]) -> None:
        """Do things to the mailboxes and show what comes of it, until the time is over or it was interrupted."""
        view.show_hints()
        self._flowing = True
        ends = [
            asyncio.create_task(view.run(), name="view"),
            asyncio.create_task(self._enough.wait(), name="enough"),
            asyncio.create_task(worker.ended(), name="worker"),
        ]
        posting = asyncio.create_task(self._post(watch.deeds, boxes), name="post")
        try:
            done, _ = await asyncio.wait({*ends, posting}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            posting.cancel()
            for task in done:
                if task.get_name() != "enough":
                    task.result()
            settled = time.monotonic() + SETTLE_S
            while (watch.deeds.waiting or watch.unstored) and time.monotonic() < settled and not ends[2].done():
                await asyncio.sleep(0.05)
        finally:
            for task in (*ends, posting):
                task.cancel()
            await asyncio.gather(*ends, posting, return_exceptions=True)

    async def _post(self, deeds: Deeds, boxes: Sequence[Mailbox]) -> None:
        postman = Postman(deeds, self._chance)
        try:
            while True:
                try:
                    await asyncio.to_thread(postman.act, self._chance.choice(boxes))
                except MAIL_ERRORS as error:
                    raise ServiceFailed("mail server", f"refuses the postman: {error}") from error
                await asyncio.sleep(self._chance.uniform(*PAUSE_S))
        finally:
            postman.close()


@asynccontextmanager
async def _settings(stack: LocalStack) -> AsyncIterator[dict[str, str]]:
    """The environment of the product. In services that are not ours it gets topics and a database of its own."""
    settings = DEMO_SETTINGS | os.environ | stack.environment()
    settings |= {"ENCRYPTION_KEYS": Fernet.generate_key().decode(), "DATA_DIR": str(stack.directory / "worker")}
    settings["MAILSTREAMS_ENV_FILE"] = os.devnull  # what is in a .env here is meant for another cluster
    if "LOG_FORMAT" not in os.environ:
        settings["LOG_FORMAT"] = "console"
    # Found also when the package is used from its tree without being installed.
    tree = str(Path(streams.__file__).parents[1])
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, (tree, os.environ.get("PYTHONPATH"))))
    unique = f"demo{secrets.token_hex(3)}"
    settings["KAFKA_TOPIC_PREFIX"] = "" if stack.kafka is not None else f"{unique}."
    if stack.postgres is not None:
        yield settings
        return
    given = settings["POSTGRES_DSN"]
    settings["POSTGRES_DSN"] = urlsplit(given)._replace(path=f"/{unique}").geturl()
    await _execute(given, f'CREATE DATABASE "{unique}"')
    try:
        yield settings
    finally:
        await _execute(given, f'DROP DATABASE IF EXISTS "{unique}" WITH (FORCE)')


async def _execute(dsn: str, statement: str) -> None:
    try:
        connection = await asyncpg.connect(dsn, timeout=CONNECT_S)
    except (OSError, asyncpg.PostgresError, TimeoutError) as error:
        raise ServiceFailed("PostgreSQL", f"POSTGRES_DSN cannot be used: {error}") from error
    try:
        await connection.execute(statement)
    finally:
        await connection.close(timeout=CONNECT_S)


def _mailboxes(stack: LocalStack) -> list[Mailbox]:
    boxes = []
    for user in USERS:
        password = secrets.token_urlsafe(12)
        stack.mail.add_user(user, password)
        box = Mailbox(user, password, stack.mail.host, stack.mail.port, stack.mail.ca_file)
        box.keywords = stack.mail.name == "Dovecot"
        boxes.append(box)
    return boxes


async def _add_accounts(settings: Mapping[str, str], boxes: Sequence[Mailbox]) -> None:
    for box in boxes:
        where = ("--host", box.host, "--port", str(box.port), "--tls", "starttls")
        who = ("--user", box.user, "--username", box.user, "--password-stdin", "--json")
        box.account_id = account_id_of(await command(settings, "accounts", "add", *who, *where, secret=box.password))


async def _caught_up(watch: Watch, worker: Worker, boxes: Sequence[Mailbox]) -> None:
    """Wait until every account was looked at once, and what it holds is in the database."""
    ended = asyncio.create_task(worker.ended())
    try:
        async with asyncio.timeout(CAUGHT_UP_DEADLINE_S):
            while not _complete(watch, boxes):
                watch.check()
                if ended.done():
                    ended.result()
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        late = f"did not catch up with the history within {CAUGHT_UP_DEADLINE_S:.0f} s"
        raise ServiceFailed("worker", late, worker.tail()) from error
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


def _complete(watch: Watch, boxes: Sequence[Mailbox]) -> bool:
    """Whether every account was looked at, every mailbox's history is in the log, and all of it in the database."""
    filled = watch.counts["backfill.completed"] >= watch.counts["mailbox.discovered"]
    return filled and not watch.unstored and {box.account_id for box in boxes} <= watch.caught_up


async def _say_active(settings: Mapping[str, str], boxes: Sequence[Mailbox]) -> None:
    """Tell the product that the users are here, as another service would: their accounts become hot."""
    producer = AIOKafkaProducer(bootstrap_servers=settings["KAFKA_BOOTSTRAP_SERVERS"])
    async with producer:
        for box in boxes:
            active = UserActive(user_id=box.user, source="login", at=datetime.now(UTC))
            topic = settings["KAFKA_TOPIC_PREFIX"] + USER_ACTIVE
            await producer.send_and_wait(topic, encode(active), key=box.user.encode())


def _hints(stack: LocalStack, settings: Mapping[str, str], worker: Worker) -> list[tuple[str, str]]:
    python = os.path.relpath(sys.executable) if sys.executable.startswith(str(Path.cwd())) else sys.executable
    kafka, prefix, dsn = settings["KAFKA_BOOTSTRAP_SERVERS"], settings["KAFKA_TOPIC_PREFIX"], settings["POSTGRES_DSN"]
    psql = str(stack.postgres.psql) if stack.postgres is not None else "psql"
    if psql.startswith(str(Path.cwd())):
        psql = os.path.relpath(psql)
    newest = "select sort_at, from_name, subject from mail.messages order by sort_at desc limit 10"
    return [
        ("rows", f'{psql} {dsn} -c "{newest}"'),
        ("topic", f"{python} -m streams.local.tail {kafka} {prefix}{CHANGES}"),
        ("probes", f"curl -s 127.0.0.1:{worker.probe_port}/ready   (also /health and /metrics)"),
        ("log", f"tail -f {worker.log}"),
    ]
