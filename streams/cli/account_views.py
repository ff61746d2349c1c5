"""`accounts list` and `accounts show`: the directory beside what is projected of each account."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streams.cli.account_desk import JSON_OPTION, open_desk, print_json, to_json
from streams.cli.frame import Invocation, asynchronous
from streams.projection.status import AccountStatus, MailboxStatus, StatusReader

_ROWS_AT_ONCE: Final = 200
_WIDE: Final = 140
"""Columns that the table needs."""


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
        console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
        self._narrow = console if console.width < _WIDE else None
        self._console = console
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
            elif self._narrow is not None:
                for line in in_lines(account, status):
                    self._narrow.print(line, soft_wrap=True)
            else:
                reason = account.state if not account.reason else f"{account.state}: {account.reason}"
                error = f"{status.error_code}: {status.error_message}" if status and status.error_code else ""
                self._table.add_row(
                    account.account_id,
                    # Names, and what a mail server says, are shown as they are: a `[/x]` in them is no markup.
                    Text(account.user_id),
                    Text(f"{account.username} at {account.host}:{account.port}"),
                    Text(reason),
                    (status and status.phase) or "",
                    (status and status.tier) or "",
                    str(status.messages) if status and status.messages is not None else "",
                    _time(status.last_sync_at) if status else "",
                    Text(error),
                )
            self._count += 1

    def end(self) -> None:
        if self._json:
            click.echo("\n]" if self._count else "]")
        elif self._count:
            if self._narrow is None:
                self._console.print(self._table)
        else:
            click.echo("no accounts; `faust -A streams accounts add` adds one", err=True)


def in_lines(account: Any, status: AccountStatus | None) -> Iterator[Text]:
    """An account where a table has no room: a line that says how it does, a line that says whose it is, and its error.
    What others have written is shown as it is: a `[/x]` in it is no markup.
    """
    how = [account.state if not account.reason else f"{account.state}: {account.reason}"]
    if status:
        messages = "" if status.messages is None else f"{status.messages} messages"
        how += [status.phase or "", status.tier or "", messages]
    yield Text.assemble((account.account_id, "bold"), "  ", "  ".join(filter(None, how)))
    seen = f", last sync {_time(status.last_sync_at)}" if status and status.last_sync_at else ""
    yield Text(f"    {account.user_id}: {account.username} at {account.host}:{account.port}{seen}")
    if status and status.error_code:
        yield Text(f"    {status.error_code}: {status.error_message}")


@click.command("show")
@click.argument("account_id")
@JSON_OPTION
@asynchronous
async def show(cli: Invocation, *, account_id: str, as_json: bool) -> int:
    """Show one account: state, tier and why, owner, errors, last sync and next poll, and its folders as projected."""
    async with open_desk(cli.settings) as desk, StatusReader.connected(cli.settings) as reader:
        account = await desk.store.get(account_id)
        status = (await reader.of([account_id])).get(account_id)
        mailboxes = await reader.mailboxes(account_id)
    if cli.json or as_json:
        folders = [_folder(mailbox, status) for mailbox in mailboxes]
        print_json({**_described(account, status), "mailboxes": folders})
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    facts = Table(box=None, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in account_facts(account, status, now=datetime.now(UTC)):
        facts.add_row(name, Text(value))
    console.print(facts)
    if mailboxes:
        console.print()
        console.print(_folders_table(mailboxes, status))
    return 0


def account_facts(account: Any, status: AccountStatus | None, *, now: datetime) -> Iterator[tuple[str, str]]:
    """What there is to say of an account, in the order in which one asks."""
    yield "account", account.account_id
    yield "user", account.user_id
    yield "mailbox", f"{account.username} at {account.host}:{account.port} ({account.tls}, {account.auth})"
    yield "state", account.state if not account.reason else f"{account.state}: {account.reason}"
    if status is None:
        if account.state == "live":
            yield "status", "no worker has said anything of it yet"
        return
    if status.tier is not None:
        yield "tier", status.tier if status.tier_reason is None else f"{status.tier} ({status.tier_reason})"
    heated = status.heat_until is not None and status.heat_until > now
    yield "session", f"keeps it hot until {_time(status.heat_until)}" if heated else "none"
    yield "newest mail", _time(status.newest_mail_at) or "none seen"
    if status.worker is not None:
        yield "owner", status.worker if status.partition is None else f"{status.worker}, partition {status.partition}"
    if status.phase is not None:
        yield "phase", f"{status.phase} since {_time(status.since)}"
    yield "last sync", _time(status.last_sync_at) or "none yet"
    if status.retry_at is not None:
        yield "again at", _time(status.retry_at)
    elif status.next_poll_at is not None:
        yield "next poll", _time(status.next_poll_at)
    if status.messages is not None:
        left = f", history of {status.backfill_remaining} not complete" if status.backfill_remaining else ""
        yield "messages", f"{status.messages} in {status.mailboxes} folders{left}"
    if status.error_code is not None:
        where = f" in {status.error_mailbox}" if status.error_mailbox else ""
        yield "error", f"{status.error_code}{where}: {status.error_message} ({_time(status.error_at)})"


def _folder(mailbox: MailboxStatus, status: AccountStatus | None) -> dict[str, Any]:
    """A folder with what its account's status says of it. Every pass covers all folders but those set aside."""
    aside = status.set_aside.get(mailbox.name) if status is not None else None
    followed = status is not None and mailbox.selectable and aside is None
    return {
        **asdict(mailbox),
        "history_complete": mailbox.backfilled_at is not None,
        "last_sync_at": status.last_sync_at if status is not None and followed else None,
        "set_aside": aside,
    }


def _folders_table(mailboxes: Sequence[MailboxStatus], status: AccountStatus | None) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("folder", "use", "messages", "unread", "history", "last sync", "set aside"):
        right = name in ("messages", "unread")
        table.add_column(name, overflow="fold", justify="right" if right else "left")
    for mailbox in mailboxes:
        folder = _folder(mailbox, status)
        history = "complete" if mailbox.backfilled_at else "not complete"
        if mailbox.backfilled_at and mailbox.backfilled_to:
            history = f"back to {mailbox.backfilled_to:%Y-%m-%d}"
        table.add_row(
            Text(mailbox.name if mailbox.selectable else f"{mailbox.name} (container)"),
            Text(mailbox.special_use or ""),
            str(mailbox.messages),
            str(mailbox.unread),
            history if mailbox.selectable else "",
            _time(folder["last_sync_at"]),
            Text(folder["set_aside"] or ""),
        )
    return table


def _described(account: Any, status: AccountStatus | None) -> dict[str, Any]:
    facts = asdict(account)
    if status is not None:
        facts |= {f"sync_{name}" if name in facts else name: value for name, value in asdict(status).items()}
        facts.pop("sync_account_id", None)
    return facts


def _time(moment: Any) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if moment is not None else ""
