"""`faust -A streams accounts` and `keys` on real PostgreSQL, Kafka and Dovecot (issue 3 item 2)."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from click.testing import CliRunner, Result

from streams.cli import accounts, keys
from streams.directory.accounts import AccountStore
from streams.directory.credentials import CredentialBox, StoredPassword, generate_key
from streams.settings import load_settings
from tests.fixtures.services import Broker, MailUser

Run = Callable[..., Awaitable[Result]]
TOPIC = "account.state_changed"


@pytest.fixture
async def environment(
    kafka: Broker, database: str, topic_prefix: str, mail_user: MailUser, tmp_path: Path
) -> dict[str, str]:
    """Settings of a deployment of our own, as environment variables."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic_prefix + TOPIC, num_partitions=1, replication_factor=1)])
    await admin.close()
    return {
        "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "KAFKA_TOPIC_PREFIX": topic_prefix,
        "POSTGRES_DSN": database,
        "PARTITIONS": "1",
        "ENCRYPTION_KEYS": generate_key(),
        "CREDENTIALS_DIR": str(tmp_path),
        "IMAP_ALLOW_PRIVATE": "true",
        "IMAP_CA_FILE": str(mail_user.server.ca_file),
        "MAILSTREAMS_ENV_FILE": "/dev/null",
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Runs a subcommand in this process."""

    async def invoke(
        *arguments: str, stdin: str | None = None, group: Any = accounts.group, **more: str | None
    ) -> Result:
        return await asyncio.to_thread(
            CliRunner().invoke, group, list(arguments), input=stdin, env={**environment, **more}, catch_exceptions=True
        )

    return invoke


def login(user: MailUser, *, port: int | None = None) -> list[str]:
    return [
        "--user", "u1", "--host", "localhost", "--username", user.name,
        "--port", str(port or user.tls_port), "--tls", "tls",
    ]  # fmt: skip


async def announced(environment: dict[str, str]) -> list[dict[str, Any]]:
    """Everything on `account.state_changed`, with its key and type."""
    consumer = AIOKafkaConsumer(
        environment["KAFKA_TOPIC_PREFIX"] + TOPIC,
        bootstrap_servers=environment["KAFKA_BOOTSTRAP_SERVERS"],
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        [partition] = consumer.assignment()
        end = (await consumer.end_offsets([partition]))[partition]
        found = []
        while await consumer.position(partition) < end:
            record = await asyncio.wait_for(consumer.getone(), 10)
            value = json.loads(record.value)
            assert record.key.decode() == value["account_id"]
            assert dict(record.headers)["ce_type"] == TOPIC.encode()
            found.append(value)
        return found
    finally:
        await consumer.stop()


async def test_add_tries_stores_encrypted_and_announces(
    run: Run, environment: dict[str, str], mail_user: MailUser
) -> None:
    result = await run("add", *login(mail_user), "--password-stdin", stdin=mail_user.password + "\n")
    assert result.exit_code == 0, result.output
    account_id = result.stdout.strip()
    assert "login works" in result.stderr
    assert mail_user.password not in result.output
    connection = await asyncpg.connect(environment["POSTGRES_DSN"])
    sealed = await connection.fetchval("SELECT sealed FROM mailstreams.credentials")
    await connection.close()
    assert mail_user.password.encode() not in sealed
    opened = CredentialBox.from_keys([environment["ENCRYPTION_KEYS"]]).open(account_id, sealed)
    assert isinstance(opened, StoredPassword)
    assert opened.password.reveal() == mail_user.password
    [event] = await announced(environment)
    assert (event["account_id"], event["user_id"], event["state"], event["version"]) == (account_id, "u1", "live", 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("password", "refuse"),
        ("port", "could not be reached"),
        ("address", "may be dialled"),
        ("certificate", "certificate"),
    ],
)
async def test_a_login_that_fails_says_why_in_one_sentence_and_stores_nothing(
    wrong: str, says: str, run: Run, environment: dict[str, str], mail_user: MailUser
) -> None:
    more: dict[str, str | None] = {}
    if wrong == "address":
        more["IMAP_ALLOW_PRIVATE"] = "false"
    if wrong == "certificate":
        more["IMAP_CA_FILE"] = None
    result = await run(
        "add",
        *login(mail_user, port=1 if wrong == "port" else None),
        "--password-stdin",
        stdin="s3cret-canary" if wrong == "password" else mail_user.password,
        **more,
    )
    assert result.exit_code == 1, result.output
    assert says in result.stderr.lower()
    assert len(result.stderr.strip().splitlines()) == 1
    assert "s3cret-canary" not in result.output
    listed = await run("list", "--json")
    assert json.loads(listed.stdout) == []
    assert await announced(environment) == []


@pytest.mark.parametrize("more", [[], ["--no-test"]])
async def test_an_account_without_tls_is_refused_before_its_password_is_asked_for(
    more: list[str], run: Run, environment: dict[str, str], mail_user: MailUser
) -> None:
    result = await run("add", *login(mail_user), "--tls", "plain", *more, IMAP_ALLOW_PLAINTEXT="false")
    assert result.exit_code == 1, result.output
    assert result.stderr.strip() == (
        "accounts without TLS are refused while IMAP_ALLOW_PLAINTEXT is off: use --tls tls or starttls, or turn it on."
    )
    assert json.loads((await run("list", "--json")).stdout) == []


async def test_the_password_is_asked_for_without_echo(environment: dict[str, str], mail_user: MailUser) -> None:
    """The real program at a real terminal: what is typed is not shown."""
    parent, child = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "faust", "-A", "streams", "accounts", "add", *login(mail_user),
        stdin=child, stdout=child, stderr=child, env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip
    os.close(child)
    shown = b""

    def read() -> bytes:
        try:
            return os.read(parent, 4096)
        except OSError:
            return b""  # the other end of a terminal is closed

    asked = f"Password for {mail_user.name} at localhost: ".encode()
    try:
        async with asyncio.timeout(60):
            while asked not in shown:
                shown += await asyncio.to_thread(read)
            os.write(parent, mail_user.password.encode() + b"\n")
            while part := await asyncio.to_thread(read):
                shown += part
            code = await process.wait()
    except TimeoutError:
        raise AssertionError(f"it waits for something else: {shown!r}") from None
    finally:
        if process.returncode is None:
            process.kill()  # or the thread that reads would wait for ever
    os.close(parent)
    assert code == 0, shown
    assert b"login works" in shown
    assert mail_user.password.encode() not in shown


async def test_life_of_an_account(run: Run, environment: dict[str, str], mail_user: MailUser) -> None:
    """list, show, disable, enable, remove: each with --json, each announced with the row's version."""
    added = await run("add", *login(mail_user), "--password-stdin", "--json", stdin=mail_user.password)
    account_id = json.loads(added.stdout)["account_id"]
    again = await run("add", *login(mail_user), "--password-stdin", stdin=mail_user.password)
    assert again.exit_code == 1
    assert account_id in again.stderr
    for command, state in (("disable", "disabled"), ("enable", "live"), ("remove", "deleted")):
        more = ["--yes"] if command == "remove" else []
        result = await run(command, account_id, "--json", *more)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["state"] == state
    assert [(e["state"], e["version"]) for e in await announced(environment)] == [
        ("live", 1), ("disabled", 2), ("live", 3), ("deleted", 4),
    ]  # fmt: skip
    assert (await run("enable", account_id)).exit_code == 1
    assert (await run("show", "nonsense")).exit_code == 1
    assert json.loads((await run("list", "--json")).stdout) == []
    [removed] = json.loads((await run("list", "--state", "deleted", "--json")).stdout)
    assert removed["account_id"] == account_id
    shown = json.loads((await run("show", account_id, "--json")).stdout)
    assert (shown["state"], shown["version"], shown["mailboxes"]) == ("deleted", 4, [])
    assert account_id in (await run("show", account_id)).stdout
    readded = await run("add", *login(mail_user), "--password-stdin", stdin=mail_user.password)
    assert readded.exit_code == 0, readded.output
    assert mail_user.name in (await run("list")).stdout


async def test_new_credentials_bring_an_account_back(
    run: Run, environment: dict[str, str], mail_user: MailUser
) -> None:
    added = await run("add", *login(mail_user), "--no-test", "--password-stdin", stdin="old")
    account_id = added.stdout.strip()
    store = await AccountStore.open(load_settings(POSTGRES_DSN=environment["POSTGRES_DSN"]))
    assert await store.set_state(account_id, "error", "credentials_refused", if_version=1) == 2
    result = await run("credentials", account_id, "--password-stdin", "--json", stdin=mail_user.password)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["state"] == "live"
    assert await store.set_state(account_id, "error", if_version=2) is None  # a runner's late verdict on the old one
    await store.close()


async def test_kafka_away_keeps_the_account_and_says_so(run: Run, mail_user: MailUser) -> None:
    result = await run(
        "add", *login(mail_user), "--password-stdin", stdin=mail_user.password, KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1"
    )
    assert result.exit_code == 0, result.output
    assert "not announced" in result.stderr
    assert len(json.loads((await run("list", "--json")).stdout)) == 1


@pytest.mark.parametrize("form", ["csv", "jsonl"])
async def test_import_takes_good_lines_and_names_bad_ones(
    form: str, run: Run, environment: dict[str, str], mail_user: MailUser, tmp_path: Path
) -> None:
    (tmp_path / "mounted").write_text(mail_user.password + "\n")
    base = {"user": "u", "host": "localhost", "port": mail_user.tls_port, "username": mail_user.name}
    lines: list[dict[str, Any]] = [
        {**base, "user": "u1", "password": mail_user.password},
        {**base, "user": "u2", "password": "wrong-canary"},
        {**base, "user": "u3", "secret_ref": "mounted"},
        {**base, "user": "u4", "secret_ref": "../../etc/passwd"},
        {**base, "user": "u5"},
        {**base, "user": "u1", "password": mail_user.password},
    ]
    if form == "csv":
        names = ["user", "host", "port", "username", "password", "secret_ref"]
        text = ",".join(names) + "\n" + "".join(",".join(str(x.get(n, "")) for n in names) + "\n" for x in lines)
        first = 2
    else:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        first = 1
    path = tmp_path / "accounts"
    path.write_text(text)
    result = await run("import", str(path), "--json")
    assert result.exit_code == 1, result.output
    said = {item["line"] - first: item for item in map(json.loads, result.stdout.splitlines())}
    assert {n: said[n]["status"] for n in (1, 2, 3, 4)} == {1: "failed", 2: "added", 3: "failed", 4: "failed"}
    assert {said[0]["status"], said[5]["status"]} == {"added", "exists"}
    assert "wrong-canary" not in result.output
    assert len(await announced(environment)) == 2
    assert "2 added, 1 were there already, 3 failed" in result.stderr


async def test_import_refuses_a_file_it_does_not_understand(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "accounts.csv"
    path.write_text("user,hots,username\n")
    result = await run("import", str(path))
    assert result.exit_code == 2
    assert "hots" in result.stderr


async def test_without_a_key_nothing_is_stored(run: Run, mail_user: MailUser) -> None:
    result = await run("add", *login(mail_user), "--password-stdin", stdin=mail_user.password, ENCRYPTION_KEYS="x")
    assert result.exit_code == 2
    assert "ENCRYPTION_KEYS: key 1 is no Fernet key" in result.stderr


async def test_keys_rotate(run: Run, environment: dict[str, str], mail_user: MailUser) -> None:
    """New key first, rotate, old key away: the account still opens."""
    added = await run("add", *login(mail_user), "--no-test", "--password-stdin", stdin="pw")
    account_id = added.stdout.strip()
    generated = (await run("generate", group=keys.group)).stdout.strip()
    both = f"{generated},{environment['ENCRYPTION_KEYS']}"
    dry = await run("rotate", "--dry-run", "--json", group=keys.group, ENCRYPTION_KEYS=both)
    assert json.loads(dry.stdout)["resealed"] == 1
    done = await run("rotate", "--json", group=keys.group, ENCRYPTION_KEYS=both)
    assert json.loads(done.stdout)["resealed"] == 1
    again = await run("rotate", "--json", group=keys.group, ENCRYPTION_KEYS=generated)
    assert json.loads(again.stdout) == {
        "dry_run": False, "resealed": 0, "current": 1, "changed_meanwhile": 0, "unreadable": 0,
    }  # fmt: skip
    lost = await run("rotate", group=keys.group)
    assert lost.exit_code == 1
    assert account_id in lost.stderr
