"""A worker of jobs as a process of its own, to be killed: `python -m tests.integration.commands.program`.

Settings come from the environment. `DIRECTORY` is where handlers leave marks and look for them; `KILL_AT` names a point
at which the process kills itself, once (a mark says that it has).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer

from streams.commands.handlers import Handlers, Task, TaskFailed
from streams.commands.job_writer import JobWriter
from streams.commands.service import JobService
from streams.observer import NoopObserver
from streams.runtime.checks import kafka_check
from streams.runtime.hooks import Hooks
from streams.runtime.launch import launch
from streams.runtime.services import Stage
from streams.settings import load_settings

POLL_S = 0.02
directory = Path(os.environ["DIRECTORY"])
handlers = Handlers()
library = logging.getLogger("library")


class Args(msgspec.Struct, frozen=True):
    number: int = 0


def mark(name: str) -> None:
    """Leave a mark; a kill right after does not lose it."""
    (directory / name).touch()


def marked(name: str) -> bool:
    return (directory / name).exists()


def die_once(name: str) -> None:
    """Be gone as by a power cut, the first time."""
    if os.environ.get("KILL_AT") == name and not marked(f"died-{name}"):
        mark(f"died-{name}")
        os.kill(os.getpid(), signal.SIGKILL)


@handlers.register("noop", args=Args)
async def noop(args: Args, task: Task) -> dict[str, Any]:
    die_once("handler")
    return {"number": args.number}


@handlers.register("held", args=Args)
async def held(args: Args, task: Task) -> dict[str, Any]:
    """Ends when the test says so."""
    mark(f"begun-{task.command_id}-{task.attempt}")
    while not marked("release"):
        await asyncio.sleep(POLL_S)
    return {"number": args.number, "pid": os.getpid()}


@handlers.register("failing", args=Args)
async def failing(args: Args, task: Task) -> dict[str, Any]:
    """Fails until the test says otherwise."""
    mark(f"begun-{task.command_id}-{task.attempt}")
    if not marked("release"):
        raise TaskFailed("temporary", "not yet", retryable=True)
    return {"number": args.number}


@handlers.register("logging", args=Args)
async def logging_handler(args: Args, task: Task) -> None:
    """Logs as a library does that knows nothing of tasks."""
    library.info("direct %s", task.command_id)
    await asyncio.sleep(POLL_S)
    await asyncio.gather(inner(task.command_id), asyncio.to_thread(library.info, "thread %s", task.command_id))


async def inner(command_id: str) -> None:
    await asyncio.sleep(POLL_S)
    library.info("inner %s", command_id)


@handlers.register("logging_thread", args=Args)
def logging_thread(args: Args, task: Task) -> None:
    """The same from a thread, which runs a loop of its own."""
    library.info("direct %s", task.command_id)
    asyncio.run(inner(task.command_id))


@handlers.register("stuck", args=Args)
def stuck(args: Args, task: Task) -> None:
    """A thread that nothing ends."""
    mark(f"begun-{task.command_id}-{task.attempt}")
    while True:
        signal.sigtimedwait([], 1)


def install_kills() -> None:
    """Die in the transaction that concludes a command: before its commit is asked for, and after it was answered."""
    transact, commit = JobWriter._transact, AIOKafkaProducer.commit_transaction
    concluding = False

    async def watched_transact(self: JobWriter, batch: Any) -> int:
        nonlocal concluding
        concluding = any(queued.entry.state and queued.entry.state.concluded for queued in batch)
        return await transact(self, batch)

    async def watched_commit(self: AIOKafkaProducer) -> None:
        if concluding:
            die_once("before_commit")
        await commit(self)
        if concluding:
            die_once("after_commit")

    JobWriter._transact = watched_transact  # type: ignore[method-assign]
    AIOKafkaProducer.commit_transaction = watched_commit


def main() -> int:
    install_kills()
    settings = load_settings()
    service = JobService(settings, handlers, NoopObserver(), job_mode=settings.WORKER_MODE == "job")
    tasks = Stage([service], uses_grace=True)
    return launch(
        settings,
        stages=[tasks],
        stop_order=[tasks],
        checks=[kafka_check(settings)],
        hooks=Hooks(),
        observer=NoopObserver(),
        exposition=lambda: (b"", "text/plain"),
        connect_timeout_s=settings.WORKER_JOB_CONNECT_TIMEOUT_S if settings.WORKER_MODE == "job" else None,
    )


if __name__ == "__main__":
    sys.exit(main())
