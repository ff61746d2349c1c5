"""`faust -A streams keys`: make encryption keys, and bring stored credentials under a new one.

To rotate: put a new key *before* the old one in `ENCRYPTION_KEYS`, restart workers, run `keys rotate`, take the old key
away. Nothing stops meanwhile.
"""

from __future__ import annotations

import json
from collections import Counter

import click
from rich.console import Console
from rich.progress import Progress

from streams.cli.frame import Invocation, asynchronous, synchronous
from streams.directory.accounts import AccountStore
from streams.directory.credentials import CredentialBox, generate_key
from streams.errors import CredentialsRefused
from streams.projection.migrations import migrate


@click.group()
def group() -> None:
    """Make and rotate encryption keys."""


@group.command("generate")
@synchronous
def generate(cli: Invocation) -> None:
    """Print a new key for ENCRYPTION_KEYS (the only copy: keep it as you keep passwords)."""
    click.echo(generate_key())


@group.command("rotate")
@click.option("--dry-run", is_flag=True, help="Count what would be done; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@asynchronous
async def rotate(cli: Invocation, *, dry_run: bool, as_json: bool) -> int:
    """Encrypt every stored credential with the first key of ENCRYPTION_KEYS. Safe to repeat and to interrupt.

    Exits with 1 when a credential opens with none of the keys.
    """
    settings = cli.settings
    box = CredentialBox.from_settings(settings)
    await migrate(settings.POSTGRES_DSN.get_secret_value())
    store = await AccountStore.open(settings)
    counts: Counter[str] = Counter({"resealed": 0, "current": 0, "changed_meanwhile": 0, "unreadable": 0})
    console = Console(stderr=True)
    try:
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("credentials", total=None)
            async for page in store.sealed_pages():
                for account_id, sealed in page:
                    counts[await _reseal(store, box, account_id, sealed, dry_run=dry_run)] += 1
                progress.update(bar, advance=len(page))
    finally:
        await store.close()
    if cli.json or as_json:
        click.echo(json.dumps({"dry_run": dry_run, **counts}))
    else:
        verb = "would be brought" if dry_run else "brought"
        click.echo(
            f"{counts['resealed']} credentials {verb} under the first key, {counts['current']} were already, "
            f"{counts['unreadable']} cannot be opened"
        )
    return 1 if counts["unreadable"] else 0


async def _reseal(store: AccountStore, box: CredentialBox, account_id: str, sealed: bytes, *, dry_run: bool) -> str:
    try:
        anew = box.reseal(account_id, sealed)
    except CredentialsRefused as error:
        click.echo(f"account {account_id}: {error}", err=True)
        return "unreadable"
    if anew is None:
        return "current"
    if dry_run or await store.store_sealed(account_id, anew, replacing=sealed):
        return "resealed"
    return "changed_meanwhile"  # by somebody who sealed it with the first key
