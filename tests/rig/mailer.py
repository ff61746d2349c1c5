"""An ordinary IMAP client (imapclient) that changes mail, and writes down what it did.

After each action the mailboxes it touched are read again, so that the journal holds what really is, also after an
action whose answer never came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import imapclient
import imapclient.imap_utf7
from imapclient.exceptions import IMAPClientError

from tests.storm.checker.journal import Journal
from tests.storm.checker.server import Login, canonical_flags, connect, fetch


class MailboxGone(Exception):
    """The folder does not exist, although a list may still name it for a moment."""


class Mailer:
    """One account's client. It blocks: call it through `asyncio.to_thread`. Names are as people see them."""

    def __init__(self, login: Login, *, age: timedelta = timedelta(0)) -> None:
        """`age` is how old everything is that this client appends: the newest mail decides an account's tier."""
        self.login = login
        self.age = age
        self.journal = Journal()
        self._connection: imapclient.IMAPClient | None = None
        self._epochs: dict[str, int] = {}

    # --- connection
    @property
    def connection(self) -> imapclient.IMAPClient:
        """Logged in; made when there is none."""
        if self._connection is None:
            self._connection = connect(self.login)
        return self._connection

    def drop(self) -> None:
        """Forget the connection, as after a failure."""
        if self._connection is not None:
            with suppress(OSError, IMAPClientError):
                self._connection.shutdown()
            self._connection = None

    def close(self) -> None:
        """Log out."""
        if self._connection is not None:
            with suppress(OSError, IMAPClientError):
                self._connection.logout()
            self.drop()

    # --- messages
    def append(
        self, folder: str, message: bytes, *, flags: Sequence[str] = (), at: datetime | None = None
    ) -> int | None:
        """Add a message; returns its UID when the server tells it."""
        before = self.uids(folder)
        self._append(folder, message, flags=flags, at=at)
        new = set(self.observe(folder)) - set(before)
        return max(new) if new else None

    def append_many(self, folder: str, messages: Iterable[bytes]) -> None:
        """Add many messages, and look once."""
        for message in messages:
            self._append(folder, message)
        self.observe(folder)

    def _append(self, folder: str, message: bytes, *, flags: Sequence[str] = (), at: datetime | None = None) -> None:
        arrived = at or datetime.now(UTC) - self.age
        self.connection.append(_wire(folder), message, flags=[flag.encode() for flag in flags], msg_time=arrived)

    def flag(self, folder: str, uids: Sequence[int], *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Add and remove flags."""
        self._select(folder)
        if add:
            self.connection.add_flags(uids, [flag.encode() for flag in add], silent=True)
            self.observe(folder)
        if remove:
            self.connection.remove_flags(uids, [flag.encode() for flag in remove], silent=True)
            self.observe(folder)

    def expunge(self, folder: str, uids: Sequence[int]) -> None:
        """Delete messages for good."""
        self._select(folder)
        self.connection.add_flags(uids, [b"\\Deleted"], silent=True)
        self.observe(folder)
        self._select(folder)
        self.connection.uid_expunge(uids)
        self.observe(folder)

    def copy(self, folder: str, uids: Sequence[int], to: str) -> None:
        """Copy messages."""
        self._select(folder)
        self.connection.copy(uids, _wire(to))
        self.observe(to)

    def move(self, folder: str, uids: Sequence[int], to: str) -> None:
        """Move messages."""
        self._select(folder)
        self.connection.move(uids, _wire(to))
        self.observe(folder)
        self.observe(to)

    def uids(self, folder: str) -> list[int]:
        """UIDs in a folder, lowest first."""
        self._select(folder)
        return sorted(self.connection.search("ALL"))

    # --- folders
    def folders(self) -> list[str]:
        """Selectable folders."""
        found = []
        for attributes, _, raw in self.connection.list_folders():
            if not {attribute.lower() for attribute in attributes} & {b"\\noselect", b"\\nonexistent"}:
                found.append(imapclient.imap_utf7.decode(raw))
        return sorted(found)

    def create(self, folder: str) -> None:
        """Make a folder."""
        self.connection.create_folder(_wire(folder))
        self.observe(folder)

    def rename(self, folder: str, to: str) -> None:
        """Rename a folder and what is below it."""
        self._leave()
        below = [name for name in self._epochs if name == folder or name.startswith(f"{folder}/")]
        self.journal.renamed |= {self._epochs[name] for name in below}
        self.connection.rename_folder(_wire(folder), _wire(to))
        self._epochs = {
            (to + name.removeprefix(folder) if name == folder or name.startswith(f"{folder}/") else name): epoch
            for name, epoch in self._epochs.items()
        }

    def delete(self, folder: str) -> None:
        """Delete a folder with everything in it."""
        self._leave()
        if folder in self._epochs:
            self.journal.deleting.add(self._epochs[folder])
        self.connection.delete_folder(_wire(folder))
        if (epoch := self._epochs.pop(folder, None)) is not None:
            self.journal.observe_mailbox(epoch, {})

    def subscribe(self, folder: str, wanted: bool) -> None:
        """Change a subscription, which must make no difference."""
        if wanted:
            self.connection.subscribe_folder(_wire(folder))
        else:
            self.connection.unsubscribe_folder(_wire(folder))

    # --- the journal
    def observe(self, folder: str) -> list[int]:
        """Read a folder and take it into the journal; returns its UIDs."""
        epoch = self._select(folder)
        uids = self.connection.search("ALL")
        present = {
            uid: canonical_flags(data[b"FLAGS"]) for uid, data in fetch(self.connection, uids, ["FLAGS"]).items()
        }
        if (before := self._epochs.get(folder)) not in (None, epoch):
            self.journal.observe_mailbox(int(before or 0), {})
        self._epochs[folder] = epoch
        self.journal.observe_mailbox(epoch, present)
        return sorted(present)

    def observe_all(self) -> None:
        """Read every folder: after an action whose outcome is not known."""
        names = []
        for folder in self.folders():
            with suppress(MailboxGone):
                self.observe(folder)
                names.append(folder)
        for gone in self._epochs.keys() - set(names):
            with suppress(MailboxGone):  # Dovecot lists a part of the folders while it makes its index anew
                self.observe(gone)
                continue
            epoch = self._epochs.pop(gone)
            if epoch not in self._epochs.values():
                self.journal.observe_mailbox(epoch, {})

    def _select(self, folder: str) -> int:
        """Open a folder anew (so that everything others did is seen); returns its epoch."""
        try:
            return int(self.connection.select_folder(_wire(folder))[b"UIDVALIDITY"])
        except IMAPClientError as error:
            if "doesn't exist" in str(error):
                raise MailboxGone(folder) from None
            raise

    def _leave(self) -> None:
        with suppress(IMAPClientError):
            self.connection.unselect_folder()


def _wire(folder: str) -> bytes:
    return bytes(imapclient.imap_utf7.encode(folder))
