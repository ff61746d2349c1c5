"""What `faust -A streams` finds: our subcommands installed beside Faust's, and the app.

The app itself is made only for commands that use it (`worker`, `agents`, `tables`): the others start in half the
time, and settings that are wrong do not stop those which need none (`--help`, `keys generate`). For the ones that do,
a wrong setting is one line and exit code 2 (row W1).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli import COMMANDS
from streams.cli.frame import EXIT_CONFIGURATION, LazyCommand
from streams.errors import ConfigurationError
from streams.settings import load_settings

if TYPE_CHECKING:
    from streams.assembly import StreamsApp


class ConfigurationExit(ConfigurationError, click.ClickException):
    """A configuration error that ends a click program with one line and exit code 2."""

    exit_code = EXIT_CONFIGURATION

    def __init__(self, error: ConfigurationError) -> None:
        ConfigurationError.__init__(self, str(error))
        self.message = str(error)

    def show(self, file: Any = None) -> None:
        click.echo(f"configuration error: {' '.join(self.message.split())}", file=file, err=file is None)


class CommandLineApp:
    """Stands for the app in Faust's command line, which touches it before it knows which command is run.

    What Faust's search for commands needs is here; any other use makes the app.
    """

    def __init__(self) -> None:
        self.conf = _CommandLineSettings(self)
        self._app: StreamsApp | None = None

    @property
    def real(self) -> StreamsApp:
        """The app. Raises `ConfigurationExit`."""
        if self._app is None:
            from faust.cli.base import prepare_app

            from streams.assembly import create_app

            try:
                app = create_app(load_settings())
            except ConfigurationError as error:
                raise ConfigurationExit(error) from None
            prepare_app(app, "streams")
            self._app = app
        return self._app

    def finalize(self) -> None: ...

    def worker_init(self) -> None: ...

    def worker_init_post_autodiscover(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _CommandLineSettings:
    """Stands for the app's settings in the same way."""

    _origin = "streams"
    autodiscover = False

    def __init__(self, app: CommandLineApp) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app.real.conf, name)


def install_commands() -> None:
    """Register our subcommands with Faust's command line. Ours replace those of the same name (`send`, `worker`)."""
    from faust.cli.base import cli

    for name, (where, about) in COMMANDS.items():
        cli.add_command(LazyCommand(name, where, about), name)
    import streams.cli.worker  # noqa: F401 - registers itself


def made_for_this_program() -> Any:
    """`streams.app`: for the `faust` program a stand-in that becomes the app when needed, else the app.

    Raises `ConfigurationError` when the settings are wrong.
    """
    if _is_faust_program():
        install_commands()
        return CommandLineApp()
    from streams.assembly import create_app

    return create_app(load_settings())


def _is_faust_program() -> bool:
    program = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path()
    return program.name in {"faust", "faust.exe"} or program.parts[-2:] == ("faust", "__main__.py")
