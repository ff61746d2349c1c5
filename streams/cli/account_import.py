"""`accounts import`: many accounts out of a file, a few at a time, each line on its own."""

from __future__ import annotations

import asyncio
from typing import IO, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streams.cli.account_desk import JSON_OPTION, Desk, open_desk, to_json, with_sealed
from streams.cli.account_input import PLAINTEXT_IS_OFF, AccountInput, BadAccount, connection_of, read_file
from streams.cli.frame import EXIT_CONFIGURATION, Invocation, asynchronous, fail
from streams.directory.accounts import AccountExists
from streams.directory.credentials import CredentialBox
from streams.directory.providers import load_providers
from streams.directory.trying import LoginTrial, sentence
from streams.errors import ConfigurationError, MailstreamsError

_TRIED_AT_ONCE: Final = 8


@click.command("import")
@click.argument("source", type=click.File("r", encoding="utf-8-sig", errors="replace"))
@click.option("--no-test", is_flag=True, help="Do not try the logins.")
@JSON_OPTION
@asynchronous
async def import_accounts(cli: Invocation, *, source: IO[str], no_test: bool, as_json: bool) -> int:
    """Add many accounts from SOURCE (`-` is stdin), CSV or JSON lines.

    Fields: user, host, username, and one of password, secret_ref, or oauth_provider with refresh_token; optional: port,
    tls. CSV names them in its first line. A line that fails is reported by its number and the others go on; then the
    exit code is 1.
    """
    settings = cli.settings
    box = CredentialBox.from_settings(settings)
    trial = LoginTrial(settings, box, load_providers(settings.OAUTH_PROVIDERS_FILE))
    console = Console(stderr=True)
    async with open_desk(settings) as desk:
        with Progress(
            TextColumn("[bold]importing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as progress:
            run = _Import(desk, box, None if no_test else trial, progress, as_json=cli.json or as_json)
            try:
                await run.all_of(source)
            except BadAccount as error:
                fail(f"{source.name}: {error}", EXIT_CONFIGURATION)
    click.echo(f"{run.added} added, {run.existing} were there already, {run.failed} failed", err=True)
    return 1 if run.failed else 0


class _Import:
    """One import: a few lines at a time, so that memory does not grow with the file."""

    def __init__(
        self, desk: Desk, box: CredentialBox, trial: LoginTrial | None, progress: Progress, *, as_json: bool
    ) -> None:
        self._desk = desk
        self._box = box
        self._trial = trial
        self._progress = progress
        self._bar = progress.add_task("import", total=None, failed=0)
        self._json = as_json
        self.added = self.existing = self.failed = 0

    async def all_of(self, source: IO[str]) -> None:
        """Raises `BadAccount` when the file as a whole cannot be read."""
        self._progress.update(self._bar, total=_lines(source))
        slots = asyncio.Semaphore(_TRIED_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as running:
                for number, wanted in read_file(source):
                    await slots.acquire()
                    task = running.create_task(self._one(number, wanted))
                    task.add_done_callback(lambda _: slots.release())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # what ends one line's task for good ends the import

    async def _one(self, number: int, wanted: AccountInput | BadAccount) -> None:
        if isinstance(wanted, BadAccount):
            self._refused(number, str(wanted))
        elif wanted.tls == "plain" and not self._desk.settings.IMAP_ALLOW_PLAINTEXT:
            self._refused(number, PLAINTEXT_IS_OFF)
        else:
            await self._add(number, wanted)
        self._progress.update(self._bar, advance=1, failed=self.failed)

    async def _add(self, number: int, wanted: AccountInput) -> None:
        new = wanted.seal(self._box)
        try:
            if self._trial is not None:
                tried = await self._trial.login(connection_of(new))
                new = with_sealed(new, tried.connection.sealed)
            row = await self._desk.store.add(new)
        except AccountExists as error:
            self.existing += 1
            self._say(
                number, {"account_id": error.account_id, "status": "exists"}, f"there already: {error.account_id}"
            )
            return
        except ConfigurationError:
            raise
        except MailstreamsError as error:
            self._refused(number, sentence(error, wanted.host))
            return
        await self._desk.announce(row, "imported")
        self.added += 1
        self._say(number, {"account_id": row.account_id, "status": "added"}, row.account_id)

    def _refused(self, number: int, why: str) -> None:
        self.failed += 1
        if self._json:
            self._say(number, {"status": "failed", "error": why}, "")
        else:
            self._progress.console.print(f"line {number}: {why}", markup=False, highlight=False, soft_wrap=True)

    def _say(self, number: int, result: dict[str, Any], plain: str) -> None:
        click.echo(to_json({"line": number, **result}) if self._json else plain)


def _lines(source: IO[str]) -> int | None:
    """How many lines there are, where that can be known without reading all of it twice over a pipe."""
    try:
        at = source.tell()
        count = sum(1 for _ in iter(source.readline, ""))
        source.seek(at)
    except (OSError, ValueError):
        return None
    return count
