"""A job of one's own: the words that occur most in the subjects of an account's newest messages.

Shows arguments with limits, progress, a failure with a code of its own, and a session with the mail server through the
limits of the process. `python subjects.py SUBJECT...` runs the counting on the engine in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import uuid
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from streams.commands.handlers import Handlers, Task, TaskFailed

WORD = re.compile(r"[^\W\d_]{3,}")
HEADER = b"BODY.PEEK[HEADER.FIELDS (SUBJECT)]"

handlers = Handlers()


class TopSubjects(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the command may say in `args`. Anything else is a dead letter with the reason `schema`."""

    mailbox: str = "INBOX"
    newest: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 500
    words: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10


class CountWords(msgspec.Struct, frozen=True):
    """Arguments of the second handler, which needs no mail server."""

    texts: tuple[str, ...]


@handlers.register("top_subjects", args=TopSubjects)
async def top_subjects(args: TopSubjects, task: Task) -> dict[str, Any]:
    """An `async def` handler: it is cancelled when its time is over or the process ends."""
    from streams.mime.headers import parse_headers

    counts: Counter[str] = Counter()
    async with task.resources["mail"].open(task.account_id) as session:
        listed = (await session.list_mailboxes(with_status=False)).mailboxes
        wire_name = next((entry.wire_name for entry in listed if entry.display_name == args.mailbox), None)
        if wire_name is None:
            raise TaskFailed("mailbox_unknown", f"there is no mailbox {args.mailbox!r}")
        await session.examine(wire_name)
        uids = list((await session.uid_search()).uids)[-args.newest :]
        if not uids:
            return {"messages": 0, "words": {}}
        done = 0
        async with contextlib.aclosing(session.uid_fetch(f"{uids[0]}:{uids[-1]}", [HEADER])) as chunks:
            async for chunk in chunks:
                for message in chunk.messages:
                    headers = parse_headers(message.sections.get(b"HEADER.FIELDS", b""))
                    counts.update(words_of(headers.subject or ""))
                done += len(chunk.messages)
                task.progress(min(1.0, done / len(uids)), counts={"messages": done})
    return {"messages": done, "words": dict(counts.most_common(args.words))}


@handlers.register("count_words", args=CountWords, timeout_s=30.0)
def count_words(args: CountWords, task: Task) -> dict[str, Any]:
    """A `def` handler: it runs in a thread of its own, and has to look by itself whether it is to stop."""
    counts: Counter[str] = Counter()
    for number, text in enumerate(args.texts, 1):
        task.check()
        counts.update(words_of(text))
        task.progress(number / len(args.texts), counts={"texts": number})
    return {"words": dict(counts.most_common(10))}


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return [word.lower() for word in WORD.findall(text)]


async def try_out(texts: list[str]) -> None:
    """Run `count_words` once, without Kafka."""
    from streams.commands.engine import Engine
    from streams.commands.limits import EngineLimits
    from streams.commands.memory_lane import MemoryLane, MemoryTopic
    from streams.commands.surroundings import Surroundings
    from streams.contracts.commands import Command
    from streams.domain.retry import RetryLimits

    topic = MemoryTopic()
    retry = RetryLimits(retries=2, backoff_s=0.1, backoff_max_s=1.0, attempt_s=30.0, give_up_s=60.0)
    limits = EngineLimits(retry=retry)
    engine = Engine(handlers, Surroundings(limits, partitions=1, worker="here", service="example"))
    lane = MemoryLane(topic)
    session = engine.attach(lane)
    command = Command(
        command_id=str(uuid.uuid4()),
        account_id=str(uuid.UUID(int=1)),
        kind="count_words",
        at=datetime.now(UTC),
        args={"texts": texts},
    )
    topic.produce(command.account_id.encode(), msgspec.json.encode(command))
    lane.feed(session)
    async with asyncio.timeout(30):
        while not engine.idle:
            await engine.changed()
    for record in topic.committed:
        print((record.value or b"").decode())  # noqa: T201


if __name__ == "__main__":
    asyncio.run(try_out(sys.argv[1:] or ["Invoice 2024", "invoice for May", "Holiday"]))
