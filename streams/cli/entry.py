"""What `faust -A streams` finds: our subcommands installed beside Faust's, and the app.

Settings that are wrong do not stop commands which need none (`--help`, `keys generate`): then the app is a stand-in
whose first use is the one line and exit code 2 (row W1).
"""

from __future__ import annotations

from typing import Any, NoReturn

import click
from faust.cli.base import cli as faust_cli

from streams.cli import COMMANDS
from streams.cli.frame import EXIT_CONFIGURATION, LazyCommand
from streams.errors import ConfigurationError
from streams.settings import load_settings


class ConfigurationExit(ConfigurationError, click.ClickException):
    """A configuration error that ends a click program with one line and exit code 2."""

    exit_code = EXIT_CONFIGURATION

    def __init__(self, error: ConfigurationError) -> None:
        ConfigurationError.__init__(self, str(error))
        self.message = str(error)

    def show(self, file: Any = None) -> None:
        click.echo(f"configuration error: {' '.join(self.message.split())}", file=file, err=file is None)


class _Unconfigured:
    """Stands for the settings of an app that has none: enough for Faust to look for commands, no more."""

    _origin = "streams"
    autodiscover = False

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def __getattr__(self, _name: str) -> NoReturn:
        raise ConfigurationExit(self._error)


class UnconfiguredApp:
    """Stands for the app while its settings are wrong."""

    def __init__(self, error: ConfigurationError) -> None:
        self.conf = _Unconfigured(error)

    def finalize(self) -> None: ...

    def worker_init(self) -> None: ...

    def worker_init_post_autodiscover(self) -> None: ...


def install_commands() -> None:
    """Register our subcommands with Faust's command line. Ours replace those of the same name (`send`, `worker`)."""
    for name, (where, about) in COMMANDS.items():
        faust_cli.add_command(LazyCommand(name, where, about), name)
    import streams.cli.worker  # noqa: F401 - registers itself


def command_line_app() -> Any:
    """The app for `faust -A streams`."""
    install_commands()
    try:
        from streams.assembly import create_app

        return create_app(load_settings())
    except ConfigurationError as error:
        return UnconfiguredApp(error)
