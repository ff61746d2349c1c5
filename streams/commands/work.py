"""One delivered command on its way through an engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from streams.commands.execution import Attempt
from streams.commands.handlers import HandlerSpec
from streams.commands.ports import CommandState, Delivery
from streams.commands.progress import ProgressGate
from streams.commands.session import Session
from streams.contracts.commands import Command


@dataclass(eq=False, slots=True)
class Work:
    """A command and where it stands. Only the engine's parts change it."""

    session: Session
    delivery: Delivery
    command: Command
    account: tuple[int, str]
    """What of it runs one after another: an account's commands of one session."""
    spec: HandlerSpec | None = None
    args: Any = None
    attempt: int = 0
    began_at: float | None = None
    """First attempt in this process, on the engine's clock."""
    attempt_at: float = 0.0
    unwritten_since: datetime | None = None
    """When the attempt began, while the log does not say so."""
    announced: bool = False
    """Whether `started` was published from here."""
    gate: ProgressGate = field(default_factory=ProgressGate)
    reporting: bool = False
    running: Attempt | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def state_key(self) -> tuple[str, str]:
        """What the lane's memory knows it by."""
        return self.command.account_id, self.command.command_id

    def state(self, attempts: int, concluded: Literal["success", "failure"] | None, at: datetime) -> CommandState:
        """What the lane is to remember of it."""
        return CommandState(
            self.command.account_id, self.command.command_id, attempts, concluded, self.delivery.offset, at
        )

    def timeout_s(self, limit_s: float) -> float:
        """The time limit of an attempt: the handler's own, when that is shorter than the process's."""
        own = self.spec.timeout_s if self.spec is not None else None
        return limit_s if own is None else min(own, limit_s)
