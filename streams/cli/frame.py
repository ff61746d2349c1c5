"""How our subcommands live within Faust's command line: lazily imported click commands with nested groups and exit
codes.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration. An error is one line on stderr; a traceback only with
`faust --debug`. What a command prints to stdout is its result, nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Concatenate, Final, NoReturn, ParamSpec

import click

from streams.errors import ConfigurationError, MailstreamsError
from streams.settings import Settings, load_settings

P = ParamSpec("P")

EXIT_FAILURE: Final = 1
EXIT_CONFIGURATION: Final = 2
EXIT_INTERRUPTED: Final = 130


class LazyCommand(click.Command):
    """Stands in a group's list of commands for one that is imported when it is run."""

    def __init__(self, name: str, where: str, about: str) -> None:
        super().__init__(name, short_help=about, help=about, add_help_option=False)
        self._where = where

    def load(self) -> click.Command:
        """Import the command."""
        module_name, _, attribute = self._where.partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self._where} is no click command")
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Hand over to the real command: the context is its own, so it is what gets invoked."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


@dataclass
class Invocation:
    """One run of a subcommand."""

    debug: bool = False
    json: bool = False
    """Whether `faust --json` was given: the result is JSON."""

    _settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """The settings, read when first asked for. Raises `ConfigurationError`."""
        if self._settings is None:
            self._settings = load_settings()
        return self._settings


def invocation() -> Invocation:
    """The current run, from the options given to `faust` itself."""
    state = click.get_current_context().find_root().obj
    return Invocation(debug=bool(getattr(state, "debug", False)), json=bool(getattr(state, "json", False)))


def asynchronous(body: Callable[Concatenate[Invocation, P], Coroutine[Any, Any, int | None]]) -> Callable[P, None]:
    """Make an async function the body of a click command. It gets the `Invocation` first, then click's parameters;
    the integer it returns, if any, is the exit code. Errors of `streams.errors` become one line and exit code 2
    (configuration) or 1.
    """

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        current = invocation()
        quiet_libraries()
        with _errors_to_exit_codes(current):
            _check_text(kwargs.values())
            code = asyncio.run(body(current, *args, **kwargs))
            if code:
                sys.exit(code)

    return run


def synchronous(body: Callable[Concatenate[Invocation, P], int | None]) -> Callable[P, None]:
    """The same for a plain function."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        current = invocation()
        quiet_libraries()
        with _errors_to_exit_codes(current):
            _check_text(kwargs.values())
            code = body(current, *args, **kwargs)
            if code:
                sys.exit(code)

    return run


def quiet_libraries() -> None:
    """The command says itself what went wrong; libraries that log every refused connection are silenced."""
    for name in ("aiokafka", "asyncio", "faust", "mode"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _check_text(values: Iterable[object]) -> None:
    """Raises `click.UsageError` for an argument that was not UTF-8: neither Kafka nor PostgreSQL takes it."""
    for value in values:
        if isinstance(value, tuple):
            _check_text(value)
        elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise click.UsageError("an argument is not valid UTF-8")


_CLICKS_OWN: Final = (click.exceptions.Exit, click.exceptions.Abort, click.ClickException, SystemExit)
"""What click itself makes a line and an exit code of; `Abort` is somebody who was asked and did not say yes."""


class _errors_to_exit_codes:  # noqa: N801 - reads as the statement it is used in
    def __init__(self, current: Invocation) -> None:
        self._debug = current.debug

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool | None:
        if error is None or self._debug or isinstance(error, _CLICKS_OWN):
            return None
        if isinstance(error, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        if isinstance(error, ConfigurationError):
            fail(f"configuration error: {error}", EXIT_CONFIGURATION)
        if isinstance(error, MailstreamsError):
            fail(str(error), EXIT_FAILURE)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            # What stdout still holds is tried again at the interpreter's end, which would complain and exit with 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            fail(f"the output cannot be written: {error.strerror}", EXIT_FAILURE)
        if isinstance(error, Exception) and not isinstance(error, BrokenPipeError):
            fail(f"unexpected {type(error).__name__} (`faust --debug -A streams ...` shows where)", EXIT_FAILURE)
        return None


def fail(message: str, code: int = EXIT_FAILURE) -> NoReturn:
    """End the command with one line on stderr."""
    click.echo(" ".join(message.split()), err=True)
    sys.exit(code)
