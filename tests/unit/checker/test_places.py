"""Secrets are looked for wherever they could be: every table, every topic, and what a process shows of itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.rig.worker import Worker
from tests.storm.checker import truth
from tests.storm.checker.database import every_text
from tests.storm.checker.log import Kafka, Raw
from tests.storm.checker.secrets import leaks
from tests.storm.checker.truth import World

SECRET = "pw-0123456789abcdef"


class _Postgres:
    """A connection to a database in which a password was stored as it came, and noted elsewhere."""

    tables = (("pg_catalog", "pg_class"), ("mailstreams", "credentials"), ("mail", "places"), ("public", "notes"))

    async def fetch(self, query: str) -> list[dict[str, Any]]:
        if "information_schema.tables" in query:
            return [{"table_schema": schema, "table_name": name} for schema, name in self.tables]
        if "credentials" in query:
            return [{"line": f"(6f1c,\\x{SECRET.encode().hex()})"}]
        return [{"line": SECRET}] if "notes" in query else []

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_password_that_was_not_sealed_and_one_in_a_foreign_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: Any, **__: Any) -> _Postgres:
        return _Postgres()

    monkeypatch.setattr(asyncpg, "connect", connect)
    rows = [(table, line.encode()) for table, line in await every_text("postgresql://nowhere")]
    found = [finding.got for finding in leaks([SECRET], rows)]
    assert found == ['secret 0 in "mailstreams"."credentials"', 'secret 0 in "public"."notes"']


async def test_topics_that_nobody_named_and_what_processes_show(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topics_of(_: Kafka) -> list[str]:
        return ["mailstreams-accounts-changelog"]

    async def read_raw(_: Kafka, topic: str, *, committed: bool) -> AsyncIterator[Raw]:
        if topic.endswith("changelog"):
            yield Raw(topic, 0, 0, 0, b"k", SECRET.encode(), ())

    monkeypatch.setattr(truth, "topics_of", topics_of)
    monkeypatch.setattr(truth, "read_raw", read_raw)
    world = World(Kafka("nowhere", "p."), None, [], outside=lambda: [("/metrics of one", SECRET.encode())])
    found = [finding.got for finding in leaks([SECRET], [place async for place in truth._everywhere(world)])]
    assert found == ["secret 0 in mailstreams-accounts-changelog 0@0", "secret 0 in /metrics of one"]


def test_command_line_and_files_of_a_worker(tmp_path: Path) -> None:
    worker = Worker("one", tmp_path, {})
    (tmp_path / "one" / "state").mkdir(parents=True)
    (tmp_path / "one" / "state" / "000001.sst").write_bytes(b"\x00" + SECRET.encode())
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", SECRET]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        worker._popen = process
        found = {finding.got for finding in leaks([SECRET], worker.outside())}
        assert process.stdin is not None
        process.stdin.close()
    assert found == {"secret 0 in command line of one", "secret 0 in file state/000001.sst of one"}
