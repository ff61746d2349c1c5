"""The handler: from a mailbox on the server to files and manifest, group by group."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, assert_never

import msgspec
import structlog

from streams.commands.export.arguments import Export, parse_uids
from streams.commands.export.destination import Destination
from streams.commands.export.failures import DestinationFailed, DestinationRefused
from streams.commands.export.formats import ExportedMessage, eml_name, maildir_name, mbox_file
from streams.commands.export.manifest import DestinationTaken, Header, Line, Manifest, ManifestDamaged
from streams.commands.export.names import directory_name
from streams.commands.export.planning import groups, uid_set
from streams.commands.handlers import Handlers, Task, TaskFailed
from streams.commands.operations import mailbox_unknown, uidvalidity_mismatch
from streams.commands.threads import in_thread
from streams.errors import ConfigurationError
from streams.imap.session import ImapSession
from streams.imap.values import ListedMailbox, Selected

log = structlog.get_logger(__name__)

SIZES_AT_ONCE: Final = 2000
MAIL: Final = "mail"
"""The directory of the mailboxes, beside the manifest's."""
TOO_LARGE: Final = "too_large"
NOT_THERE: Final = "not_there"
UNREADABLE: Final = "unreadable"


class Sessions(Protocol):
    """Opens sessions for accounts, logged in, within the limits of the mail host."""

    def open(self, account_id: str) -> AbstractAsyncContextManager[ImapSession]:
        """A session for the block. Raises errors of `streams.errors`; `not_live` for accounts that are not live."""
        ...


@dataclass(frozen=True, slots=True)
class _Mailbox:
    name: str
    wire_name: bytes
    directory: str


class Exporter:
    """Exports messages. `export_dir` None means that the operator has not allowed any."""

    def __init__(self, sessions: Sessions, export_dir: str | None, *, max_message_bytes: int) -> None:
        if export_dir is not None:
            _check(export_dir)
        self._sessions = sessions
        self._export_dir = export_dir
        self._max_message_bytes = max_message_bytes

    def handlers(self) -> Handlers:
        """The handler of `export`, registered."""
        handlers = Handlers()
        handlers.add("export", self.export, args=Export)
        return handlers

    async def export(self, args: Export, task: Task) -> dict[str, Any]:
        """Run one export, or what is left of it."""
        if self._export_dir is None:
            raise TaskFailed("export_off", "EXPORT_DIR is not set: this installation exports nothing")
        segments = (task.account_id, args.to or _directory_of(task.command_id))
        with _storage_failures():
            # In a thread: a store's library is imported and asked here.
            destination = await in_thread(Destination.below, self._export_dir, segments)
        manifest = Manifest(destination)
        header = Header(task.account_id, args.digest(), args.format, msgspec.to_builtins(args))
        with _storage_failures():
            await in_thread(manifest.begin, header)
        before = manifest.messages
        async with self._sessions.open(task.account_id) as session:
            mailboxes = await self._mailboxes(session, args)
            for number, mailbox in enumerate(mailboxes):
                await self._export_mailbox(
                    session, mailbox, args, destination, manifest, task, number / len(mailboxes), 1 / len(mailboxes)
                )
        with _storage_failures():
            summary = await in_thread(manifest.finish, task.account_id, task.command_id, args.format, datetime.now(UTC))
        return {
            "directory": destination.shown,
            "messages": summary.messages,
            "bytes": summary.bytes,
            "skipped": summary.skipped,
            "fetched": summary.messages - before,
            "mailboxes": len(mailboxes),
        }

    async def _mailboxes(self, session: ImapSession, args: Export) -> list[_Mailbox]:
        listed = (await session.list_mailboxes(with_status=False)).mailboxes
        selectable = {entry.display_name: entry for entry in listed if entry.selectable}
        if args.mailboxes:
            for name in args.mailboxes:
                if _found(selectable, name) is None:
                    raise mailbox_unknown(name)
            chosen = [entry for name in args.mailboxes if (entry := _found(selectable, name)) is not None]
        else:
            chosen = list(selectable.values())
        unique = {entry.wire_name: entry for entry in chosen}
        return [
            _Mailbox(entry.display_name, entry.wire_name, directory_name(entry.display_name))
            for entry in unique.values()
        ]

    async def _export_mailbox(
        self,
        session: ImapSession,
        mailbox: _Mailbox,
        args: Export,
        destination: Destination,
        manifest: Manifest,
        task: Task,
        start: float,
        share: float,
    ) -> None:
        selected = await session.examine(mailbox.wire_name)
        uidvalidity = selected.uidvalidity or 0
        if args.uidvalidity is not None and args.uidvalidity != uidvalidity:
            raise uidvalidity_mismatch(args.uidvalidity, selected.uidvalidity)
        wanted = await self._wanted(session, selected, args, manifest, mailbox, uidvalidity)
        if args.format == "maildir":
            with _storage_failures():
                for part in ("cur", "new", "tmp"):
                    await in_thread(destination.make, (MAIL, mailbox.directory, part))
        total, fetched = len(wanted), 0
        for first in range(0, total, SIZES_AT_ONCE):
            window = wanted[first : first + SIZES_AT_ONCE]
            sizes, problems = await self._sizes(session, window)
            lines = [_problem(mailbox, uidvalidity, uid, problem) for uid, problem in problems]
            for group in groups(sizes):
                written = await self._export_group(session, mailbox, uidvalidity, group, args, destination, manifest)
                fetched += len(group)
                task.progress(
                    min(1.0, start + share * fetched / total),
                    counts={"messages": manifest.messages, "bytes": manifest.bytes, "skipped": manifest.skipped},
                    message=f"{mailbox.name[:100]}: {fetched} of {total}",
                )
                log.debug("exported", mailbox=mailbox.name, messages=written)
            if lines:
                fetched += len(lines)
                with _storage_failures():
                    await in_thread(manifest.add, lines)

    async def _wanted(
        self,
        session: ImapSession,
        selected: Selected,
        args: Export,
        manifest: Manifest,
        mailbox: _Mailbox,
        uidvalidity: int,
    ) -> Sequence[int]:
        if selected.exists == 0:
            return ()
        found = (await session.uid_search(args.criteria())).uids
        if args.uids is not None:
            found &= parse_uids(args.uids)
        # Without a UIDVALIDITY the server does not promise that a UID means the same tomorrow: nothing counts as done.
        if uidvalidity:
            found -= manifest.done(mailbox.name, uidvalidity)
        return list(found)

    async def _sizes(
        self, session: ImapSession, window: Sequence[int]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
        asked = set(window)
        sizes: dict[int, int] = {}
        async with contextlib.aclosing(session.uid_fetch(uid_set(window), [b"RFC822.SIZE"])) as chunks:
            async for chunk in chunks:
                for message in chunk.messages:
                    if message.uid in asked and message.size is not None:
                        sizes[message.uid] = message.size
        good = [(uid, sizes[uid]) for uid in window if uid in sizes and sizes[uid] <= self._max_message_bytes]
        bad = [
            (uid, TOO_LARGE if uid in sizes else NOT_THERE)
            for uid in window
            if sizes.get(uid, self._max_message_bytes + 1) > self._max_message_bytes
        ]
        return good, bad

    async def _export_group(
        self,
        session: ImapSession,
        mailbox: _Mailbox,
        uidvalidity: int,
        group: Sequence[int],
        args: Export,
        destination: Destination,
        manifest: Manifest,
    ) -> int:
        messages: list[ExportedMessage] = []
        async for message in _messages(session, uidvalidity, group):
            messages.append(message)
        missing = sorted(set(group) - {message.uid for message in messages})
        with _storage_failures():
            await in_thread(_write_group, mailbox, uidvalidity, messages, missing, args, destination, manifest)
        return len(messages)


async def _messages(session: ImapSession, uidvalidity: int, group: Sequence[int]) -> AsyncIterator[ExportedMessage]:
    asked, seen = set(group), set()
    items = [b"INTERNALDATE", b"FLAGS", b"BODY.PEEK[]"]
    async with contextlib.aclosing(session.uid_fetch(uid_set(group), items)) as chunks:
        async for chunk in chunks:
            for message in chunk.messages:
                raw = message.sections.get(b"")
                # Only what was asked for, and once (a server may add flag changes of its own).
                if raw is None or message.uid not in asked or message.uid in seen:
                    continue
                seen.add(message.uid)
                yield ExportedMessage(
                    uidvalidity, message.uid, message.internal_date, message.flags or frozenset(), raw
                )


def _write_group(
    mailbox: _Mailbox,
    uidvalidity: int,
    messages: Sequence[ExportedMessage],
    missing: Sequence[int],
    args: Export,
    destination: Destination,
    manifest: Manifest,
) -> None:
    """Files first, then the part of the manifest that lists them."""
    paths: list[str]
    match args.format:
        case "eml":
            paths = [
                destination.write((MAIL, mailbox.directory, eml_name(message)), message.raw) for message in messages
            ]
        case "maildir":
            paths = [
                destination.write((MAIL, mailbox.directory, "cur", maildir_name(message)), message.raw)
                for message in messages
            ]
        case "mbox":
            # One file a part, named by its number: written again as a whole if we die before the part is listed.
            name = f"{manifest.next_part:06d}.mbox"
            if messages:
                destination.write((MAIL, mailbox.directory, name), mbox_file(messages), durable=True)
            paths = [f"{MAIL}/{mailbox.directory}/{name}"] * len(messages)
        case _:
            assert_never(args.format)
    lines = [
        Line(
            mailbox=mailbox.name,
            uidvalidity=uidvalidity,
            uid=message.uid,
            size=len(message.raw),
            path=path,
            sha256=hashlib.sha256(message.raw).hexdigest(),
            internal_date=message.internal_date,
            flags=tuple(sorted(flag.decode("ascii", "replace") for flag in message.flags)),
        )
        for message, path in zip(messages, paths, strict=True)
    ]
    manifest.add([*lines, *(_problem(mailbox, uidvalidity, uid, UNREADABLE) for uid in missing)])


def _problem(mailbox: _Mailbox, uidvalidity: int, uid: int, problem: str) -> Line:
    return Line(mailbox=mailbox.name, uidvalidity=uidvalidity, uid=uid, problem=problem)


def _found(selectable: dict[str, ListedMailbox], name: str) -> ListedMailbox | None:
    if name.upper() == "INBOX":  # RFC 3501 section 5.1: in any case of letters
        return next((entry for shown, entry in selectable.items() if shown.upper() == "INBOX"), None)
    return selectable.get(name)


def _directory_of(command_id: str) -> str:
    """A command's id is chosen by its sender: it may be anything."""
    return directory_name(command_id)


def _check(export_dir: str) -> None:
    """A setting that cannot be used shows now (row W1). Raises `ConfigurationError`; not for a store that is away."""
    try:
        Destination.below(export_dir, ())
    except DestinationRefused as error:
        raise ConfigurationError(f"EXPORT_DIR: {error}") from None
    except DestinationFailed:
        return  # it was logged, and is what exports will say


@contextlib.contextmanager
def _storage_failures() -> Iterator[None]:
    """What is wrong with the destination, as failures of the task."""
    try:
        yield
    except DestinationTaken as error:
        raise TaskFailed("destination_taken", str(error)) from None
    except ManifestDamaged as error:
        raise TaskFailed("manifest_damaged", str(error)) from None
    except DestinationRefused as error:
        raise TaskFailed("destination_refused", str(error)) from None
    except DestinationFailed as error:
        raise TaskFailed("destination_failed", str(error), retryable=True) from None
