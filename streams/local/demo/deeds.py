"""What was done to the mailboxes and when, so that the event it leads to can be told how long it took.

Invariant: a deed is claimed once. An event that no deed explains (history, folders appearing) has no latency.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def key_of(event: dict[str, Any]) -> tuple[Any, ...] | None:
    """What an event of `mailbox.changes` says happened, in the form the postman registered it."""
    account = event["account_id"]
    match event["type"]:
        case "message.added":
            return ("added", account, str(event.get("headers", {}).get("message_id", "")).strip("<>"))
        case "message.flags_changed":
            return ("flags", account, event["uid"], frozenset(event["flags"]))
        case "message.removed":
            return ("removed", account, event["uid"])
        case "message.moved":
            return ("moved", account, event["from"]["uid"])
    return None


@dataclass(slots=True)
class Deeds:
    """Deeds waiting for their events. Times are of one monotonic clock, in seconds."""

    _begun: dict[tuple[Any, ...], float] = field(default_factory=dict)
    done: int = 0

    def begin(self, key: tuple[Any, ...], at: float) -> None:
        """Something is about to be done."""
        self._begun[key] = at
        self.done += 1

    def forget(self, key: tuple[Any, ...]) -> None:
        """It was not done after all."""
        if self._begun.pop(key, None) is not None:
            self.done -= 1

    def claim(self, key: tuple[Any, ...] | None) -> float | None:
        """When the deed behind an event began."""
        return None if key is None else self._begun.pop(key, None)

    @property
    def waiting(self) -> int:
        """How many have no event yet."""
        return len(self._begun)
