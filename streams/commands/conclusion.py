"""How a command ends for everybody who listens (row W15).

Invariant: a conclusion, what follows from it, the command's state and the position that passes it are one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import structlog

from streams.commands import publishing
from streams.commands.beginning import Beginnings
from streams.commands.execution import Succeeded
from streams.commands.ports import Entry, OutRecord
from streams.commands.publishing import ResultInvalid
from streams.commands.surroundings import Surroundings
from streams.commands.work import Work
from streams.domain.retry import Failure

log = structlog.get_logger(__name__)

SLOW_S: Final = 1.0
"""Commands that took longer than this, or failed, are worth a line in the log each."""


class Conclusions:
    """Writes them."""

    def __init__(self, surroundings: Surroundings, beginnings: Beginnings) -> None:
        self._surroundings = surroundings
        self._beginnings = beginnings

    def succeeded(self, work: Work, result: Succeeded) -> Failure | None:
        """Conclude as done; returns why not, when what the handler gave cannot be published."""
        surroundings = self._surroundings
        partition = work.session.lane.partition
        try:
            event = publishing.success(
                work.command, work.attempt, result.result, surroundings.worker, surroundings.now(), partition
            )
            publishing.check_emitted(result.emitted)
        except ResultInvalid as error:
            return Failure("result_invalid", str(error), retryable=False, unexpected=True)
        if result.emitted:
            self._conclude(work, (event, *result.emitted), "success", "", refused=self._refused)
        else:
            self._conclude(work, (event,), "success", "")
        return None

    def failed(self, work: Work, why: Failure, letter: str | None = None) -> None:
        """Conclude as failed. `letter` is the reason of the dead letter that goes with it; faults always have one."""
        self._conclude(work, self._failure(work, why, letter), "failure", why.code)

    def _refused(self, work: Work, reason: str) -> tuple[tuple[OutRecord, ...], str]:
        """What is published in place of a success whose consequences cannot be, and its code."""
        text = f"what the handler emits is refused: {reason}"
        why = Failure("result_invalid", text, retryable=False, unexpected=True)
        return self._failure(work, why, None), why.code

    def _failure(self, work: Work, why: Failure, letter: str | None) -> tuple[OutRecord, ...]:
        surroundings, lane = self._surroundings, work.session.lane
        records = [
            publishing.failure(work.command, work.attempt, why, surroundings.worker, surroundings.now(), lane.partition)
        ]
        if letter is None and why.unexpected:
            letter = "handler_failed"
        if letter is not None:
            records.append(publishing.dead_letter(lane.topic, work.delivery, letter, f"{why.code}: {why.message}"))
        return tuple(records)

    def handed_back(self, work: Work, attempts: int) -> None:
        """No end: it is left to whoever comes next, with the number of attempts that count against it."""
        log.info("command left to another worker", task_id=work.command.command_id, kind=work.command.kind)
        work.session.submit(Entry(state=work.state(attempts, None, self._surroundings.now())))

    def _conclude(
        self,
        work: Work,
        records: tuple[OutRecord, ...],
        status: Literal["success", "failure"],
        code: str,
        *,
        refused: Callable[[Work, str], tuple[tuple[OutRecord, ...], str]] | None = None,
    ) -> None:
        session, clock = work.session, self._surroundings.clock()
        began_at = clock if work.began_at is None else work.began_at
        seconds = clock - began_at

        def committed() -> None:
            self._surroundings.observer.task_finished(work.command.kind, status, code, seconds)
            (log.info if status == "failure" or seconds > SLOW_S else log.debug)(
                "command concluded",
                task_id=work.command.command_id, kind=work.command.kind, account_id=work.command.account_id,
                status=status, code=code or None, attempts=work.attempt, seconds=round(seconds, 3),
            )  # fmt: skip
            self._surroundings.changed()

        began = self._beginnings.take(work)
        position = session.acks.finish(work.delivery.offset)

        def otherwise(reason: str) -> Entry:
            nonlocal status, code
            assert refused is not None
            instead, code = refused(work, reason)
            status = "failure"
            return Entry(began + instead, work.state(work.attempt, status, self._surroundings.now()), position)

        entry = Entry(
            began + records,
            work.state(work.attempt, status, self._surroundings.now()),
            position,
            otherwise if refused is not None else None,
        )
        session.concluding[work.state_key] = began_at
        session.submit(entry, committed)
