"""The services that everything else is tested on: they work, and survive what tests do to them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from imapclient.exceptions import LoginError

from streams.local.dovecot import Dovecot, DovecotOptions
from streams.local.errors import DirectoryInUse, ServiceFailed
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from streams.local.process import ChildProcess
from streams.local.pymap_server import PymapServer
from streams.local.stack import LocalStack
from tests.fixtures.services import Broker, MailUser

DEADLINE_S = 60.0
MESSAGE = b"From: ada@example.test\r\nSubject: hello\r\n\r\nwhat a day\r\n"


async def _produce(bootstrap: str, topic: str, *values: bytes, create: bool = True) -> None:
    if create:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        await admin.close()
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
        producer.transaction(),
    ):
        for value in values:
            await producer.send(topic, value)


async def _consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(topic, 0)])
    async with asyncio.timeout(DEADLINE_S), consumer:
        return [(await consumer.getone()).value for _ in range(count)]


async def test_kafka_takes_and_gives(kafka: Broker, topic_prefix: str) -> None:
    topic = f"{topic_prefix}events"
    await _produce(kafka.bootstrap, topic, b"one", b"two")
    assert await _consume(kafka.bootstrap, topic, 2) == [b"one", b"two"]


async def test_kafka_keeps_port_and_data_through_stop_and_kill(private_kafka: Kafka) -> None:
    address = private_kafka.bootstrap
    await _produce(address, "events", b"one")
    await private_kafka.stop()
    await private_kafka.start()
    await _produce(address, "events", b"two", create=False)
    await private_kafka.kill()
    await private_kafka.start()
    assert private_kafka.bootstrap == address
    assert await _consume(address, "events", 2) == [b"one", b"two"]


async def test_postgres_gives_each_test_its_own_database(database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE mail (uid bigint)")
    await connection.execute("INSERT INTO mail VALUES (7)")
    assert await connection.fetchval("SELECT uid FROM mail") == 7
    assert await connection.fetchval("SHOW server_encoding") == "UTF8"
    await connection.close()


async def test_postgres_keeps_port_and_data_through_stop_and_kill(private_postgres: Postgres) -> None:
    dsn = private_postgres.dsn()
    for restart in (private_postgres.stop, private_postgres.kill):
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE IF NOT EXISTS mail (uid bigint)")
        await connection.execute("INSERT INTO mail VALUES (7)")
        await restart()
        connection.terminate()
        with pytest.raises(OSError):
            await asyncpg.connect(dsn, timeout=5)
        await private_postgres.start()
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT count(*) FROM mail") == 2
    await connection.close()


async def test_paused_postgres_is_silent_and_goes_on(private_postgres: Postgres) -> None:
    connection = await asyncpg.connect(private_postgres.dsn())
    private_postgres.pause()
    with pytest.raises(TimeoutError):
        await connection.fetchval("SELECT 1", timeout=0.3)
    private_postgres.resume()
    connection.terminate()
    connection = await asyncpg.connect(private_postgres.dsn(), timeout=10)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


@pytest.mark.parametrize("tls", [False, True])
def test_dovecot_keeps_mail(mail_user: MailUser, tls: bool) -> None:
    with mail_user.client(tls=tls) as client:
        assert {b"QRESYNC", b"CONDSTORE", b"LIST-STATUS", b"NOTIFY", b"COMPRESS=DEFLATE"} <= set(client.capabilities())
        client.append("INBOX", MESSAGE, flags=[b"\\Flagged"])
        client.select_folder("INBOX", readonly=True)
        fetched = client.fetch([1], ["FLAGS", "BODY.PEEK[]"])
    assert b"\\Flagged" in fetched[1][b"FLAGS"]
    assert fetched[1][b"BODY[]"] == MESSAGE
    assert mail_user.server.logins(mail_user.name) == 1


def test_plain_dovecot_hides_condstore_and_qresync(plain_mail_user: MailUser) -> None:
    with plain_mail_user.client() as client:
        shown = set(client.capabilities())
    assert {b"IDLE", b"LIST-STATUS"} <= shown
    assert not {b"QRESYNC", b"CONDSTORE"} & shown


async def test_dovecot_refuses_wrong_passwords_and_takes_new_ones(mail_user: MailUser) -> None:
    server = mail_user.server
    wrong = MailUser(mail_user.name, "wrong", server)
    with pytest.raises(LoginError), wrong.client():
        pass
    assert server.failed_logins(mail_user.name) == 1
    with mail_user.client():
        pass
    await server.change_password(mail_user.name, "wrong")
    with wrong.client():
        pass
    with pytest.raises(LoginError), mail_user.client():
        pass
    await server.remove_user(mail_user.name)
    with pytest.raises(LoginError), wrong.client():
        pass


async def test_dovecot_gives_a_mailbox_another_uidvalidity(mail_user: MailUser) -> None:
    with mail_user.client() as client:
        client.append("INBOX", MESSAGE)
        before = client.folder_status("INBOX", ["UIDVALIDITY"])[b"UIDVALIDITY"]
    wanted = await mail_user.server.reset_uidvalidity(mail_user.name, "INBOX")
    with mail_user.client() as client:
        after = client.folder_status("INBOX", ["UIDVALIDITY", "MESSAGES"])
    assert before != wanted == after[b"UIDVALIDITY"]
    assert after[b"MESSAGES"] == 1


async def test_dovecot_keeps_ports_and_mail_through_stop_and_kill(
    private_dovecot: Callable[[DovecotOptions], Awaitable[Dovecot]],
) -> None:
    server = await private_dovecot(DovecotOptions(compress=False))
    server.add_user("ada", 'pw: with "all" of it')
    user = MailUser("ada", 'pw: with "all" of it', server)
    with user.client() as client:
        assert b"COMPRESS=DEFLATE" not in client.capabilities()
        client.append("INBOX", MESSAGE)
    for restart in (server.stop, server.kill):
        await restart()
        with pytest.raises(OSError), user.client():
            pass
        await server.start()
        with user.client() as client:
            assert client.folder_status("INBOX")[b"MESSAGES"] == 1


async def test_pymap_serves_its_users(private_directory: Path) -> None:
    server = PymapServer(private_directory / "pymap")
    server.add_user("ada", "secret")
    await server.start()
    try:
        server.add_user("grace@example.test", "later")
        await asyncio.to_thread(_append_by_starttls, server, "ada", "secret")
        await asyncio.to_thread(_append_by_starttls, server, "grace@example.test", "later")
        with pytest.raises(LoginError):
            await asyncio.to_thread(_append_by_starttls, server, "ada", "later")
    finally:
        await server.stop()


def _append_by_starttls(server: PymapServer, name: str, password: str) -> None:
    import ssl

    from imapclient import IMAPClient

    client = IMAPClient(server.host, server.port, ssl=False, timeout=20)
    try:
        client.starttls(ssl.create_default_context(cafile=str(server.ca_file)))
        client.login(name, password)
        client.append("INBOX", MESSAGE)
        assert client.folder_status("INBOX")[b"MESSAGES"] == 1
        client.logout()
    except BaseException:
        client.shutdown()
        raise


async def test_stack_takes_what_the_environment_names(private_directory: Path) -> None:
    given = {"KAFKA_BOOTSTRAP_SERVERS": "elsewhere:9092", "POSTGRES_DSN": "postgresql://elsewhere/mail"}
    stack = LocalStack(private_directory, given=given)
    assert [service.name for service in stack.services] == ["Dovecot"]
    async with stack:
        assert given.items() <= stack.environment().items()
        pid = stack.mail.process.pid
        assert pid is not None
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


async def test_kept_stack_comes_back_at_the_same_addresses(private_directory: Path) -> None:
    given = {"KAFKA_BOOTSTRAP_SERVERS": "elsewhere:9092"}
    async with LocalStack(private_directory, given=given) as stack:
        addresses, mail_port = stack.environment(), stack.mail.port
    async with LocalStack(private_directory, given=given) as stack:
        assert stack.environment() == addresses
        assert stack.mail.port == mail_port


async def test_a_directory_belongs_to_one_stack(private_directory: Path) -> None:
    """Two brokers on one directory destroy it, and the second does not get so far."""
    given = {"KAFKA_BOOTSTRAP_SERVERS": "elsewhere:1", "POSTGRES_DSN": "postgresql://elsewhere/x"}
    async with LocalStack(private_directory, given=given) as first:
        with pytest.raises(DirectoryInUse, match=str(os.getpid())):
            await LocalStack(private_directory, given=given).start()
        assert first.mail.process.running
    async with LocalStack(private_directory, given=given):
        pass


async def test_a_service_that_ends_by_itself_is_told(private_directory: Path) -> None:
    given = {"KAFKA_BOOTSTRAP_SERVERS": "elsewhere:1", "POSTGRES_DSN": "postgresql://elsewhere/x"}
    async with LocalStack(private_directory, given=given) as stack:
        failing = asyncio.create_task(stack.failure())
        await stack.mail.process.kill()
        error = await asyncio.wait_for(failing, DEADLINE_S)
    assert error.service == stack.mail.name
    assert "by itself" in str(error)


async def test_failure_of_a_service_shows_the_end_of_its_log(private_directory: Path) -> None:
    child = ChildProcess(
        "broken",
        [sys.executable, "-c", "print('the reason why'); raise SystemExit(3)"],
        log=private_directory / "log",
    )
    child.start()

    async def never() -> bool:
        return False

    with pytest.raises(ServiceFailed, match="ended with exit code 3") as caught:
        await child.wait_ready(never, deadline_s=20)
    assert "the reason why" in str(caught.value)


async def test_service_that_is_never_ready_is_ended(private_directory: Path) -> None:
    child = ChildProcess("slow", ["sleep", "60"], log=private_directory / "log")
    child.start()
    pid = child.pid
    assert pid is not None

    async def never() -> bool:
        return False

    with pytest.raises(ServiceFailed, match="not ready within"):
        await child.wait_ready(never, deadline_s=0.3)
    assert not psutil.pid_exists(pid)


async def test_nothing_survives_the_death_of_who_started_it(private_directory: Path) -> None:
    """kill -9 of the owner ends what it started, also a program that ignores its terminal and starts others."""
    owner_code = (
        "import sys, time, pathlib\n"
        "from streams.local.process import ChildProcess\n"
        "child = ChildProcess('x', ['sleep', '300'], log=pathlib.Path(sys.argv[1]))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", owner_code, str(private_directory / "log")),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert owner.stdout is not None
    async with asyncio.timeout(20):
        orphan = psutil.Process(int(await owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    async with asyncio.timeout(10):
        while orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.02)
