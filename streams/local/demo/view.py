"""What the demo shows: a live table at a terminal, plain lines elsewhere, and a summary at the end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streams.local.demo.watch import Seen, Watch

REFRESH_S = 0.125
SPARE_LINES = 10  # of the terminal, for what is not the table

_COLOURS = {
    "message.added": "green",
    "message.flags_changed": "yellow",
    "message.removed": "red",
    "message.moved": "cyan",
    "message.unreadable": "bold red",
    "account.caught_up": "bold blue",
    "backfill.completed": "blue",
}


def milliseconds(seconds: float | None) -> str:
    """A latency for people; blank where there is none to tell."""
    return "" if seconds is None else f"{seconds * 1000:,.0f} ms"


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class View:
    """Shows a `Watch` until it is cancelled."""

    def __init__(
        self, console: Console, watch: Watch, names: Mapping[str, str], hints: Sequence[tuple[str, str]]
    ) -> None:
        """`names` are the users by account id, `hints` what to type elsewhere to see more."""
        self._console = console
        self._watch = watch
        self._names = names
        self._hints = hints
        self._began = time.monotonic()

    def show_hints(self) -> None:
        """How to look further, in full and to copy."""
        self._console.print()
        for what, line in self._hints:
            self._console.print(f"[bold]{what}[/]  ", Text(line), soft_wrap=True)
        self._console.print()

    async def run(self) -> None:
        """Show until cancelled. Raises what a reader of the watch failed with."""
        if self._console.is_terminal:
            await self._live()
            return
        self._watch.listeners.append(self._line)
        while True:
            self._watch.check()
            await asyncio.sleep(REFRESH_S)

    def summary(self, remark: str = "") -> bool:
        """Print what was seen, with a remark on it; whether mail flowed all the way."""
        watch = self._watch
        arrived = [seen for seen in watch.measured if seen.stored_at is not None]
        self._console.print()
        if not arrived:
            self._console.print(
                f"[bold red]nothing flowed[/]: {watch.deeds.done} deeds, {sum(watch.counts.values())} events, "
                f"{watch.stored} of them in the database"
            )
            return False
        self._console.print("[bold]From a deed in the mailbox to its event in the log and its row in the database[/]")
        table = Table(box=None)
        for title in ("", "events", "log p50", "log p99", "database p50", "database p99"):
            table.add_column(title, justify="left" if not title else "right")
        for kind in sorted({seen.kind for seen in arrived}):
            log = [seen.log_latency or 0.0 for seen in arrived if seen.kind == kind]
            row = [seen.database_latency or 0.0 for seen in arrived if seen.kind == kind]
            table.add_row(
                f"[{_COLOURS.get(kind, '')}]{kind}[/]",
                str(len(log)),
                *(milliseconds(percentile(values, share)) for values in (log, row) for share in (0.5, 0.99)),
            )
        self._console.print(table)
        if remark:
            self._console.print(f"[dim]{remark}[/]", soft_wrap=True)
        events = ", ".join(f"{number} {kind}" for kind, number in sorted(watch.counts.items()))
        self._console.print(f"\nin the log: {events}", highlight=False, soft_wrap=True)
        self._console.print(f"in the database: {watch.stored} of {sum(watch.counts.values())} events", highlight=False)
        return True

    async def _live(self) -> None:
        with Live(self._picture(), console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                self._watch.check()
                live.update(self._picture(), refresh=True)
                await asyncio.sleep(REFRESH_S)

    def _picture(self) -> Group:
        table = Table(box=None, expand=True, padding=(0, 1))
        table.add_column("time", no_wrap=True, style="dim")
        table.add_column("account", no_wrap=True)
        table.add_column("seq", justify="right", style="dim")
        table.add_column("event", no_wrap=True)
        table.add_column("what", ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column("→ log", justify="right", no_wrap=True)
        table.add_column("→ row", justify="right", no_wrap=True)
        rows = max(5, self._console.height - SPARE_LINES)
        for seen in list(self._watch.recent)[-rows:]:
            table.add_row(
                time.strftime("%H:%M:%S", time.localtime(seen.wall)),
                self._names.get(seen.account_id, seen.account_id[:8]),
                str(seen.sequence),
                Text(seen.kind, style=_COLOURS.get(seen.kind, "")),
                Text(seen.what),
                milliseconds(seen.log_latency),
                milliseconds(seen.database_latency) if seen.stored_at is not None else "…",
            )
        watch = self._watch
        running = time.monotonic() - self._began
        head = Text.assemble(
            ("mailstreams", "bold"),
            f"  {running:,.0f} s  ",
            (f"{sum(watch.counts.values()):,} events", "bold"),
            f"  {watch.stored:,} in the database  {watch.deeds.waiting} under way   Ctrl-C ends it",
        )
        return Group(head, table)

    def _line(self, seen: Seen) -> None:
        latency = ""
        if seen.log_latency is not None:
            latency = f"log {milliseconds(seen.log_latency)}, row {milliseconds(seen.database_latency)}"
        stamp = time.strftime("%H:%M:%S", time.localtime(seen.wall))
        who = self._names.get(seen.account_id, seen.account_id[:8])
        print(f"{stamp} {who:6} {seen.sequence:>4} {seen.kind:22} {seen.what}  {latency}".rstrip(), flush=True)
