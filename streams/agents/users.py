"""What agents do with events about users: `user.active` and `user.accounts`. Owns the rows of `users`.

Heat goes to accounts as `account.heat`, keyed by account, so that it reaches whichever worker has them. It goes to all
accounts of the user that are not deleted: one that is disabled now may be live before the session ends.

A user without accounts has a row while its session lasts, for an account that may join. Such rows would pile up where
most users of the product have no mailbox here, so agents sweep: with every `SWEEP_EVERY`th activity in a partition
they look at the next rows of it (tables change in agents only) and drop those that say nothing any more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from streams.agents.intake import Inbound
from streams.agents.ports import Outgoing
from streams.agents.tables import Rows, UserRow
from streams.contracts import topics
from streams.contracts.account import AccountHeat, UserAccount, UserActive
from streams.contracts.codec import encode
from streams.domain.sessions import UserState, on_active, on_member

_LOGGER: Final = logging.getLogger(__name__)


SWEEP_EVERY: Final = 32
SWEEP_ROWS: Final = 128
"""More rows per sweep than activities between two: rows cannot be made faster than they are looked at."""

RowsAfter = Callable[[int, str | None, int], Sequence[str]]
"""Up to so many keys of a partition that come after a key (None: the first ones), in the table's order."""


@dataclass(slots=True)
class UserEvents:
    """Handlers of the user topics. `now` is the wall clock."""

    rows: Rows
    grace: timedelta
    now: Callable[[], datetime]
    rows_after: RowsAfter = lambda _partition, _after, _limit: ()
    _activities: Counter[int] = field(default_factory=Counter)
    _swept_to: dict[int, str | None] = field(default_factory=dict)

    def active(self, record: Inbound, event: UserActive) -> Sequence[Outgoing]:
        """The user has a session: pass it on to the accounts unless what was passed on covers it."""
        now = self.now()
        self._activities[record.partition] += 1
        if self._activities[record.partition] % SWEEP_EVERY == 0:
            self._sweep(record.partition, now)
        user = on_active(self._state(event.user_id), at=event.at, grace=self.grace, now=now)
        if user is None:
            return ()
        self.rows.put(event.user_id, UserRow.of(user))
        return [_heat(event.user_id, account_id, user, now) for account_id in user.accounts]

    def account(self, _record: Inbound, event: UserAccount) -> Sequence[Outgoing]:
        """An account joins the user and gets its heat, or leaves it."""
        now = self.now()
        before = self._state(event.user_id)
        try:
            user = on_member(before, event.account_id, member=event.member, version=event.version)
        except ValueError as error:
            _LOGGER.error("account %s of user %s gets no session heat: %s", event.account_id, event.user_id, error)
            return ()
        if user is not None:
            if user.accounts or user.heat(now) is not None:
                self.rows.put(event.user_id, UserRow.of(user))
            else:
                self.rows.drop(event.user_id)
        after = before if user is None else user
        if event.account_id in after.accounts and event.member and after.heat(now) is not None:
            return (_heat(event.user_id, event.account_id, after, now),)
        return ()

    def _sweep(self, partition: int, now: datetime) -> None:
        keys = self.rows_after(partition, self._swept_to.get(partition), SWEEP_ROWS)
        for user_id in keys:
            row: UserRow | None = self.rows.get(user_id)
            if row is not None and not row.accounts and row.state.heat(now) is None:
                self.rows.drop(user_id)
        self._swept_to[partition] = keys[-1] if len(keys) == SWEEP_ROWS else None

    def _state(self, user_id: str) -> UserState:
        row: UserRow | None = self.rows.get(user_id)
        return UserState() if row is None else row.state


def _heat(user_id: str, account_id: str, user: UserState, now: datetime) -> Outgoing:
    assert user.until is not None
    record = AccountHeat(account_id=account_id, user_id=user_id, until=user.until, at=now)
    return Outgoing(topics.HEAT, account_id.encode(), encode(record))
