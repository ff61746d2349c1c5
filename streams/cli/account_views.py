"""`accounts list` and `accounts show`: the directory beside what is projected of each account."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from streams.cli.account_desk import JSON_OPTION, open_desk, print_json, to_json
from streams.cli.frame import Invocation, asynchronous
from streams.projection.status import AccountStatus, StatusReader

_ROWS_AT_ONCE: Final = 200


@click.command("list")
@click.option("--user", help="Only accounts of this user.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(("live", "disabled", "error", "deleted")),
    help="Only accounts in this state (may be repeated); all but deleted by default.",
)
@JSON_OPTION
@asynchronous
async def list_accounts(cli: Invocation, *, user: str | None, states: tuple[str, ...], as_json: bool) -> int:
    """List accounts with what is known of their synchronisation."""
    async with open_desk(cli.settings) as desk, StatusReader.connected(cli.settings) as reader:
        batch: list[Any] = []
        table = _Listing(cli.json or as_json)
        async for account in desk.store.list_accounts(user_id=user, states=states or None):
            batch.append(account)
            if len(batch) == _ROWS_AT_ONCE:
                table.add(batch, await reader.of([item.account_id for item in batch]))
                batch = []
        table.add(batch, await reader.of([item.account_id for item in batch]))
        table.end()
    return 0


class _Listing:
    """Accounts one after the other: a JSON array, or a table."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._count = 0
        self._table = Table(box=None, header_style="bold")
        for name in ("account", "user", "mailbox", "state", "phase", "tier", "messages", "last sync", "error"):
            self._table.add_column(name, overflow="fold", no_wrap=name == "account")
        if as_json:
            click.echo("[", nl=False)

    def add(self, accounts: Sequence[Any], statuses: dict[str, AccountStatus]) -> None:
        for account in accounts:
            status = statuses.get(account.account_id)
            if self._json:
                click.echo(",\n " if self._count else "\n ", nl=False)
                click.echo(to_json(_described(account, status)), nl=False)
            else:
                self._table.add_row(
                    account.account_id,
                    account.user_id,
                    f"{account.username} at {account.host}:{account.port}",
                    account.state if not account.reason else f"{account.state}: {account.reason}",
                    (status and status.phase) or "",
                    (status and status.tier) or "",
                    str(status.messages) if status and status.messages is not None else "",
                    _time(status.last_sync_at) if status else "",
                    f"{status.error_code}: {status.error_message}" if status and status.error_code else "",
                )
            self._count += 1

    def end(self) -> None:
        if self._json:
            click.echo("\n]" if self._count else "]")
        elif self._count:
            Console(width=None if sys.stdout.isatty() else 200).print(self._table)
        else:
            click.echo("no accounts; `faust -A streams accounts add` adds one", err=True)


@click.command("show")
@click.argument("account_id")
@JSON_OPTION
@asynchronous
async def show(cli: Invocation, *, account_id: str, as_json: bool) -> int:
    """Show one account: state, tier, owner, errors, next poll, and its folders as projected."""
    async with open_desk(cli.settings) as desk, StatusReader.connected(cli.settings) as reader:
        account = await desk.store.get(account_id)
        status = (await reader.of([account_id])).get(account_id)
        mailboxes = await reader.mailboxes(account_id)
    described = _described(account, status)
    if cli.json or as_json:
        print_json({**described, "mailboxes": [asdict(mailbox) for mailbox in mailboxes]})
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    facts = Table(box=None, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in described.items():
        if value is not None:
            facts.add_row(name.replace("_", " "), str(value))
    console.print(facts)
    if mailboxes:
        folders = Table(box=None, header_style="bold")
        for name in ("folder", "use", "messages", "unread", "uidvalidity", "history"):
            folders.add_column(name, overflow="fold")
        for mailbox in mailboxes:
            history = "complete" if mailbox.backfilled_at else ""
            if mailbox.backfilled_at and mailbox.backfilled_to:
                history = f"back to {mailbox.backfilled_to:%Y-%m-%d}"
            folders.add_row(
                mailbox.name if mailbox.selectable else f"{mailbox.name} (container)",
                mailbox.special_use or "",
                str(mailbox.messages),
                str(mailbox.unread),
                str(mailbox.uidvalidity or ""),
                history,
            )
        console.print()
        console.print(folders)
    return 0


def _described(account: Any, status: AccountStatus | None) -> dict[str, Any]:
    facts = asdict(account)
    if status is not None:
        facts |= {f"sync_{name}" if name in facts else name: value for name, value in asdict(status).items()}
        facts.pop("sync_account_id", None)
    return facts


def _time(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment is not None else ""
