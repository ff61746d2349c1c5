"""Brokers with TLS and SASL: the worker and the commands reach them, and say in one line why when they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.secured_kafka import PASSWORD, USER, SecuredKafka
from tests.fixtures.services import MailUser
from tests.rig.fleet import Fleet, running_fleet

WRONG = "wrong-canary-password"
ACCOUNT = "6f9619ff-8b86-4d01-8b42-00cf4fc964ff"


@pytest.fixture
async def secured_kafka(private_directory: Path) -> AsyncIterator[SecuredKafka]:
    broker = SecuredKafka(private_directory / "kafka")
    await broker.start()
    yield broker
    await broker.kill()


def options(kafka: SecuredKafka, database: str, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap": kafka.bootstrap,
        "prefix": f"{mechanism.lower()}.",
        "dsn": database,
        "settings": kafka.environment(mechanism),
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_worker_and_commands_speak_tls_and_sasl(
    secured_kafka: SecuredKafka, database: str, tmp_path: Path, mail_user: MailUser, mechanism: str
) -> None:
    async with running_fleet(tmp_path, **options(secured_kafka, database, mechanism)) as fleet:
        worker = await fleet.ready_worker("one")
        with mail_user.client() as client:
            client.append("INBOX", b"Subject: hello\r\n\r\nhello\r\n")
        connection = ("--host", mail_user.host, "--port", str(mail_user.port), "--tls", "plain")
        user = ("--user", "u1", "--username", mail_user.name, "--password-stdin")
        code, output = await fleet.run("accounts", "add", *connection, *user, "--json", stdin=mail_user.password + "\n")
        assert code == 0, output
        await fleet.watch.until(
            lambda: any(event.kind == "message.added" for event in fleet.watch.events),
            within_s=60,
            what="mail arrives in the log",
        )
        assert await worker.stop() == 0
        for secret in (PASSWORD, mail_user.password):
            assert secret not in worker.log_text()


async def test_a_wrong_password_and_an_unknown_authority_are_one_line_each_without_the_secret(
    secured_kafka: SecuredKafka, database: str, tmp_path: Path
) -> None:
    async with running_fleet(tmp_path, **options(secured_kafka, database, "SCRAM-SHA-256")) as fleet:
        for command in (("topics",), ("status",), ("send", "sync-now", ACCOUNT)):
            refused = await _refused(fleet, *command, KAFKA_SASL_PASSWORD=WRONG)
            assert "uthentication" in refused
            assert USER not in refused or WRONG not in refused
            assert "certificate" in (await _refused(fleet, *command, KAFKA_SSL_CA_FILE="")).lower()

        # A worker waits for the day on which the password is right: it is alive, and says why it does nothing.
        worker = fleet.start_worker("two", KAFKA_SASL_PASSWORD=WRONG)
        await worker.alive()
        async with asyncio.timeout(30):
            while "uthentication" not in worker.log_text():
                await asyncio.sleep(0.1)
        status, answer = await asyncio.to_thread(worker.probe, "/ready")
        assert (status, answer["waiting_for"]) == (503, "Kafka")
        assert await worker.stop() == 0
        lines = [record for record in worker.log_records() if record["event"] == "waiting for Kafka"]
        assert lines, worker.tail()
        assert not any("exception" in record for record in worker.log_records())
        assert WRONG not in worker.log_text()


async def _refused(fleet: Fleet, *command: str, **changes: str) -> str:
    """What a command says that does not get in: one line."""
    before = dict(fleet.environment)
    fleet.environment.update(changes)
    try:
        code, output = await fleet.run(*command)
    finally:
        fleet.environment.clear()
        fleet.environment.update(before)
    assert code == 1, output
    assert len(output.splitlines()) == 1, output
    assert WRONG not in output
    assert PASSWORD not in output
    return output
