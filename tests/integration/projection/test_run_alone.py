"""`faust -A streams projection run`: the projection as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from streams.settings import Settings
from tests.fixtures.mail_events import AccountLog
from tests.integration.projection.log import LogWriter, Rows


def environment(settings: Settings, directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "KAFKA_BOOTSTRAP_SERVERS": settings.KAFKA_BOOTSTRAP_SERVERS,
        "KAFKA_TOPIC_PREFIX": settings.KAFKA_TOPIC_PREFIX,
        "POSTGRES_DSN": settings.POSTGRES_DSN.get_secret_value(),
        "PARTITIONS": str(settings.PARTITIONS),
        "PROBE_PORT": "0",
        "DATA_DIR": str(directory),
        "MAILSTREAMS_ENV_FILE": "/dev/null",
    }


async def run(*arguments: str, env: dict[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "faust", "-A", "streams", "projection", *arguments,
        env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


async def test_it_projects_until_it_is_told_to_stop(
    settings: Settings, log_writer: LogWriter, rows: Rows, tmp_path: Path
) -> None:
    """W5, W7: SIGTERM ends it with 0; what it has written is kept, what it has not is written by the next one."""
    log = AccountLog()
    for turn in (1, 2):
        process = await run("run", env=environment(settings, tmp_path))
        try:
            await log_writer.write(log.added(turn, f"m{turn}"))
            await rows.until("SELECT count(*) FROM mail.places", turn, deadline_s=60)
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors


async def test_w1_a_wrong_database_is_one_line_and_exit_code_2(settings: Settings, tmp_path: Path) -> None:
    env = environment(settings, tmp_path)
    env["POSTGRES_DSN"] = env["POSTGRES_DSN"].rsplit("/", 1)[0] + "/s3cret"
    for arguments in (("run",), ("migrate",), ("status",), ("rebuild", "--yes")):
        process = await run(*arguments, env=env)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 2, (arguments, errors)
        [line] = [line for line in errors.decode().splitlines() if "configuration error" in line]
        assert "POSTGRES_DSN" in line
        assert "s3cret" not in errors.decode()
