"""What other clients do to mail during a storm: one seeded script per account, written into its journal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from imapclient.exceptions import IMAPClientError

from streams.local.dovecot import Dovecot
from streams.local.errors import LocalStackError
from tests.rig.letters import drawn
from tests.rig.mailer import MailboxGone, Mailer

FOLDERS: Final = (
    "Arbeit",
    "Arbeit/Täglich",
    "Arbeit/Täglich/Heute",
    "R&D",
    "5* hotels",
    "Work",
    "Neu & alt",
    "Archive/2026",
)
KEYWORDS: Final = ("$Work", "$Later", "NonJunk", "\\Seen", "\\Flagged", "\\Answered", "\\Draft", "\\Deleted")
MESSAGES_MAX: Final = 250
"""In one account; the journal reads whole folders after each action."""
FAILURES: Final = (OSError, IMAPClientError, MailboxGone, LocalStackError)


class Script:
    """Random actions on one account until told to stop. The same seed gives the same intentions."""

    def __init__(self, mailer: Mailer, server: Dovecot, random_: random.Random, *, pause_s: float) -> None:
        self.mailer = mailer
        self.server = server
        self.actions = 0
        self.unsure = 0
        self._unsettled = False
        self._random = random_
        self._pause_s = pause_s
        self._number = random_.randrange(10**6) * 1000

    async def run(self, over: asyncio.Event) -> None:
        """Act until `over` is set; then leave a journal that is exact."""
        while not over.is_set():
            await self._one()
            try:
                await asyncio.wait_for(over.wait(), self._random.expovariate(1 / self._pause_s))
            except TimeoutError:
                continue

    async def _one(self) -> None:
        if self._unsettled and not await self.settle(give_up_after_s=1.0):
            return
        action = self._draw()
        try:
            if action == self._reset_epoch:
                await self._reset_epoch_with_doveadm()
            else:
                await asyncio.to_thread(action)
            self.actions += 1
        except FAILURES:
            # What it did is not known: the server tells as soon as it answers.
            self.unsure += 1
            self._unsettled = True
            self.mailer.drop()

    async def settle(self, *, give_up_after_s: float) -> bool:
        """Read everything into the journal; False when the server does not answer in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + give_up_after_s
        while True:
            try:
                await asyncio.to_thread(self.mailer.observe_all)
                self._unsettled = False
                return True
            except FAILURES:
                self.mailer.drop()
                if loop.time() > deadline:
                    return False
                await asyncio.sleep(0.2)

    def _draw(self) -> Callable[[], None]:
        return self._random.choices(
            (
                self._append,
                self._flag,
                self._unflag,
                self._expunge,
                self._copy,
                self._move,
                self._create,
                self._rename,
                self._delete,
                self._subscribe,
                self._reset_epoch,
                self._many,
            ),
            weights=(30, 15, 8, 10, 6, 10, 6, 4, 3, 2, 1, 2),
        )[0]

    # --- actions
    def _folder(self) -> str:
        return self._random.choice(["INBOX", "INBOX", *self.mailer.folders()])

    def _some(self, folder: str, most: int = 5) -> list[int]:
        uids = self.mailer.uids(folder)
        return sorted(self._random.sample(uids, min(len(uids), self._random.randint(1, most)))) if uids else []

    def _letter(self) -> bytes:
        self._number += 1
        return drawn(self._random, self._number)

    def _room(self) -> bool:
        return len(self.mailer.journal.now) < MESSAGES_MAX

    def _append(self) -> None:
        if not self._room():
            return self._expunge()
        flags = self._random.sample(KEYWORDS[:-1], self._random.randint(0, 2))
        self.mailer.append(self._folder(), self._letter(), flags=flags)
        return None

    def _many(self) -> None:
        if self._room():
            self.mailer.append_many("INBOX", [self._letter() for _ in range(self._random.randint(5, 25))])

    def _flag(self) -> None:
        folder = self._folder()
        if uids := self._some(folder, 8):
            self.mailer.flag(folder, uids, add=self._random.sample(KEYWORDS, self._random.randint(1, 2)))

    def _unflag(self) -> None:
        folder = self._folder()
        if uids := self._some(folder, 8):
            self.mailer.flag(folder, uids, remove=self._random.sample(KEYWORDS, self._random.randint(1, 3)))

    def _expunge(self) -> None:
        folder = self._folder()
        if uids := self._some(folder):
            self.mailer.expunge(folder, uids)

    def _copy(self) -> None:
        folder = self._folder()
        if self._room() and (uids := self._some(folder)):
            self.mailer.copy(folder, uids, self._folder())

    def _move(self) -> None:
        folder, to = self._folder(), self._folder()
        if folder != to and (uids := self._some(folder)):
            self.mailer.move(folder, uids, to)

    def _create(self) -> None:
        missing = [name for name in FOLDERS if name not in self.mailer.folders()]
        if missing:
            self.mailer.create(self._random.choice(missing))

    def _own(self) -> list[str]:
        return [name for name in self.mailer.folders() if name in FOLDERS]

    def _rename(self) -> None:
        free = [name for name in FOLDERS if name not in self.mailer.folders()]
        if (own := self._own()) and free:
            folder, to = self._random.choice(own), self._random.choice(free)
            if not to.startswith(f"{folder}/"):
                self.mailer.rename(folder, to)

    def _delete(self) -> None:
        if own := self._own():
            self.mailer.delete(self._random.choice(own))

    def _subscribe(self) -> None:
        self.mailer.subscribe(self._folder(), self._random.random() < 0.5)

    def _reset_epoch(self) -> None:
        raise AssertionError("done by doveadm")

    async def _reset_epoch_with_doveadm(self) -> None:
        folder = await asyncio.to_thread(self._folder)
        value = self._random.randrange(2**31, 2**32 - 1)
        await self.server.reset_uidvalidity(self.mailer.login.username, folder, value)
        self.mailer.drop()
        await asyncio.to_thread(self.mailer.observe, folder)
