"""`faust -A streams accounts`: add, list, show, change and remove accounts.

PostgreSQL is written first, then Kafka is told. When Kafka does not answer the change is kept and said so: reconcile
announces it within `RECONCILE_S`. Exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import click

from streams.cli.account_desk import JSON_OPTION, open_desk, print_json, print_row, with_sealed
from streams.cli.account_import import import_accounts
from streams.cli.account_input import (
    PLAINTEXT_IS_OFF,
    TLS_MODES,
    BadAccount,
    ask_secret,
    check_secret_ref,
    complete,
    connection_of,
)
from streams.cli.account_views import list_accounts, show
from streams.cli.frame import Invocation, asynchronous, fail
from streams.directory.accounts import AccountRow, AccountStore, NewAccount, UnknownAccount
from streams.directory.credentials import CredentialBox, StoredCredential, StoredOAuth2, StoredPassword
from streams.directory.providers import load_providers
from streams.directory.trying import LoginTrial, Tried, sentence
from streams.errors import ConfigurationError, MailstreamsError, ServiceUnavailable

_SECRET_FILE = click.Path(exists=True, dir_okay=False, readable=True, allow_dash=False, path_type=Path)


@click.group()
def group() -> None:
    """Add, list, show, change and remove accounts."""


group.add_command(list_accounts)
group.add_command(show)
group.add_command(import_accounts)


def _login_options(command: Any) -> Any:
    """Where the secret comes from; never an argument."""
    for option in (
        click.option("--password-stdin", is_flag=True, help="Read the password (or refresh token) from stdin."),
        click.option("--password-file", type=_SECRET_FILE, help="Read the password (or refresh token) from a file."),
        click.option("--secret-ref", help="Name of a file in CREDENTIALS_DIR instead of a stored password."),
        click.option("--oauth-provider", help="OAuth2 provider; the secret is then a refresh token."),
        click.option("--no-test", is_flag=True, help="Do not try to log in first."),
    ):
        command = option(command)
    return command


def _credential(
    whose: str,
    *,
    password_stdin: bool,
    password_file: Path | None,
    secret_ref: str | None,
    oauth_provider: str | None,
) -> StoredCredential | None:
    if secret_ref is not None:
        if password_stdin or password_file or oauth_provider:
            raise click.UsageError("--secret-ref goes with no password and no provider")
        try:
            check_secret_ref(secret_ref)
        except BadAccount as error:
            raise click.UsageError(str(error)) from None
        return None
    if password_stdin and password_file:
        raise click.UsageError("--password-stdin and --password-file exclude each other")
    prompt = f"{'Refresh token' if oauth_provider else 'Password'} for {whose}: "
    secret = ask_secret(from_stdin=password_stdin, file=password_file, prompt=prompt)
    return StoredOAuth2(oauth_provider, secret) if oauth_provider else StoredPassword(secret)


@group.command("add")
@click.option("--user", required=True, help="Your product's id of the user the account belongs to.")
@click.option("--host", required=True, help="IMAP server.")
@click.option("--username", required=True, help="Login name at the server.")
@click.option("--port", type=click.IntRange(1, 65535), help="993 by default, 143 with --tls starttls or plain.")
@click.option("--tls", type=click.Choice(TLS_MODES), help="tls by default, starttls when the port is 143.")
@_login_options
@JSON_OPTION
@asynchronous
async def add(
    cli: Invocation,
    *,
    user: str,
    host: str,
    username: str,
    port: int | None,
    tls: str | None,
    password_stdin: bool,
    password_file: Path | None,
    secret_ref: str | None,
    oauth_provider: str | None,
    no_test: bool,
    as_json: bool,
) -> int:
    """Add an account: try its login, store it encrypted, announce it.

    The password is asked for without echo, or taken from --password-stdin or --password-file.
    """
    settings = cli.settings
    if tls == "plain" and not settings.IMAP_ALLOW_PLAINTEXT:
        fail(PLAINTEXT_IS_OFF)
    box = CredentialBox.from_settings(settings)
    trial = LoginTrial(settings, box, load_providers(settings.OAUTH_PROVIDERS_FILE))
    credential = _credential(
        f"{username} at {host}",
        password_stdin=password_stdin,
        password_file=password_file,
        secret_ref=secret_ref,
        oauth_provider=oauth_provider,
    )
    try:
        wanted = complete(
            user=user, host=host, username=username, port=port, tls=tls, credential=credential, secret_ref=secret_ref
        )
    except BadAccount as error:
        raise click.UsageError(str(error)) from None
    new = wanted.seal(box)
    tried: Tried | None = None
    if not no_test:
        new, tried = await _try(trial, new)
    async with open_desk(settings) as desk:
        row = await desk.store.add(new)
        announced = await desk.announce(row, "added")
    if cli.json or as_json:
        print_json({**asdict(row), "announced": announced, "folders": tried.folders if tried else None})
        return 0
    if tried is not None:
        offers = f"; the server offers {', '.join(tried.capabilities)}" if tried.capabilities else ""
        click.echo(f"login works: {tried.folders} folders{offers}", err=True)
    click.echo(row.account_id)
    return 0


async def _try(trial: LoginTrial, new: NewAccount) -> tuple[NewAccount, Tried]:
    """Log in; the account to store, with a token that was rotated meanwhile. Ends the command when it fails."""
    try:
        tried = await trial.login(connection_of(new))
    except ConfigurationError:
        raise
    except MailstreamsError as error:
        fail(f"the login at {new.host}:{new.port} does not work: {sentence(error, new.host)} Nothing was stored.")
    return with_sealed(new, tried.connection.sealed), tried


@group.command("credentials")
@click.argument("account_id")
@_login_options
@JSON_OPTION
@asynchronous
async def credentials(
    cli: Invocation,
    *,
    account_id: str,
    password_stdin: bool,
    password_file: Path | None,
    secret_ref: str | None,
    oauth_provider: str | None,
    no_test: bool,
    as_json: bool,
) -> int:
    """Give an account a new password (or token): try it, store it; an account in `error` is live again."""
    settings = cli.settings
    box = CredentialBox.from_settings(settings)
    async with open_desk(settings) as desk:
        account = await desk.store.get(account_id)
        if account.state == "deleted":
            fail(f"account {account_id} was removed; add it anew")
        credential = _credential(
            f"{account.username} at {account.host}",
            password_stdin=password_stdin,
            password_file=password_file,
            secret_ref=secret_ref,
            oauth_provider=oauth_provider,
        )
        auth = "secret_ref" if credential is None else "oauth2" if oauth_provider else "password"
        new = NewAccount(
            account.user_id,
            account.host,
            account.port,
            account.tls,
            account.username,
            cast(Any, auth),
            box.seal(account_id, credential) if credential is not None else None,
            secret_ref,
            account_id,
        )
        if not no_test:
            trial = LoginTrial(settings, box, load_providers(settings.OAUTH_PROVIDERS_FILE))
            new, _ = await _try(trial, new)
        await desk.store.replace_credentials(account_id, new.auth, sealed=new.sealed, secret_ref=new.secret_ref)
        if account.state == "error":
            await desk.store.set_state(account_id, "live")
        row = (await desk.store.rows([account_id]))[account_id]
        await desk.announce(row, "credentials")
    print_row(row, as_json=cli.json or as_json)
    return 0


@group.command("disable")
@click.argument("account_ids", nargs=-1, required=True)
@JSON_OPTION
@asynchronous
async def disable(cli: Invocation, *, account_ids: tuple[str, ...], as_json: bool) -> int:
    """Stop synchronising accounts; what is known of them stays."""
    return await _change(cli, account_ids, "disabled", as_json=as_json)


@group.command("enable")
@click.argument("account_ids", nargs=-1, required=True)
@JSON_OPTION
@asynchronous
async def enable(cli: Invocation, *, account_ids: tuple[str, ...], as_json: bool) -> int:
    """Synchronise accounts again that were disabled or are in error."""
    return await _change(cli, account_ids, "live", as_json=as_json)


@group.command("remove")
@click.argument("account_ids", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON_OPTION
@asynchronous
async def remove(cli: Invocation, *, account_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove accounts: their credentials and what is projected of their mail go, nothing at the server is touched."""
    if not yes:
        count = len(account_ids)
        click.confirm(
            f"Remove {count} account{'s' if count > 1 else ''} with stored credentials?", abort=True, err=True
        )
    return await _change(cli, account_ids, "deleted", as_json=as_json)


async def _change(cli: Invocation, account_ids: Sequence[str], state: str, *, as_json: bool) -> int:
    failed = 0
    async with open_desk(cli.settings) as desk:
        for account_id in account_ids:
            try:
                row = await _set_state(desk.store, account_id, state)
            except MailstreamsError as error:
                if isinstance(error, ServiceUnavailable | ConfigurationError):
                    raise
                failed += 1
                click.echo(str(error), err=True)
                continue
            await desk.announce(row, "command line")
            print_row(row, as_json=cli.json or as_json)
    return 1 if failed else 0


async def _set_state(store: AccountStore, account_id: str, state: str) -> AccountRow:
    if state == "deleted":
        return await store.remove(account_id)
    account = await store.get(account_id)
    if account.state == "deleted":
        raise UnknownAccount(f"account {account_id} was removed; add it anew")
    version = await store.set_state(account_id, state)
    if version is None:
        raise UnknownAccount(f"there is no account {account_id}")
    return AccountRow(account_id, account.user_id, state, version)
