"""What a person or a file says about a new account, checked and completed.

Invariant: a secret comes from a prompt without echo, from stdin or from a file, never from an argument, and is in no
error.
"""

from __future__ import annotations

import csv
import getpass
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

import click

from streams.directory.accounts import AccountConnection, NewAccount
from streams.directory.credentials import CredentialBox, StoredCredential, StoredOAuth2, StoredPassword
from streams.imap.credentials import Secret
from streams.imap.values import TlsMode

TLS_MODES: Final = ("tls", "starttls", "plain")
_PORTS: Final[Mapping[str, int]] = {"tls": 993, "starttls": 143, "plain": 143}
MAX_SECRET_CHARS: Final = 65_536
PLAINTEXT_IS_OFF: Final = (
    "accounts without TLS are refused while IMAP_ALLOW_PLAINTEXT is off: use --tls tls or starttls, or turn it on."
)
FIELDS: Final = frozenset(
    {"user", "host", "username", "password", "port", "tls", "secret_ref", "oauth_provider", "refresh_token"}
)


class BadAccount(ValueError):
    """The account cannot be what was meant; the text says why and quotes no secret."""


@dataclass(frozen=True, slots=True)
class AccountInput:
    """A new account, complete. Exactly one of `credential` and `secret_ref` is set."""

    user_id: str
    host: str
    port: int
    tls: TlsMode
    username: str
    credential: StoredCredential | None = field(default=None, repr=False)
    secret_ref: str | None = None

    def seal(self, box: CredentialBox) -> NewAccount:
        """The row to store, with the credentials encrypted for it."""
        auth = "password" if isinstance(self.credential, StoredPassword) else "oauth2"
        new = NewAccount(
            self.user_id,
            self.host,
            self.port,
            self.tls,
            self.username,
            "secret_ref" if self.credential is None else cast(Any, auth),
            secret_ref=self.secret_ref,
        )
        if self.credential is None:
            return new
        return NewAccount(
            new.user_id,
            new.host,
            new.port,
            new.tls,
            new.username,
            new.auth,
            sealed=box.seal(new.account_id, self.credential),
            account_id=new.account_id,
        )


def connection_of(new: NewAccount) -> AccountConnection:
    """The account as a login sees it, before it has a row."""
    return AccountConnection(
        new.account_id,
        new.user_id,
        new.state,
        0,
        new.host,
        new.port,
        new.tls,
        new.username,
        new.auth,
        new.sealed,
        new.secret_ref,
    )


def complete(
    *,
    user: str,
    host: str,
    username: str,
    port: int | None,
    tls: str | None,
    credential: StoredCredential | None = None,
    secret_ref: str | None = None,
) -> AccountInput:
    """Check, and fill in port and TLS mode: 993 is TLS, 143 is STARTTLS, unless said otherwise. Raises `BadAccount`."""
    host = host.strip().rstrip(".")
    for name, text in (("user", user), ("host", host), ("user name", username), ("secret reference", secret_ref)):
        if not _storable(text or ""):
            raise BadAccount(f"the {name} must be text that can be stored: without NUL, valid Unicode")
    if not user or len(user) > 200:
        raise BadAccount("the user must have 1 to 200 characters")
    if not host or len(host) > 253 or any(character.isspace() or character in "/@:" for character in host):
        raise BadAccount("the host must be a host name or an address, without port or scheme")
    if not username or len(username) > 500 or any(character in username for character in "\r\n\0"):
        raise BadAccount("the user name must have 1 to 500 characters on one line")
    if tls is not None and tls not in TLS_MODES:
        raise BadAccount(f"tls must be one of {', '.join(TLS_MODES)}")
    mode = tls or ("starttls" if port == 143 else "tls")
    number = port if port is not None else _PORTS[mode]
    if not 1 <= number <= 65_535:
        raise BadAccount("the port must be between 1 and 65535")
    if secret_ref is not None:
        check_secret_ref(secret_ref)
    if (credential is None) == (secret_ref is None):
        raise BadAccount("credentials are needed: a password, OAuth2 tokens, or a secret reference")
    return AccountInput(user, host, number, cast(TlsMode, mode), username, credential, secret_ref)


def check_secret_ref(name: str) -> None:
    """Refuse what can be no file in CREDENTIALS_DIR, whatever is in it. Raises `BadAccount`."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise BadAccount("the secret reference must be the name of a file in CREDENTIALS_DIR")


def ask_secret(*, from_stdin: bool, file: Path | None, prompt: str) -> Secret:
    """A secret from stdin, from a file, or asked for without echo. Raises `click.UsageError` when there is none."""
    if from_stdin:
        try:
            text = sys.stdin.read(MAX_SECRET_CHARS + 1)
        except UnicodeDecodeError:
            raise click.UsageError("the secret on stdin is not UTF-8") from None
    elif file is not None:
        try:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(MAX_SECRET_CHARS + 2)  # a line break may end it; a device never ends
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"the file with the secret cannot be read ({type(error).__name__})") from None
    elif sys.stdin.isatty():
        text = _asked(prompt)
    else:
        raise click.UsageError("no terminal to ask for the password at: use --password-stdin or --password-file")
    text = text.removesuffix("\n").removesuffix("\r")
    if not _is_secret(text):
        raise click.UsageError("the secret must be one line that is not empty")
    return Secret(text)


def _asked(prompt: str) -> str:
    # asyncio takes the first Ctrl-C for a wish to cancel its task, which waits here and hears of nothing.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return getpass.getpass(prompt)
    finally:
        signal.signal(signal.SIGINT, before)


def _is_secret(text: str) -> bool:
    fits = 0 < len(text) <= MAX_SECRET_CHARS and not any(character in text for character in "\r\n")
    return fits and _storable(text)


def _storable(text: str) -> bool:
    """Whether PostgreSQL takes it: no NUL, and no lone surrogate, which JSON and arguments may hold."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def read_file(stream: IO[str]) -> Iterator[tuple[int, AccountInput | BadAccount]]:
    """Accounts of a CSV file (first line: names of fields) or of JSON lines, one by one, with their line numbers."""
    start = stream.readline()
    if start.lstrip().startswith("{"):
        yield from _json_lines(start, stream)
        return
    try:
        names = [name.strip().lower() for name in next(csv.reader([start]), [])]
    except csv.Error:
        raise BadAccount("the first line is no CSV") from None
    if unknown := [name for name in names if name not in FIELDS]:
        raise BadAccount(f"the first line must name fields; {unknown[0][:40]!r} is none of {', '.join(sorted(FIELDS))}")
    if missing := {"user", "host", "username"} - set(names):
        raise BadAccount(f"the first line must name {', '.join(sorted(missing))} too")
    reader = csv.reader(stream)
    try:
        for cells in reader:
            number = reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) > len(names):
                yield number, BadAccount("more cells than the first line has names")
                continue
            yield number, _from_fields(dict(zip(names, cells, strict=False)))
    except csv.Error:
        yield reader.line_num + 1, BadAccount("no CSV from here on")


def _json_lines(start: str, stream: IO[str]) -> Iterator[tuple[int, AccountInput | BadAccount]]:
    line, number = start, 1
    while line:
        if line.strip():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                yield number, BadAccount("no JSON object")
            elif unknown := set(found) - FIELDS:
                yield number, BadAccount(f"unknown field {sorted(unknown)[0][:40]!r}")
            else:
                yield number, _from_fields(found)
        line, number = stream.readline(), number + 1


def _from_fields(found: Mapping[str, Any]) -> AccountInput | BadAccount:
    try:
        text = {name: _text(name, value) for name, value in found.items()}
        port = text.get("port", "")
        if port and not (port.isdecimal() and len(port) <= 5):  # Python refuses to read numbers of thousands of digits
            raise BadAccount("the port must be a number between 1 and 65535")
        return complete(
            user=text.get("user", ""),
            host=text.get("host", ""),
            username=text.get("username", ""),
            port=int(port) if port else None,
            tls=text.get("tls") or None,
            credential=_credential(text),
            secret_ref=text.get("secret_ref") or None,
        )
    except BadAccount as error:
        return error


def _credential(text: Mapping[str, str]) -> StoredCredential | None:
    if text.get("oauth_provider"):
        if not text.get("refresh_token"):
            raise BadAccount("oauth_provider needs refresh_token")
        if not _is_secret(text["refresh_token"]) or not _storable(text["oauth_provider"]):
            raise BadAccount("oauth_provider and refresh_token must be one line of text each")
        return StoredOAuth2(text["oauth_provider"], Secret(text["refresh_token"]))
    if not text.get("password"):
        return None
    if not _is_secret(text["password"]):
        raise BadAccount("the password must be one line of text")
    return StoredPassword(Secret(text["password"]))


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadAccount(f"{name} must be text")
    if "\N{REPLACEMENT CHARACTER}" in str(value):  # what the file is read with puts it in place of other bytes
        raise BadAccount(f"{name} is not valid UTF-8")
    return str(value) if name in ("password", "refresh_token") else str(value).strip()
