"""What a process is made of: services that run in it, and checks that must pass before they start.

A service is started once and stopped once. The invariant its `stop` keeps: it returns soon after its deadline whatever
hangs, and what it could not finish is left for a peer, never half done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Health:
    """How a service is doing, as the probes show it.

    `alive` False means only a restart of the process helps (liveness). `ready` False means it does its work not yet,
    or not any more (readiness). `overrunning` names tasks that are over their time limit; they are shown, they do not
    make the process dead. `detail` is shown as it is and holds JSON values without secrets.
    """

    alive: bool = True
    ready: bool = True
    reason: str | None = None
    overrunning: Sequence[str] = ()
    detail: Mapping[str, object] = field(default_factory=dict)


@runtime_checkable
class Service(Protocol):
    """Something that runs in the process for as long as the process lives.

    `start` returns when the service runs by itself; it may be cancelled, and is called again after it raised
    `ServiceUnavailable`. `stop` has `deadline_s` seconds to finish
    what is in progress, then cancels the rest. It may be cancelled and called again with 0 (a second signal): then
    nothing is waited for. It is also called when `start` failed or was cancelled. `health` is called on the event
    loop, must be quick, never raises.
    """

    @property
    def name(self) -> str:
        """Name in logs and probes."""
        ...

    async def start(self) -> None: ...

    async def stop(self, deadline_s: float) -> None: ...

    def health(self) -> Health: ...


@runtime_checkable
class Watched(Protocol):
    """A service that can end by itself: `wait` returns when its work is done and raises when it has failed for good."""

    async def wait(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Services that are started, and later stopped, side by side.

    `uses_grace` says whether the stage may use the whole grace that a first signal grants (tasks in flight). Other
    stages only close what they hold open: they get what is left of the grace, at least `CLOSE_LIMIT_S`.
    """

    services: Sequence[Service]
    uses_grace: bool = False


CLOSE_LIMIT_S = 5.0
"""Time in which a stage that only closes connections must be done; longer than a transaction and a LOGOUT take."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be true before any service starts.

    `probe` raises `ConfigurationError` when an operator must act (the process ends with 2) and `ServiceUnavailable`
    (or any other `RetryLater`) when it is to be asked again later. Checks run in order; the next one only when the
    one before passed.
    """

    name: str
    probe: Callable[[], Awaitable[None]]
