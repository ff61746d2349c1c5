"""How a command ends for everybody who listens (row W15).

Invariant: a conclusion, what follows from it, the command's state and the position that passes it are one entry.
"""

from __future__ import annotations

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
        self._conclude(work, (event, *result.emitted), "success", "")
        return None

    def failed(self, work: Work, why: Failure, letter: str | None = None) -> None:
        """Conclude as failed. `letter` is the reason of the dead letter that goes with it; faults always have one."""
        surroundings, lane = self._surroundings, work.session.lane
        records = [
            publishing.failure(work.command, work.attempt, why, surroundings.worker, surroundings.now(), lane.partition)
        ]
        if letter is None and why.unexpected:
            letter = "handler_failed"
        if letter is not None:
            records.append(publishing.dead_letter(lane.topic, work.delivery, letter, f"{why.code}: {why.message}"))
        self._conclude(work, tuple(records), "failure", why.code)

    def handed_back(self, work: Work, attempts: int) -> None:
        """No end: it is left to whoever comes next, with the number of attempts that count against it."""
        log.info("command left to another worker", task_id=work.command.command_id, kind=work.command.kind)
        work.session.submit(Entry(state=work.state(attempts, None, self._surroundings.now())))

    def _conclude(
        self, work: Work, records: tuple[OutRecord, ...], status: Literal["success", "failure"], code: str
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

        entry = Entry(
            self._beginnings.take(work) + records,
            work.state(work.attempt, status, self._surroundings.now()),
            session.acks.finish(work.delivery.offset),
        )
        session.concluding[work.state_key] = began_at
        session.submit(entry, committed)
