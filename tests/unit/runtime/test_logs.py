"""Logs: form, context, floods, and no secret at any level (row W16; cases 103, 104)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import ConfigurationError
from streams.runtime.context import ContextThreadPool, log_context
from streams.runtime.log_limit import FloodFilter
from streams.runtime.logs import PINNED, TALKATIVE, configure_logs
from streams.runtime.redaction import BLANK, Redactor
from streams.settings import Settings, load_settings

PASSWORD = 'gr33n "tea\\ pot'
TOKEN = "ya29.a0AfH6SMBx-canary_token-value"


class Lines:
    """What was logged."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
def settings() -> Settings:
    return load_settings(
        LOG_FORMAT="json",
        LOG_LEVEL="debug",
        WORKER_NAME="w1",
        POSTGRES_DSN="postgresql://mail:s3cret-of-db@db/mail",
        KAFKA_SASL_PASSWORD="kafka-canary-password",
    )


@contextmanager
def logging_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        structlog.reset_defaults()
        for name in (*PINNED, *TALKATIVE):
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def lines(settings: Settings) -> Iterator[Lines]:
    found = Lines()
    with logging_put_back():
        configure_logs(settings, stream=found.stream)
        yield found


def test_one_json_object_per_line_of_ours_and_of_libraries(lines: Lines) -> None:
    structlog.get_logger("streams.x").info("shard started", partition=3)
    logging.getLogger("aiokafka.conn").warning("connection %s lost", "a:1", extra={"node": 7})
    try:
        raise ValueError("multi\nline")
    except ValueError:
        structlog.get_logger("streams.x").exception("failed")
    ours, library, failure = lines.all()
    found = [ours[key] for key in ("event", "partition", "level", "logger")]
    assert found == ["shard started", 3, "info", "streams.x"]
    assert (library["event"], library["logger"]) == ("connection a:1 lost", "aiokafka.conn")
    assert library["node"] == 7
    assert ours["worker"] == library["worker"] == "w1"
    assert ours["timestamp"].endswith("Z")
    assert "ValueError: multi" in failure["exception"]


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_steps_of_faust_are_told_at_debug_only_whatever_module_its_class_is_in(
    settings: Settings, level: str
) -> None:
    found, ours = Lines(), "streams.agents.plane"
    with logging_put_back():
        configure_logs(settings, stream=found.stream, level=level)
        logging.getLogger(ours).info("[^-ControlPlane]: Starting...")
        logging.getLogger(ours).warning("[^-ControlPlane]: a step takes long")
        structlog.get_logger(ours).info("[^ is how a line of ours may begin")
    told = [line["event"] for line in found.all()]
    steps = ["[^-ControlPlane]: Starting..."] if level == "debug" else []
    assert told == [*steps, "[^-ControlPlane]: a step takes long", "[^ is how a line of ours may begin"]


async def test_w16_context_reaches_libraries_through_awaits_and_into_threads(lines: Lines) -> None:
    pool = ContextThreadPool(2)
    loop = asyncio.get_running_loop()

    def in_thread() -> None:
        logging.getLogger("library").warning("from a thread")

    async def deeper() -> None:
        logging.getLogger("library").warning("from an await")
        await loop.run_in_executor(pool, in_thread)
        await asyncio.create_task(asyncio.to_thread(in_thread))

    with log_context(task_id="t-1", attempt=2, account_id=None):
        await deeper()
    logging.getLogger("library").warning("outside")
    pool.shutdown()
    *inside, outside = (line for line in lines.all() if line["logger"] == "library")
    assert [(line["task_id"], line["attempt"]) for line in inside] == [("t-1", 2)] * 3
    assert "account_id" not in inside[0]
    assert "task_id" not in outside


def test_warnings_are_log_records(lines: Lines) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    assert "old call" in lines.all()[0]["event"]


def test_console_form_is_readable(settings: Settings) -> None:
    stream = io.StringIO()
    with logging_put_back():
        configure_logs(settings.model_copy(update={"LOG_FORMAT": "console"}), stream=stream)
        structlog.get_logger("streams.x").info("shard started", partition=3)
    assert "shard started" in stream.getvalue()
    assert "partition=3" in stream.getvalue()


def spelled(secret: str) -> set[str]:
    """A secret as it may appear somewhere, written independently of the code under test."""
    raw = secret.encode()
    xoauth2 = base64.b64encode(b"user=ada\x01auth=Bearer " + raw + b"\x01\x01").decode()
    plain = base64.b64encode(b"\0ada\0" + raw).decode()
    return {secret, json.dumps(secret), json.dumps(secret)[1:-1], base64.b64encode(raw).decode(), xoauth2, plain}


def test_case_103_no_secret_of_the_settings_in_any_record(lines: Lines) -> None:
    log = structlog.get_logger("streams.x")
    for secret in ("s3cret-of-db", "kafka-canary-password"):
        log.debug(f"connecting with {secret}", detail={"nested": [secret.encode()]}, error=ValueError(secret))
        logging.getLogger("other").debug("args %r", (secret,))
        logging.getLogger("other").debug("encoded %s", base64.b64encode(secret.encode()).decode())
        try:
            raise RuntimeError(secret)
        except RuntimeError:
            log.exception("failed")
    for secret in ("s3cret-of-db", "kafka-canary-password"):
        for form in spelled(secret):
            assert form not in lines.text


@pytest.mark.parametrize(
    "text",
    [
        'AAA1 LOGIN "ada" {}',
        "tag LOGIN ada {}",
        "a1 login ada@example.org {}",
    ],
)
def test_case_103_login_commands_are_blanked(text: str) -> None:
    quoted = '"' + PASSWORD.replace("\\", "\\\\").replace('"', '\\"') + '"'
    cleaned = Redactor()(f"sending {text.format(quoted)}\r\n")
    assert "gr33n" not in cleaned
    assert "pot" not in cleaned
    assert BLANK in cleaned


def test_case_104_tokens_are_blanked_without_being_known() -> None:
    redactor = Redactor()
    xoauth2 = base64.b64encode(f"user=ada\x01auth=Bearer {TOKEN}\x01\x01".encode()).decode()
    oauthbearer = base64.b64encode(f"n,a=ada,\x01auth=Bearer {TOKEN}\x01\x01".encode()).decode()
    for text in (
        f"A1 AUTHENTICATE XOAUTH2 {xoauth2}",
        f"A1 AUTHENTICATE OAUTHBEARER {oauthbearer}",
        f"wrong tag, command was {xoauth2!r}",
        f"Authorization: Bearer {TOKEN}",
        f"{{'access_token': '{TOKEN}', 'refresh_token': '{TOKEN}'}}",
        f"grant_type=refresh_token&refresh_token={TOKEN}&client_secret={TOKEN}",
        f"https://user:{TOKEN}@mail.example.org/",
    ):
        cleaned = redactor(text)
        assert TOKEN not in cleaned, text
        assert xoauth2 not in cleaned, text
        assert oauthbearer not in cleaned, text


def test_ordinary_text_is_left_alone() -> None:
    redactor = Redactor(["hunter22"])
    for text in (
        "login of ada was refused",
        "LOGIN command failed",
        "passwords are never logged",
        "account 0b7a5d4e-6a0e-4a38-9f86-2f6f1f1d3a11 caught up, 5 mailboxes",
        "postgresql://db/mail does not answer",
        "secretary wrote",
    ):
        assert redactor(text) == text


@pytest.mark.parametrize("run", ["a", "1", " ", "A1 LOGIN ", "://a:", "password", "_", '"', "bearer ", "\\", "a:b@"])
def test_hostile_text_is_cleaned_in_linear_time(run: str) -> None:
    redactor = Redactor(["hunter22"])
    text = run * (100_000 // len(run))
    began = time.process_time()
    redactor(text)
    assert time.process_time() - began < 1.0


@given(st.text(min_size=6, max_size=40).filter(lambda text: text.strip() == text and text not in BLANK))
def test_property_a_known_secret_never_survives(secret: str) -> None:
    redactor = Redactor([secret])
    for form in (secret, f"x={secret}", base64.b64encode(secret.encode()).decode()):
        assert secret not in redactor(form).replace(BLANK, "")


def test_case_103_aioimaplib_is_pinned_and_quotes_nothing(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the library's loggers ever speak again (`streams.imap` switches them off), they quote no command."""
    for name in ("aioimaplib", "aioimaplib.aioimaplib"):
        switched_off = logging.getLogger(name)
        monkeypatch.setattr(switched_off, "disabled", False)
        monkeypatch.setattr(switched_off, "propagate", True)
        monkeypatch.setattr(switched_off, "level", logging.WARNING)
        switched_off.manager._clear_cache()  # type: ignore[attr-defined]
    logger = logging.getLogger("aioimaplib.aioimaplib")
    logger.debug('Sending : LOGIN "ada" "%s"', PASSWORD)
    logger.info("anything")
    logger.error("expecting tag %s in command: %r", "A1", f'LOGIN ada "{PASSWORD}"')
    (line,) = lines.all()
    assert "gr33n" not in lines.text
    assert line["event"].startswith("expecting tag")


def test_a_flood_of_a_library_becomes_a_few_lines_with_a_count() -> None:
    now = 0.0
    flood = FloodFilter(burst=5, window_s=10.0, clock=lambda: now)

    def record(name: str, message: str) -> logging.LogRecord:
        return logging.LogRecord(name, logging.ERROR, "f", 1, message, (), None)

    passed = sum(flood.filter(record("aiokafka", "lost %s")) for _ in range(750))
    assert passed == 5
    assert flood.filter(record("aiokafka", "something else")), "another kind passes"
    assert all(flood.filter(record("streams.x", "ours")) for _ in range(100)), "ours are not limited"
    now = 11.0
    late = record("aiokafka", "lost %s")
    assert flood.filter(late)
    assert late.left_out == 745  # type: ignore[attr-defined]


def test_the_flood_filter_forgets_rather_than_grows() -> None:
    flood = FloodFilter()
    for number in range(10_000):
        flood.filter(logging.LogRecord("library", logging.INFO, "f", 1, f"kind {number}", (), None))
    assert len(flood._seen) <= 2048


def test_logging_from_many_threads_loses_no_line(lines: Lines) -> None:
    def write(number: int) -> None:
        for count in range(50):
            structlog.get_logger("streams.x").info("line", thread_number=number, count=count)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines.all()) == 200


def test_w1_a_log_file_that_cannot_be_written_is_a_configuration_error(settings: Settings, tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    with pytest.raises(ConfigurationError, match="--logfile"):
        configure_logs(settings, file=str(tmp_path / "no/such/directory/worker.log"))
    assert logging.getLogger().handlers == before
