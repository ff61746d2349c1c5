"""`faust -A streams send`: sends a command and follows it with a progress bar to its result.

Exit codes: 0 it succeeded (or, with --no-wait, was sent); 1 it failed; 2 wrong usage or configuration; 3 it was not
concluded in the time given, and goes on.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from streams.cli.frame import EXIT_FAILURE, Invocation, asynchronous
from streams.commands.export.arguments import Export
from streams.commands.operations import Backfill, Resync, SyncNow, Verify
from streams.commands.sending import CommandClient, Sent
from streams.contracts import topics
from streams.contracts.codec import Decoder, encode
from streams.contracts.commands import (
    AnyCommandEvent,
    Command,
    CommandFailure,
    CommandProgress,
    CommandStarted,
    CommandSuccess,
)
from streams.errors import PoisonRecord

EXIT_UNFINISHED: Final = 3
FOLLOW_S: Final = 3600.0
UNTAKEN_S: Final = 5.0
"""After this long without a word of a worker whoever waits is told so."""


@click.group("send")
def group() -> None:
    """Send a command and watch what becomes of it."""


def _account(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise click.BadParameter("an account's id is a UUID") from None


_COMMON: Final = (
    click.argument("account", callback=_account),
    click.option("--no-wait", is_flag=True, help="Send it and do not follow it."),
    click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object."),
    click.option(
        "--timeout",
        "follow_s",
        type=click.FloatRange(min=0, min_open=True),
        default=FOLLOW_S,
        show_default=True,
        metavar="SECONDS",
        help="Follow it for this long; it goes on by itself.",
    ),
    click.option(
        "--expires",
        "expires_s",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="It is not begun later than this from now.",
    ),
    click.option("--command-id", help="Its id; one that was used before is not run again. A random one by default."),
)
_mailbox = click.option("--mailbox", help="Only this mailbox.")
_uidvalidity = click.option(
    "--uidvalidity", type=click.IntRange(min=0), help="Refuse when the mailbox does not have this UIDVALIDITY."
)
_day = click.DateTime(["%Y-%m-%d"])


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in reversed(_COMMON):
        function = decorate(function)
    return function


@group.command("sync-now")
@_common
@_mailbox
@_uidvalidity
@asynchronous
async def sync_now(current: Invocation, /, mailbox: str | None, uidvalidity: int | None, **common: Any) -> int:
    """Look at the mail server now, whatever the account's tier."""
    args = {"mailbox": mailbox, "uidvalidity": uidvalidity}
    return await _send(current, topics.COMMANDS, "sync_now", SyncNow, args, **common)


@group.command("resync")
@_common
@_mailbox
@_uidvalidity
@asynchronous
async def resync(current: Invocation, /, mailbox: str | None, uidvalidity: int | None, **common: Any) -> int:
    """Compare everything anew; only what really differs becomes an event."""
    args = {"mailbox": mailbox, "uidvalidity": uidvalidity}
    return await _send(current, topics.COMMANDS, "resync", Resync, args, **common)


@group.command("backfill")
@_common
@_mailbox
@_uidvalidity
@click.option("--since", type=_day, metavar="DAY", help="Back to this day (YYYY-MM-DD).")
@click.option("--count", type=click.IntRange(min=1), help="The newest of each mailbox.")
@asynchronous
async def backfill(
    current: Invocation,
    /,
    mailbox: str | None,
    uidvalidity: int | None,
    since: datetime | None,
    count: int | None,
    **common: Any,
) -> int:
    """Fetch older history: back to a day, a count, or all of it."""
    args = {"mailbox": mailbox, "uidvalidity": uidvalidity, "since": _iso(since), "count": count}
    return await _send(current, topics.COMMANDS, "backfill", Backfill, args, **common)


@group.command("verify")
@_common
@_mailbox
@click.option("--deep", is_flag=True, help="Compare with what the log adds up to, too.")
@click.option("--recheck", "recheck_s", type=float, metavar="SECONDS", help="Look at differences again after this.")
@click.option("--limit", type=click.IntRange(1, 10_000), help="Findings listed at most.")
@asynchronous
async def verify(
    current: Invocation,
    /,
    mailbox: str | None,
    deep: bool,
    recheck_s: float | None,
    limit: int | None,
    **common: Any,
) -> int:
    """Compare server, mirror and database; changes nothing."""
    args = {"mailbox": mailbox, "deep": deep or None, "recheck_s": recheck_s, "limit": limit}
    return await _send(current, topics.COMMANDS, "verify", Verify, args, **common)


@group.command("export")
@_common
@click.option("--mailbox", "mailboxes", multiple=True, help="Only this mailbox; may be given several times.")
@_uidvalidity
@click.option("--since", type=_day, metavar="DAY", help="Arrived on this day or later (YYYY-MM-DD).")
@click.option("--before", type=_day, metavar="DAY", help="Arrived before this day.")
@click.option("--uids", metavar="SET", help="Only these UIDs of one mailbox, e.g. 1:500,700.")
@click.option("--format", "form", type=click.Choice(["eml", "maildir", "mbox"]), help="eml by default.")
@click.option("--to", metavar="NAME", help="Directory below the account's; an export that is there is continued.")
@asynchronous
async def export(
    current: Invocation,
    /,
    mailboxes: tuple[str, ...],
    uidvalidity: int | None,
    since: datetime | None,
    before: datetime | None,
    uids: str | None,
    form: str | None,
    to: str | None,
    **common: Any,
) -> int:
    """Write messages as .eml files, Maildir or mbox below EXPORT_DIR."""
    args = {
        "mailboxes": list(mailboxes) or None,
        "uidvalidity": uidvalidity,
        "since": _iso(since),
        "before": _iso(before),
        "uids": uids,
        "format": form,
        "to": to,
    }
    return await _send(current, topics.JOBS, "export", Export, args, **common)


@group.command("job")
@click.argument("kind")
@_common
@click.option("--args", "text", default="{}", metavar="JSON", help="Arguments, a JSON object.")
@asynchronous
async def job(current: Invocation, /, kind: str, text: str, **common: Any) -> int:
    """Send a job of any kind, for handlers of your own."""
    try:
        args = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"--args: {error}") from None
    return await _send(current, topics.JOBS, kind, None, args, **common)


def _iso(day: datetime | None) -> str | None:
    return day.date().isoformat() if day is not None else None


async def _send(
    current: Invocation,
    topic: str,
    kind: str,
    args_type: type[msgspec.Struct] | None,
    given: dict[str, Any],
    *,
    account: str,
    no_wait: bool,
    as_json: bool,
    follow_s: float,
    expires_s: float | None,
    command_id: str | None,
) -> int:
    args = {name: value for name, value in given.items() if value is not None}
    if args_type is not None:
        try:
            msgspec.convert(args, args_type)
        except msgspec.ValidationError as error:
            raise click.UsageError(str(error)) from None
    command = _command(account, kind, args, command_id, expires_s)
    as_json = as_json or current.json
    async with CommandClient.connected(current.settings) as client:
        if no_wait:
            _show_sent(await client.send(topic, command), as_json)
            return 0
        async with client.events(command) as events:
            sent = await client.send(topic, command)
            try:
                async with asyncio.timeout(follow_s):
                    with _Bar(command, shown=not as_json) as bar:
                        async for event in events:
                            bar.show(event)
                            if isinstance(event, CommandSuccess | CommandFailure):
                                break
            except TimeoutError:
                click.echo(f"not concluded after {follow_s:g} s; it goes on as {sent.command_id}", err=True)
                return EXIT_UNFINISHED
            except asyncio.CancelledError:
                click.echo(f"it goes on as {sent.command_id}", err=True)
                raise
    return _show_outcome(event, as_json)


def _command(account: str, kind: str, args: dict[str, Any], command_id: str | None, expires_s: float | None) -> Command:
    """The command, as its reader will take it: one that is poison has no conclusion that could be waited for."""
    now = datetime.now(UTC)
    try:
        deadline = None if expires_s is None else now + timedelta(seconds=expires_s)
    except (OverflowError, ValueError):
        raise click.UsageError("--expires: there is no such time") from None
    if command_id is None:
        command_id = str(uuid.uuid4())
    command = Command(command_id=command_id, account_id=account, kind=kind, at=now, args=args, deadline=deadline)
    try:
        Decoder[Command](Command)(encode(command))
    except PoisonRecord as poison:
        raise click.UsageError(f"this cannot be sent: {poison}") from None
    return command


def _show_sent(sent: Sent, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(msgspec.to_builtins(sent)).decode())
    else:
        click.echo(sent.command_id)


def _show_outcome(event: AnyCommandEvent, as_json: bool) -> int:
    if as_json:
        click.echo(msgspec.json.encode(event).decode())
    elif isinstance(event, CommandSuccess):
        for name, value in event.result.items():
            shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            click.echo(f"{name}: {shown}")
    elif isinstance(event, CommandFailure):
        again = "; trying again later may help" if event.retryable else ""
        attempts = "1 attempt" if event.attempts == 1 else f"{event.attempts} attempts"
        click.echo(f"failed ({event.code}) after {attempts}: {event.message}{again}", err=True)
    return 0 if isinstance(event, CommandSuccess) else EXIT_FAILURE


class _Bar:
    """A progress bar on stderr, where that is a terminal."""

    def __init__(self, command: Command, *, shown: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[message]}", markup=False),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._task: TaskID = self._progress.add_task(command.kind, total=1.0, start=False, message="waiting")

        self._tells = shown
        self._untaken: asyncio.TimerHandle | None = None

    def __enter__(self) -> _Bar:
        self._progress.start()
        self._untaken = asyncio.get_running_loop().call_later(UNTAKEN_S, self._is_untaken)
        return self

    def __exit__(self, *_: object) -> None:
        self._taken()
        self._progress.stop()

    def _taken(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()

    def _is_untaken(self) -> None:
        message = "no worker has taken it yet; `faust -A streams status` shows who runs"
        if not self._progress.disable:
            self._progress.update(self._task, message=message)
        elif self._tells:
            click.echo(message, err=True)

    def show(self, event: AnyCommandEvent) -> None:
        """Move the bar."""
        self._taken()
        match event:
            case CommandStarted():
                self._progress.start_task(self._task)
                again = f", attempt {event.attempt}" if event.attempt > 1 else ""
                self._progress.update(self._task, message=f"on {event.worker or 'a worker'}{again}")
            case CommandProgress():
                counts = ", ".join(f"{count:,} {name}" for name, count in event.counts.items())
                message = " · ".join(part for part in (event.message, counts) if part)
                self._progress.update(self._task, completed=event.fraction, message=message)
            case _:
                self._progress.update(self._task, completed=1.0, message="done")
