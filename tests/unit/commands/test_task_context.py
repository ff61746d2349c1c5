"""Every log record of a task carries the task, through awaits, libraries and threads (rows W16, W17)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from typing import Any

import structlog

from streams.commands.handlers import Handlers, NoArgs, Task, TaskFailed
from streams.commands.threads import in_thread
from tests.unit.commands.rig import Rig, accounts, running

library_log = logging.getLogger("some.library")


class Recorder(logging.Handler):
    """Keeps what the standard library's log records would carry."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.getMessage(), structlog.contextvars.get_contextvars()))


async def test_w16_records_carry_task_service_and_attempt_everywhere() -> None:
    recorder = Recorder()
    library_log.addHandler(recorder)
    library_log.setLevel(logging.INFO)
    handlers, ids = Handlers(), accounts()

    async def deep() -> None:
        await asyncio.sleep(0)
        library_log.info("deep")
        await asyncio.create_task(child())
        await in_thread(library_log.info, "thread")

    async def child() -> None:
        library_log.info("child")

    async def coroutine(args: NoArgs, task: Task) -> None:
        await deep()
        if task.attempt == 1:
            raise TaskFailed("temporary", "again", retryable=True)

    def function(args: NoArgs, task: Task) -> None:
        library_log.info("function")
        inner = threading.Thread(target=contextvars.copy_context().run, args=(library_log.info, "inner"))
        inner.start()
        inner.join(5)

    handlers.add("coroutine", coroutine, args=NoArgs)
    handlers.add("function", function, args=NoArgs)
    try:
        async with running(Rig(handlers)) as rig:
            accounts_used = next(ids), next(ids)
            first = rig.send("coroutine", accounts_used[0])
            second = rig.send("function", accounts_used[1])
            await rig.finish()
        assert structlog.contextvars.get_contextvars() == {}
    finally:
        library_log.removeHandler(recorder)
    expected = {
        ("deep", first, 1), ("child", first, 1), ("thread", first, 1),
        ("deep", first, 2), ("child", first, 2), ("thread", first, 2),
        ("function", second, 1), ("inner", second, 1),
    }  # fmt: skip
    assert {(text, fields["task_id"], fields["attempt"]) for text, fields in recorder.seen} == expected
    assert {fields["service"] for _, fields in recorder.seen} == {"tests"}


async def test_w16_what_one_task_sets_off_does_not_log_in_its_name() -> None:
    seen: list[dict[str, Any]] = []
    handlers = Handlers()

    async def noop(args: NoArgs, task: Task) -> None:
        seen.append(structlog.contextvars.get_contextvars())

    handlers.add("noop", noop, args=NoArgs)
    ids = accounts()
    async with running(Rig(handlers, concurrency=1)) as rig:
        sent = [rig.send("noop", next(ids)) for _ in range(3)]
        await rig.finish()
    assert [fields["task_id"] for fields in seen] == sent
