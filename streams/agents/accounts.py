"""What agents do with events about accounts: `account.state_changed` and `account.heat`. Owns the rows of `accounts`.

A row is written before the host hears of it, so whoever reads the table never gets less than the host was told.
An account that changes its user loses its heat with it; heat that was meant for its former user is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from streams.agents.intake import Inbound
from streams.agents.ports import Outgoing, ShardHost
from streams.agents.tables import AccountRow, Rows
from streams.contracts import topics
from streams.contracts.account import AccountHeat, AccountStateChanged, UserAccount
from streams.contracts.codec import encode
from streams.domain.lifecycle import Life, Verdict, judge


@dataclass(frozen=True, slots=True)
class AccountEvents:
    """Handlers of the account topics."""

    rows: Rows
    host: ShardHost

    def state_changed(self, record: Inbound, event: AccountStateChanged) -> Sequence[Outgoing]:
        """Apply an event of the account's life.

        A repeat announces the account again, in case the last time was cut short.
        """
        known: AccountRow | None = self.rows.get(event.account_id)
        verdict, life = judge(known.life if known else None, Life(event.user_id, event.state, event.version))
        if verdict is Verdict.OVERTAKEN:
            return ()
        moved = known is not None and known.user_id != life.user_id
        row = AccountRow(life.user_id, life.state, life.version, None if known is None or moved else known.heat_until)
        if row != known:
            self.rows.put(event.account_id, row)
        self.host.account_changed(record.partition, row.entry(event.account_id))
        outgoing = []
        if known is not None and moved:
            outgoing.append(_membership(known.user_id, event.account_id, member=False, version=life.version))
        belongs = life.state != "deleted"
        if verdict is Verdict.REPEATS or known is None or moved or belongs != (known.state != "deleted"):
            outgoing.append(_membership(life.user_id, event.account_id, member=belongs, version=life.version))
        return outgoing

    def forgotten(self, record: Inbound, account_id: str) -> Sequence[Outgoing]:
        """A tombstone: forget the account and its version."""
        known: AccountRow | None = self.rows.get(account_id)
        self.rows.drop(account_id)
        self.host.account_forgotten(record.partition, account_id)
        return () if known is None else (_membership(known.user_id, account_id, member=False, version=None),)

    def heat(self, record: Inbound, event: AccountHeat) -> Sequence[Outgoing]:
        """Keep the account hot until the end of its user's session."""
        known: AccountRow | None = self.rows.get(event.account_id)
        if known is None or known.user_id != event.user_id or known.state == "deleted":
            return ()
        until = _later(known.heat_until, event.until)
        if until != known.heat_until:
            self.rows.put(event.account_id, AccountRow(known.user_id, known.state, known.version, until))
        self.host.heat_changed(record.partition, event.account_id, until)
        return ()


def _later(known: datetime | None, until: datetime) -> datetime:
    return until if known is None else max(known, until)


def _membership(user_id: str, account_id: str, *, member: bool, version: int | None) -> Outgoing:
    record = UserAccount(user_id=user_id, account_id=account_id, member=member, version=version)
    return Outgoing(topics.USER_ACCOUNTS, user_id.encode(), encode(record))
