"""`faust -A streams job`: takes jobs, settles them, ends (row W8).

Exit codes: 0 when the quota is settled or nothing arrived for the idle time, whatever came of the jobs; 1 when no
broker answered in time or the process failed; 2 for wrong usage or configuration.
"""

from __future__ import annotations

import sys

import click

from streams.cli.frame import EXIT_CONFIGURATION, fail, invocation
from streams.errors import ConfigurationError
from streams.runtime.process import configuration_line


@click.command("job")
@click.option("--max-tasks", type=click.IntRange(min=1), help="Jobs taken at most [WORKER_JOB_MAX_TASKS].")
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End when nothing arrives for this long [WORKER_JOB_IDLE_TIMEOUT_S].",
)
@click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End with 1 when no broker answers for this long [WORKER_JOB_CONNECT_TIMEOUT_S].",
)
def command(max_tasks: int | None, idle_timeout: float | None, connect_timeout: float | None) -> None:
    """Take jobs from sync.jobs one at a time, settle them, end."""
    from streams.assembly import run_job

    given = {
        "WORKER_JOB_MAX_TASKS": max_tasks,
        "WORKER_JOB_IDLE_TIMEOUT_S": idle_timeout,
        "WORKER_JOB_CONNECT_TIMEOUT_S": connect_timeout,
    }
    try:
        settings = invocation().settings.model_copy(
            update={name: value for name, value in given.items() if value is not None}
        )
        code = run_job(settings)
    except ConfigurationError as error:
        fail(configuration_line(error), EXIT_CONFIGURATION)
    sys.exit(code)
