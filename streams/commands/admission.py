"""From a delivery to a command that may run, or to where else it belongs (rows W13, W15).

Invariant: everything that was delivered leaves here as work or settled, and a record that is no command never holds up
the ones behind it.
"""

from __future__ import annotations

from typing import Final, assert_never

import structlog

from streams.commands import publishing
from streams.commands.conclusion import Conclusions
from streams.commands.handlers import Handlers
from streams.commands.limits import LOST_ATTEMPTS
from streams.commands.ports import Delivery, Entry
from streams.commands.session import Session
from streams.commands.surroundings import Surroundings
from streams.commands.validation import Misplaced, judge, read_envelope
from streams.commands.work import Work
from streams.contracts.commands import Command
from streams.domain.retry import Failure
from streams.errors import PoisonRecord

log = structlog.get_logger(__name__)

POISON_LOG_S: Final = 5.0


class Admission:
    """Reads envelopes as they come, and judges commands when their turn has come."""

    def __init__(self, surroundings: Surroundings, handlers: Handlers, conclusions: Conclusions) -> None:
        self._surroundings = surroundings
        self._handlers = handlers
        self._conclusions = conclusions
        self._poison_logged: dict[str, tuple[float, int]] = {}  # by reason: when, and how many since

    def admit(self, session: Session, delivery: Delivery) -> Work | None:
        """The command in a delivery; None when it was settled here (a dead letter, or sent on to its partition)."""
        topic = session.lane.topic
        try:
            read = read_envelope(delivery, self._surroundings.partitions)
        except PoisonRecord as poison:
            self._surroundings.observer.poison(topic, poison.reason)
            self._log_poison(topic, delivery, poison)
            letter = publishing.dead_letter(topic, delivery, poison.reason, str(poison))
            session.submit(Entry((letter,), position=session.acks.finish(delivery.offset)))
            return None
        match read:
            case Misplaced(_, partition):
                self._surroundings.observer.rekeyed(topic)
                moved = publishing.sent_on(topic, delivery, partition)
                session.submit(Entry((moved,), position=session.acks.finish(delivery.offset)))
                return None
            case Command():
                return Work(session, delivery, read, (session.number, read.account_id))
            case _:
                assert_never(read)

    def judge(self, work: Work) -> bool:
        """Whether the command is to be run, now that all before it of its account is over; otherwise it is settled."""
        session, command = work.session, work.command
        known = session.lane.known(*work.state_key)
        if work.state_key in session.concluding or (known is not None and known.concluded is not None):
            log.debug("command concluded before", task_id=command.command_id, kind=command.kind)
            session.submit(Entry(position=session.acks.finish(work.delivery.offset)), self._surroundings.changed)
            return False
        work.attempt = known.attempts if known is not None else 0
        if work.attempt > self._surroundings.limits.retry.retries + LOST_ATTEMPTS:
            lost = f"{work.attempt} attempts ended with their process"
            self._conclusions.failed(work, Failure("lost", lost, retryable=False, unexpected=True))
            return False
        try:
            runnable = judge(command, self._handlers, self._surroundings.now())
        except PoisonRecord as poison:
            self._surroundings.observer.poison(session.lane.topic, poison.reason)
            why = Failure(poison.reason, str(poison), retryable=False)
            self._conclusions.failed(work, why, letter=poison.reason)
            return False
        work.spec, work.args = runnable.spec, runnable.args
        return True

    def _log_poison(self, topic: str, delivery: Delivery, poison: PoisonRecord) -> None:
        """One line for the first of each reason, then one a while: a broken producer sends thousands."""
        now = self._surroundings.clock()
        logged_at, left_out = self._poison_logged.get(poison.reason, (-POISON_LOG_S, 0))
        if now - logged_at < POISON_LOG_S:
            self._poison_logged[poison.reason] = (logged_at, left_out + 1)
            return
        self._poison_logged[poison.reason] = (now, 0)
        log.warning(
            "record is no command",
            topic=topic,
            partition=delivery.partition,
            offset=delivery.offset,
            reason=poison.reason,
            more_before=left_out,
        )
