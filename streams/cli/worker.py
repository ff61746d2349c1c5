"""`faust -A streams worker`: Faust's command and options, our process.

Registered under Faust's own name by being a subclass of its command. There is no banner: the first line is a log
record.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from faust.cli.worker import worker as FaustWorkerCommand  # noqa: N812

from streams.cli.entry import CommandLineApp
from streams.cli.frame import EXIT_CONFIGURATION, fail
from streams.errors import ConfigurationError
from streams.runtime.process import configuration_line
from streams.settings import load_settings


class worker(FaustWorkerCommand):  # noqa: N801 - the class's name is the command's
    """Start a worker: it takes its share of the partitions and runs their accounts."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        from streams.assembly import run_job, run_worker

        app: Any = self.app
        assert isinstance(app, CommandLineApp)
        try:
            settings = load_settings()
            if settings.WORKER_MODE == "job":
                code = run_job(settings, log_level=self.state.loglevel, log_file=self.state.logfile)
            else:
                self._apply_web_options(app.real)
                code = run_worker(app.real, log_level=self.state.loglevel, log_file=self.state.logfile)
        except ConfigurationError as error:
            fail(configuration_line(error), EXIT_CONFIGURATION)
        sys.exit(code)

    def _apply_web_options(self, app: Any) -> None:
        """Faust's web server is off unless a setting or an option asks for it."""
        given = self.kwargs
        if given.get("web_port") is not None:
            app.conf.web_enabled, app.conf.web_port = True, given["web_port"]
        if not given.get("with_web", True):
            app.conf.web_enabled = False
        for option in ("web_bind", "web_host"):
            if given.get(option):
                setattr(app.conf, option, given[option])
