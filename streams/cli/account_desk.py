"""What the subcommands of `accounts` share: the store, the announcement after it, and how results are printed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click

from streams.directory.accounts import AccountRow, AccountStore, NewAccount
from streams.directory.announcing import Announcer
from streams.errors import ServiceUnavailable
from streams.projection.migrations import migrate
from streams.settings import Settings

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@dataclass(slots=True)
class Desk:
    """What a command works with."""

    settings: Settings
    store: AccountStore
    unannounced: int = 0
    _announcer: Announcer | None = None
    _kafka_away: bool = False
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _exit: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def announce(self, row: AccountRow, reason: str | None = None) -> bool:
        """Tell Kafka; False when it cannot be told now."""
        try:
            async with self._connecting:
                if self._announcer is None and not self._kafka_away:
                    self._announcer = await self._exit.enter_async_context(Announcer.connected(self.settings))
            if self._announcer is not None:
                await self._announcer.announce(row, reason)
                return True
        except ServiceUnavailable as error:
            if not self._kafka_away:
                self._kafka_away = True
                click.echo(
                    f"stored, but not announced: {error}. Workers will find out by themselves within "
                    f"{self.settings.RECONCILE_S:g} s of their next comparison (RECONCILE_S).",
                    err=True,
                )
            self._announcer = None
        self.unannounced += 1
        return False


@asynccontextmanager
async def open_desk(settings: Settings) -> AsyncIterator[Desk]:
    await migrate(settings.POSTGRES_DSN.get_secret_value())
    store = await AccountStore.open(settings)
    desk = Desk(settings, store)
    try:
        async with desk._exit:
            yield desk
    finally:
        await store.close()


def with_sealed(new: NewAccount, sealed: bytes | None) -> NewAccount:
    """The account with the credentials as they are after a trial, which may have rotated a token."""
    return replace(new, sealed=sealed)


def print_row(row: AccountRow, *, as_json: bool) -> None:
    click.echo(to_json(asdict(row)) if as_json else f"{row.account_id} is {row.state}")


def print_json(value: Any) -> None:
    click.echo(to_json(value))


def to_json(value: Any) -> str:
    return json.dumps(value, default=lambda moment: moment.isoformat(), ensure_ascii=False)
