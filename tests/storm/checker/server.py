"""What the mail server holds, read by `imapclient`: every selectable mailbox, UID, flag and content key."""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import imapclient
import imapclient.imap_utf7
from imapclient.exceptions import IMAPClientAbortError, IMAPClientError

from tests.storm.checker.header import Facts, facts

_HEADER: Final = b"BODY[HEADER]"
_ATTEMPTS: Final = 5
_WINDOW: Final = 500
"""UIDs per FETCH: servers refuse long lists, and answers stay small."""


@dataclass(frozen=True, slots=True)
class Login:
    """How to reach one account as an ordinary client. `account` is the product's id of it."""

    account: str
    host: str
    port: int
    username: str
    password: str = field(repr=False)
    tls: bool = False


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """One message in its place. `content` is equal for copies of a message and differs otherwise; None: unknowable."""

    flags: frozenset[str]
    content: str | None
    facts: Facts = field(default_factory=dict)
    """What `message.added` must say of it."""


@dataclass(frozen=True, slots=True)
class ServerMailbox:
    """One selectable mailbox as the server shows it."""

    wire_name: str
    name: str
    uidvalidity: int
    messages: dict[int, ServerMessage]


def wire_key(wire_name: str) -> str:
    """The name by which mailboxes are compared: INBOX may be written in any case (RFC 9051, 5.1)."""
    return "INBOX" if wire_name.upper() == "INBOX" else wire_name


def canonical_flags(flags: Any) -> frozenset[str]:
    """Flags for comparison: system flags are case-insensitive (RFC 9051, 2.3.2), `\\Recent` belongs to a session."""
    texts = (flag.decode("latin-1") if isinstance(flag, bytes) else str(flag) for flag in flags)
    plain = (text.lower() if text.startswith("\\") else text for text in texts)
    return frozenset(text for text in plain if text != "\\recent")


def connect(login: Login) -> imapclient.IMAPClient:
    """A logged-in connection with names as they are on the wire."""
    context = None
    if login.tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    connection = imapclient.IMAPClient(login.host, login.port, ssl=login.tls, ssl_context=context, timeout=60)
    connection.folder_encode = False
    connection.normalise_times = False
    try:
        connection.login(login.username, login.password)
    except BaseException:
        connection.shutdown()
        raise
    return connection


@contextmanager
def client(login: Login) -> Iterator[imapclient.IMAPClient]:
    """The same, logged out at the end."""
    connection = connect(login)
    try:
        yield connection
        connection.logout()
    except BaseException:
        connection.shutdown()
        raise


def read_server(login: Login) -> dict[str, ServerMailbox]:
    """Every selectable mailbox by its wire name. Opens read-only, so that reading changes nothing."""
    for attempt in range(_ATTEMPTS):
        try:
            return _read(login)
        except (IMAPClientAbortError, OSError):
            # A server may drop a connection at any time; what was read so far counts for nothing.
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(1.0)
    raise AssertionError("unreachable")


def listed(login: Login) -> set[str]:
    """Wire names of every mailbox that the server lists as one that can be opened, whether it can or not."""
    with client(login) as connection:
        return {wire for wire, _ in _selectable(connection)}


def _selectable(connection: imapclient.IMAPClient) -> Iterator[tuple[str, Any]]:
    """Wire name, and name as the library takes it."""
    for attributes, _, raw in connection.list_folders():
        if {attribute.lower() for attribute in attributes} & {b"\\noselect", b"\\nonexistent"}:
            continue
        wire = raw.decode("ascii") if isinstance(raw, bytes) else str(raw)
        yield wire_key(wire), raw


def _read(login: Login) -> dict[str, ServerMailbox]:
    found: dict[str, ServerMailbox] = {}
    with client(login) as connection:
        has_ids = connection.has_capability("OBJECTID")
        for wire, raw in _selectable(connection):
            try:
                found[wire] = _read_mailbox(connection, raw, wire, has_ids)
            except IMAPClientError as error:
                # A server's list may name for a moment what was just deleted; opening it tells.
                if "doesn't exist" not in str(error) and "NONEXISTENT" not in str(error):
                    raise
    return found


def _read_mailbox(connection: imapclient.IMAPClient, raw: bytes, wire: str, has_ids: bool) -> ServerMailbox:
    answer = connection.select_folder(raw, readonly=True)
    uids = sorted(connection.search("ALL"))
    items: list[Any] = ["FLAGS", "RFC822.SIZE", "INTERNALDATE", "BODY.PEEK[HEADER]"]
    if has_ids:
        items.append("EMAILID")
    messages = {
        uid: ServerMessage(canonical_flags(data[b"FLAGS"]), _content(data), _facts(data))
        for uid, data in fetch(connection, uids, items).items()
    }
    name = imapclient.imap_utf7.decode(wire.encode("ascii"))
    return ServerMailbox(wire, name, int(answer[b"UIDVALIDITY"]), messages)


def fetch(connection: imapclient.IMAPClient, uids: Sequence[int], items: Sequence[str]) -> dict[int, dict[bytes, Any]]:
    """Items of these UIDs, asked for in pieces."""
    found: dict[int, dict[bytes, Any]] = {}
    for start in range(0, len(uids), _WINDOW):
        found |= connection.fetch(list(uids[start : start + _WINDOW]), list(items))
    return found


def _content(data: dict[bytes, Any]) -> str | None:
    """Equal for copies: the server's id of the content, else size, arrival and header together."""
    if b"EMAILID" in data:
        return repr(data[b"EMAILID"])
    header = data.get(_HEADER) or b""
    if not header.strip():
        return None
    digest = hashlib.sha256(header).hexdigest()
    return f"{data[b'RFC822.SIZE']}/{data[b'INTERNALDATE'].isoformat()}/{digest}"


def _facts(data: dict[bytes, Any]) -> Facts:
    return facts(data[b"RFC822.SIZE"], data[b"INTERNALDATE"], data.get(_HEADER) or b"")
