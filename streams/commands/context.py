"""Which task is running, for every log record written meanwhile, ours or a library's (row W16).

The fields live in structlog's context variables, which the log processors of the process merge into every record.
Context variables follow await chains by themselves; into threads `streams.commands.threads` carries them.
"""

from __future__ import annotations

import contextvars

import structlog

FIELDS = ("task_id", "service", "attempt", "kind", "account_id")


def task_context(*, task_id: str, service: str, attempt: int, kind: str, account_id: str) -> contextvars.Context:
    """A copy of the current context in which log records carry the task."""
    context = contextvars.copy_context()
    context.run(
        structlog.contextvars.bind_contextvars,
        task_id=task_id,
        service=service,
        attempt=attempt,
        kind=kind,
        account_id=account_id,
    )
    return context
