"""The records that are published about commands: events, dead letters, commands sent on.

Pure. The id of an event is made of the command and of what it says, so that a reader recognises one that it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from streams.commands.ports import Delivery, OutRecord
from streams.commands.progress import Progress
from streams.contracts import topics
from streams.contracts.codec import cloud_event_headers, dead_letter_headers, dead_letter_key, encode
from streams.contracts.commands import (
    AnyCommandEvent,
    Command,
    CommandFailure,
    CommandProgress,
    CommandStarted,
    CommandSuccess,
)
from streams.domain.retry import Failure

MAX_EVENT_BYTES: Final = topics.MAX_RECORD_BYTES - 65_536
"""Room is left for key, headers and the record's frame."""

MAX_MESSAGE_CHARS: Final = 2_000


class ResultInvalid(ValueError):
    """A handler's result cannot be published: it is too large, or no JSON can be made of it."""


def started(command: Command, attempt: int, worker: str, now: datetime, partition: int) -> OutRecord:
    """A worker has begun."""
    return _event(
        CommandStarted(
            command_id=command.command_id,
            account_id=command.account_id,
            kind=command.kind,
            at=now,
            attempt=attempt,
            worker=worker,
        ),
        f"started/{attempt}",
        worker,
        partition,
    )


def progress(command: Command, attempt: int, report: Progress, worker: str, now: datetime, partition: int) -> OutRecord:
    """How far it is."""
    return _event(
        CommandProgress(
            command_id=command.command_id,
            account_id=command.account_id,
            kind=command.kind,
            at=now,
            attempt=attempt,
            worker=worker,
            fraction=report.fraction,
            counts=dict(report.counts),
            message=report.message,
        ),
        f"progress/{attempt}/{report.fraction:.6f}",
        worker,
        partition,
    )


def success(command: Command, attempt: int, result: object, worker: str, now: datetime, partition: int) -> OutRecord:
    """Concluded: done. Raises `ResultInvalid`."""
    try:
        plain: Any = msgspec.to_builtins(result if result is not None else {}, str_keys=True)
        if not isinstance(plain, dict):
            raise ResultInvalid(f"the result is a {type(result).__name__}; a mapping or a Struct is needed")
        return _event(
            CommandSuccess(
                command_id=command.command_id,
                account_id=command.account_id,
                kind=command.kind,
                at=now,
                attempt=attempt,
                worker=worker,
                result=plain,
            ),
            "conclusion",
            worker,
            partition,
        )
    except ResultInvalid:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ResultInvalid(f"no JSON can be made of the result: {error}") from None
    except Exception as error:  # out of an object of the handler, whose text may quote anything
        raise ResultInvalid(f"no JSON can be made of the result: {type(error).__name__}") from None


def failure(command: Command, attempts: int, why: Failure, worker: str, now: datetime, partition: int) -> OutRecord:
    """Concluded: not done."""
    return _event(
        CommandFailure(
            command_id=command.command_id,
            account_id=command.account_id,
            kind=command.kind,
            at=now,
            attempt=max(1, attempts),
            worker=worker,
            code=why.code,
            message=one_line(why.message),
            retryable=why.retryable,
            attempts=attempts,
        ),
        "conclusion",
        worker,
        partition,
    )


def dead_letter(topic: str, delivery: Delivery, reason: str, error: str) -> OutRecord:
    """The record as it came, with where it came from and why it is here. What is too large is cut, and says so."""
    headers = dead_letter_headers(
        topic=topic,
        partition=delivery.partition,
        offset=delivery.offset,
        reason=reason,
        error=one_line(error),
        original=delivery.headers,
    )
    value, key = delivery.value, dead_letter_key(delivery.key, headers)
    if value is not None and len(value) > MAX_EVENT_BYTES:
        headers.append(("dlq_cut_from_bytes", str(len(value)).encode()))
        value = value[:MAX_EVENT_BYTES]
    if value is None and key is None:
        value = b""  # a record needs one of them
    return OutRecord(topics.dead_letter_name(topic), key, value, headers, "dead_letter", delivery.partition)


def sent_on(topic: str, delivery: Delivery, partition: int) -> OutRecord:
    """A command as it came, for the partition where it belongs."""
    return OutRecord(topic, delivery.key, delivery.value, list(delivery.headers), "sent_on", partition)


def check_emitted(records: Iterable[OutRecord]) -> None:
    """Whether consequences can be published. Raises `ResultInvalid`: one that cannot would hold up all others."""
    for record in records:
        size = len(record.key or b"") + len(record.value or b"") + sum(len(n) + len(v) for n, v in record.headers)
        if size > MAX_EVENT_BYTES:
            raise ResultInvalid(f"a record for {record.topic} is {size} bytes, at most {MAX_EVENT_BYTES} are allowed")
        if record.key is None and record.value is None:
            raise ResultInvalid(f"a record for {record.topic} has neither key nor value")


def one_line(text: str) -> str:
    """Text fit for a log line and for JSON: one line, bounded, without lone surrogates."""
    flat = " ".join(text.split()) or "no message"
    return flat[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()


def _event(event: AnyCommandEvent, name: str, worker: str, partition: int) -> OutRecord:
    value = encode(event)
    if len(value) > MAX_EVENT_BYTES:
        raise ResultInvalid(f"the event is {len(value)} bytes, at most {MAX_EVENT_BYTES} are allowed")
    kind = str(event.__struct_config__.tag)
    headers = cloud_event_headers(
        event_id=f"{event.account_id}/{event.command_id}/{name}",
        event_type=kind,
        source=f"mailstreams/{worker}",
        at=event.at,
    )
    return OutRecord(topics.COMMAND_EVENTS, event.account_id.encode(), value, headers, kind, partition)
