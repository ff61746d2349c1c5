"""Cases 103, 104: at DEBUG, with passwords that need quoting and refused logins, no secret shows anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streams.contracts.topics import TOPICS
from streams.local.dovecot import Dovecot
from tests.fixtures.services import Broker
from tests.rig.fleet import Fleet, running_fleet
from tests.rig.letters import ordinary
from tests.storm.checker.database import every_text
from tests.storm.checker.log import read_raw
from tests.storm.checker.secrets import forms

RIGHT = 'gr33n "tea\\pot" {7}'
WRONG = 'Wr0ng "canary\\" pass'


async def haystacks(fleet: Fleet, dsn: str) -> dict[str, bytes]:
    """Everything that was written anywhere, by name."""
    found = {f"topic {spec.name}": b"" for spec in TOPICS}
    for spec in TOPICS:
        async for raw in read_raw(fleet.kafka, spec.name):
            found[f"topic {spec.name}"] += (raw.key or b"") + (raw.value or b"") + repr(raw.headers).encode()
    for where, text in await every_text(dsn):
        found[f"database {where}"] = found.get(f"database {where}", b"") + text.encode()
    for worker in fleet.workers.values():
        found[f"log of {worker.name}"] = worker.log_text().encode()
        for path in ("/metrics", "/ready", "/health"):
            _, answer = await asyncio.to_thread(worker.probe, path)
            found[f"{path} of {worker.name}"] = repr(answer).encode()
    for file in fleet.directory.rglob("*"):
        if file.is_file():
            found[f"file {file.relative_to(fleet.directory)}"] = file.read_bytes()
    return found


async def test_case_103_104_no_secret_anywhere_at_debug(
    kafka: Broker, database: str, topic_prefix: str, dovecot: Dovecot, tmp_path: Path
) -> None:
    dovecot.add_user("canary@example.test", RIGHT)
    options = {"LOG_LEVEL": "debug", "CREDENTIALS_RETRIES": "2"}
    async with running_fleet(
        tmp_path, bootstrap=kafka.bootstrap, prefix=topic_prefix, dsn=database, settings=options
    ) as fleet:
        good = await fleet.add("canary@example.test", RIGHT, dovecot.host, dovecot.port)
        bad = await fleet.add("canary@example.test", RIGHT, dovecot.host, dovecot.port, stored_password=WRONG)
        good.append("INBOX", ordinary(1))
        await fleet.ready_worker("w1")
        await fleet.caught_up(stopped=[bad.login.account])
        await fleet.eventually(
            fleet.statuses,
            lambda found: found.get(bad.login.account, {}).get("error", {}).get("code") == "credentials_refused",
            what="the refused account says so",
        )
        found = await haystacks(fleet, database)
        key = fleet.environment["ENCRYPTION_KEYS"]
        assert b'"level": "debug"' in found["log of w1"], "the test looks at nothing"
        assert found["topic mailbox.changes"]
        for where, text in found.items():
            for form in forms(RIGHT) | forms(WRONG) | forms(key):
                assert form not in text, f"{form!r} in {where}"
