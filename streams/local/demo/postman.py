"""Another mail program at the same mailboxes: delivers, flags, moves and removes, one thing at a time.

It speaks IMAP with the standard library's client and shares no code with the product. It blocks, and is called in a
thread.
"""

from __future__ import annotations

import contextlib
import imaplib
import random
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from streams.local.demo.deeds import Deeds

TIMEOUT_S = 15
KEPT = 4  # messages that are left in the INBOX before anything is taken out of it

_SENDERS = (
    ("Katherine Johnson", "katherine@orbit.example"),
    ("Barbara Liskov", "barbara@types.example"),
    ("Radia Perlman", "radia@bridges.example"),
    ("Hedy Lamarr", "hedy@hopping.example"),
    ("Mary Kenneth Keller", "mary@basic.example"),
)
_SUBJECTS = (
    "Minutes of the meeting",
    "Your order has been dispatched",
    "Lunch on Thursday?",
    "The figures you asked for",
    "Re: Re: spanning trees",
    "Größe der Lieferung – bitte prüfen",
    "A question about the trajectory",
    "夏のご挨拶",
)
_FLAGS = ("\\Seen", "\\Flagged", "\\Answered")
_KEYWORDS = ("$Important",)

MAIL_ERRORS = (OSError, imaplib.IMAP4.error)
"""What a deed fails with."""


@dataclass(slots=True)
class Mailbox:
    """The account of one demo user, and what the postman knows to be in its INBOX."""

    user: str
    password: str
    host: str
    port: int
    ca_file: Path
    account_id: str = ""
    messages: dict[int, frozenset[str]] = field(default_factory=dict)
    keywords: bool = True


class Postman:
    """Does things to mailboxes and tells `deeds` before it does them."""

    def __init__(self, deeds: Deeds, chance: random.Random, clock: Callable[[], float] = time.monotonic) -> None:
        self._deeds = deeds
        self._chance = chance
        self._clock = clock
        self._number = 0
        self._clients: dict[str, imaplib.IMAP4] = {}

    def act(self, box: Mailbox) -> str:
        """Do one thing and say what. Raises `OSError` or `imaplib.IMAP4.error`."""
        spare = len(box.messages) > KEPT
        weights = {self.deliver: 6, self._flag: 3 if box.messages else 0, self._remove: 2 * spare, self._move: spare}
        deed = self._chance.choices(list(weights), list(weights.values()))[0]
        return deed(box)

    def deliver(self, box: Mailbox) -> str:
        """Append a letter to the INBOX."""
        self._number += 1
        name, address = self._chance.choice(_SENDERS)
        subject = f"{self._chance.choice(_SUBJECTS)} (no. {self._number})"
        identity = f"{self._number}.{self._chance.getrandbits(48):x}@demo.example"
        letter = EmailMessage()
        letter["From"] = f"{name} <{address}>"
        letter["To"] = f"{box.user.title()} <{box.user}@demo.example>"
        letter["Subject"] = subject
        letter["Date"] = format_datetime(datetime.now(UTC))
        letter["Message-ID"] = f"<{identity}>"
        letter.set_content(f"Dear {box.user.title()},\n\nthis is letter no. {self._number}.\n\n{name}\n")
        client = self._client(box)
        key = ("added", box.account_id, identity)
        self._deeds.begin(key, self._clock())
        try:
            answer = _must(client.append("INBOX", "", imaplib.Time2Internaldate(time.time()), bytes(letter)))
        except BaseException:
            self._deeds.forget(key)
            raise
        assigned = re.search(rb"APPENDUID \d+ (\d+)", b" ".join(part for part in answer if isinstance(part, bytes)))
        if assigned:
            box.messages[int(assigned.group(1))] = frozenset()
        return f"delivered {subject!r}"

    def close(self) -> None:
        """End every session."""
        for client in self._clients.values():
            with contextlib.suppress(*MAIL_ERRORS):
                client.logout()
        self._clients.clear()

    def _flag(self, box: Mailbox) -> str:
        uid = self._chance.choice(list(box.messages))
        flag = self._chance.choice(_FLAGS + _KEYWORDS * box.keywords)
        after = box.messages[uid] ^ {flag}
        sign = "+" if flag in after else "-"
        key = ("flags", box.account_id, uid, after)
        self._do(box, key, "STORE", str(uid), f"{sign}FLAGS.SILENT", f"({flag})")
        box.messages[uid] = after
        return f"{sign}{flag} on {uid}"

    def _remove(self, box: Mailbox) -> str:
        uid = self._chance.choice(list(box.messages))
        # \Deleted on its own would be an event of its own, and is one when the worker is quick enough to see it.
        _must(self._client(box).uid("STORE", str(uid), "+FLAGS.SILENT", "(\\Deleted)"))
        self._do(box, ("removed", box.account_id, uid), "EXPUNGE", str(uid))
        del box.messages[uid]
        return f"removed {uid}"

    def _move(self, box: Mailbox) -> str:
        uid = self._chance.choice(list(box.messages))
        # How a move shows depends on which folder is looked at first: a removal and an arrival, or one move.
        self._do(box, ("moved", box.account_id, uid), "MOVE", str(uid), "Archive")
        del box.messages[uid]
        return f"moved {uid} to Archive"

    def _do(self, box: Mailbox, key: tuple[Any, ...], command: str, *arguments: str) -> None:
        client = self._client(box)
        self._deeds.begin(key, self._clock())
        try:
            _must(client.uid(command, *arguments))
        except BaseException:
            self._deeds.forget(key)
            raise

    def _client(self, box: Mailbox) -> imaplib.IMAP4:
        """The session of a mailbox, with INBOX selected; a new one when the old one has gone."""
        client = self._clients.get(box.user)
        if client is not None:
            try:
                _must(client.noop())
            except MAIL_ERRORS:
                self._clients.pop(box.user)
            else:
                return client
        client = imaplib.IMAP4(box.host, box.port, TIMEOUT_S)
        client.starttls(ssl.create_default_context(cafile=str(box.ca_file)))
        client.login(box.user, box.password)
        if not any(b"Archive" in line for line in _must(client.list()) if isinstance(line, bytes)):
            _must(client.create("Archive"))
        _must(client.select("INBOX"))
        self._clients[box.user] = client
        return client


def _must(answer: tuple[str, list[Any]]) -> list[Any]:
    """The data of an answer that is OK."""
    kind, data = answer
    if kind != "OK":
        raise imaplib.IMAP4.error(f"{kind} {data!r}")
    return data
