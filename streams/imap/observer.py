"""What a session tells whoever counts. No metrics library here."""

from __future__ import annotations

from typing import Protocol


class SessionObserver(Protocol):
    """Hooks of a session. They must not block and must not raise."""

    def command_finished(self, name: str, seconds: float, outcome: str) -> None:
        """A command ended: `outcome` is OK, NO, BAD or the code of an error."""
        ...

    def response_ignored(self, kind: str, reason: str) -> None:
        """A line came that we do not know (`unknown`) or that does not parse. `kind` is short and clean."""
        ...

    def session_ended(self, code: str) -> None:
        """The connection is gone; `closed` when we wanted it, `timed_out` for a peer gone stale."""
        ...


class SilentObserver:
    """Counts nothing."""

    def command_finished(self, name: str, seconds: float, outcome: str) -> None:
        """Nothing."""

    def response_ignored(self, kind: str, reason: str) -> None:
        """Nothing."""

    def session_ended(self, code: str) -> None:
        """Nothing."""
