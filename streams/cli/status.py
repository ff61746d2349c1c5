"""`faust -A streams status`: who runs what, and how the accounts are doing (row S18)."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streams.cli.fleet_view import FleetView, counts, observe, ranges, summarise
from streams.cli.frame import Invocation, asynchronous
from streams.contracts.account import AccountState, Phase, Tier

OVERDUE_WORTH_A_WORD_S: Final = 60.0
"""A poll that is late by less is what a busy worker looks like."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--errors", default=10, show_default=True, type=click.IntRange(0, 1000), help="Newest errors shown.")
@asynchronous
async def command(cli: Invocation, *, as_json: bool, errors: int) -> int:
    """Show workers, partitions, accounts by tier and phase, what is unserved, overdue and wrong.

    Reads Kafka only. Exits with 1 when no worker runs or a partition has no owner.
    """
    seen = await observe(cli.settings)
    view = summarise(seen, partitions=cli.settings.PARTITIONS, now=datetime.now(UTC), errors=errors)
    if as_json or cli.json:
        click.echo(json.dumps(asdict(view), default=_plain, indent=2))
    else:
        _show(view, Console())
    return 1 if view.unassigned else 0


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise TypeError(type(value).__name__)


def _show(view: FleetView, console: Console) -> None:
    console.print(f"group {view.group}: {view.state}, {len(view.workers)} workers, {view.partitions} partitions")
    if view.unassigned:
        console.print(f"[bold red]without an owner: partitions {ranges(view.unassigned)}[/]")
    table = Table(box=None, header_style="bold")
    for name in ("worker", "host", "partitions", "live", "served", "tiers"):
        table.add_column(name, justify="right" if name in ("live", "served") else "left", overflow="fold")
    for worker in view.workers:
        table.add_row(
            Text(worker.worker),
            Text(worker.host),
            f"{len(worker.partitions)}: {ranges(worker.partitions)}" if worker.partitions else "none",
            str(worker.live),
            str(worker.served),
            counts(worker.by_tier, get_args(Tier)),
        )
    console.print(table)
    console.print(f"accounts  {counts(view.by_state, get_args(AccountState))}")
    console.print(f"tiers     {counts(view.by_tier, get_args(Tier))}")
    console.print(f"phases    {counts(view.by_phase, get_args(Phase))}")
    if view.unserved:
        console.print(f"[bold yellow]unserved  {view.unserved}[/]")
    if view.oldest_overdue_s >= OVERDUE_WORTH_A_WORD_S:
        console.print(f"[bold yellow]overdue   {view.oldest_overdue_s:.0f} s: account {view.oldest_overdue_account}[/]")
    if view.errors:
        console.print(_errors(view))


def _errors(view: FleetView) -> Table:
    table = Table(box=None, header_style="bold", title="last errors", title_justify="left")
    for name in ("at", "account", "mailbox", "error", "again at"):
        table.add_column(name, overflow="fold")
    for error in view.errors:
        table.add_row(
            _time(error.at),
            error.account_id,
            # What a mail server says and names is shown as it is: a `[/x]` in it is no markup.
            Text(error.mailbox or ""),
            Text(f"{error.code}: {error.message}"),
            _time(error.retry_at) if error.retry_at else "",
        )
    return table


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
