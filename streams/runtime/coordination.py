"""What aiokafka's coordination of a group leaves to whoever calls `getmany`: to take its errors, and to notice its end.

An error of the coordination is told to all that wait for records, and the coordination waits until somebody takes it.
Faust fetches past `getmany` and never does: after one answer that aiokafka does not know (a broker that has no room for
the group's state says `UNKNOWN_SERVER_ERROR`) a worker ends, or, when it was not fetching just then, heartbeats no
more, is put out of the group and does not join again. And a heartbeat that ended with an error is not begun anew before
the next join.
"""

from __future__ import annotations

from typing import Any


def ended(coordinator: Any) -> bool:
    """Whether a `GroupCoordinator` coordinates no more, and never will."""
    return bool(coordinator._coordination_task.done() and not coordinator._closing.done())


def in_error(coordinator: Any) -> bool:
    """Whether an error waits to be taken."""
    return coordinator._error_consumed_fut is not None


def rejoin_if_silent(coordinator: Any) -> None:
    """Have it join again when one of its tasks has ended with an error: a join is what begins them anew."""
    for task in (coordinator._heartbeat_task, coordinator._commit_refresh_task):
        if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
            coordinator.request_rejoin()


def take_error(coordinator: Any) -> Exception | None:
    """The error that the coordination waits to be rid of, if there is one. It goes on, and joins again if it must."""
    try:
        coordinator.check_errors()
    except Exception as error:  # what a heartbeat raises is passed on as it is, a `RuntimeError` of the loop too
        rejoin_if_silent(coordinator)
        return error
    return None
