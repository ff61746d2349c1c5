"""Logs: one JSON object per line, or a readable form at a terminal; libraries' lines included, none with a secret.

Everything goes through one handler on the root logger: structlog's records of ours and the standard records of Faust,
mode, aiokafka, aioimaplib and asyncio get the same fields, the same context (account, partition, mailbox, task,
attempt; see `streams.runtime.context`) and the same redaction. aioimaplib writes passwords at DEBUG and, for a
mismatched tag, at ERROR; its loggers are pinned at WARNING whatever the level is, and its records pass without the
command they quote.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

from streams.errors import ConfigurationError
from streams.runtime.log_limit import FloodFilter
from streams.runtime.redaction import Redactor
from streams.settings import Settings

PINNED: Final = (
    "aioimaplib",
    "aioimaplib.aioimaplib",
    "imaplib",
    "httpx",
    "httpcore",
    "authlib",
    "hpack",
    "sqlalchemy",
)
"""Libraries whose lines below WARNING hold protocol text, or nothing of use."""

TALKATIVE: Final = ("aiokafka", "alembic", "faust", "mode")
"""Libraries that tell each of their steps at INFO: shown when the level is debug, else from WARNING on."""

FAUST_LEVELS: Final = {"CRIT": "critical", "WARN": "warning"}
"""Faust's names of levels where they are not Python's."""

_OURS: Final = {"event", "level", "logger", "timestamp", "exception"}

Event = MutableMapping[str, Any]


def configure_logs(
    settings: Settings, *, level: str | None = None, file: str | None = None, stream: TextIO | None = None
) -> None:
    """Set logging up for this process. `level` and `file` override the settings (options of the command line).

    Raises `ConfigurationError` when the file cannot be written.
    """
    threshold = _level(level or settings.LOG_LEVEL)
    output = _opened(file) if file else stream or sys.stderr
    as_json = settings.LOG_FORMAT == "json" or (settings.LOG_FORMAT == "auto" and not output.isatty())
    redactor = Redactor(_secrets(settings))
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _left_out,
        _service(settings.WORKER_NAME),
    ]
    rendering: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _Redaction(redactor),
        structlog.processors.JSONRenderer(default=_plain)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=output.isatty(), exception_formatter=structlog.dev.plain_traceback),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()], processors=rendering
        )
    )
    handler.addFilter(FloodFilter())
    handler.addFilter(_library_secrets)
    if threshold >= logging.INFO:
        handler.addFilter(_no_step_of_faust)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(threshold)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(threshold if threshold < logging.INFO else max(threshold, logging.WARNING))
    for name in PINNED:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def _opened(file: str) -> TextIO:
    try:
        return Path(file).open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--logfile: cannot write {file}: {error.strerror or error}") from None


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread is not None else "unknown"
    structlog.get_logger(__name__).error("a thread has failed", thread=name, exc_info=failure.exc_value)


def _unraisable(failure: sys.UnraisableHookArgs) -> None:
    structlog.get_logger(__name__).error(
        "an error that nobody could catch", where=repr(failure.object), exc_info=failure.exc_value
    )


@contextmanager
def muted(name: str) -> Iterator[list[str]]:
    """Within the block, logger `name` and its children write nothing; what they say is collected in the list.

    For libraries that log a failure by themselves and raise one that says less: whoever uses them tells it once.
    """
    logger = logging.getLogger(name)
    said: list[str] = []
    collector, before = _Collector(said), (logger.propagate, logger.level)
    logger.addHandler(collector)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield said
    finally:
        logger.propagate, level = before
        logger.setLevel(level)
        logger.removeHandler(collector)


class _Collector(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self._said.append(record.getMessage())


def _level(name: str) -> int:
    value = logging.getLevelName(FAUST_LEVELS.get(name.upper(), name).upper())
    return value if isinstance(value, int) else logging.INFO


def _secrets(settings: Settings) -> list[str]:
    """Every secret that the settings hold, and the passwords within addresses."""
    found: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if hasattr(value, "get_secret_value"):
            text = value.get_secret_value()
            found += [part.strip() for part in text.split(",")]
            if "://" in text and "@" in text:
                found += text.split("://", 1)[1].rsplit("@", 1)[0].split(":", 1)[1:]
    return [value for value in found if value]


def _service(worker: str) -> Callable[[Any, str, Event], Event]:
    def add(_logger: Any, _method: str, event: Event) -> Event:
        event.setdefault("service", "mailstreams")
        event.setdefault("worker", worker)
        return event

    return add


def _left_out(_logger: Any, _method: str, event: Event) -> Event:
    record = event.get("_record")
    count = getattr(record, "left_out", 0)
    if count:
        event["left_out"] = count
    return event


def _no_step_of_faust(record: logging.LogRecord) -> bool:
    """Faust's services tell their steps by the logger of the module that their class is in, which may be one of ours:
    its level does not hold them back. Their form does, which is of `mode.Service`: `[^-Name]: Starting...`.
    """
    return record.levelno >= logging.WARNING or not (isinstance(record.msg, str) and record.msg.startswith("[^"))


def _library_secrets(record: logging.LogRecord) -> bool:
    """aioimaplib's and asyncio's records may quote a command or the repr of a protocol; keep what they say, drop what
    they quote.
    """
    if record.name.startswith("aioimaplib") and record.args:
        record.msg, record.args = str(record.msg).split("%", 1)[0].rstrip(" :("), None
    return True


class _Redaction:
    """Blanks secrets in every text of an event, however deep."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __call__(self, _logger: Any, _method: str, event: Event) -> Event:
        return {key: self._clean(value) if key not in {"level", "timestamp"} else value for key, value in event.items()}

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redactor(value)
        if isinstance(value, bytes):
            return self._redactor(value.decode("utf-8", "replace"))
        if isinstance(value, dict):
            return {key: self._clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._clean(item) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self._redactor(_plain(value))


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, BaseException) else repr(value)
