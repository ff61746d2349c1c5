"""One of everything that a client does to mail, in three parts: before a worker runs, while it runs, and later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tests.rig.letters import ODD, odd, ordinary
from tests.rig.mailer import Mailer


def before(mailer: Mailer) -> None:
    """Mail that is there when the account is first seen."""
    mailer.append_many("INBOX", [ordinary(number) for number in range(20)])
    mailer.append_many("INBOX", [odd(kind, number) for number, kind in enumerate(ODD)])
    mailer.create("Arbeit/Täglich")
    mailer.append_many("Arbeit/Täglich", [ordinary(number) for number in range(100, 105)])
    mailer.flag("INBOX", [1, 2, 3], add=["\\Seen"])
    mailer.flag("INBOX", [2], add=["$Work", "\\Flagged"])


def while_running(mailer: Mailer) -> None:
    """Arrivals, flags, removals, copies, moves, a new folder."""
    letters = [ordinary(number) for number in range(200, 206)]
    for number, letter in enumerate(letters):
        mailer.append("INBOX", letter, flags=["\\Seen"] if number % 2 else [])
    mailer.append("INBOX", letters[0])  # the same message twice in a folder is two places
    mailer.flag("INBOX", [4, 5, 6], add=["\\Answered", "$Later"])
    mailer.flag("INBOX", [2], remove=["$Work"])
    mailer.expunge("INBOX", [7, 8])
    mailer.copy("INBOX", [9, 10], "Arbeit/Täglich")
    mailer.move("INBOX", [11, 12, 13], "Archive")
    mailer.create("Neu & alt")
    mailer.append("Neu & alt", ordinary(300))
    mailer.subscribe("Neu & alt", True)


def later(mailer: Mailer) -> None:
    """Folders go and change their names."""
    mailer.rename("Arbeit", "Work")
    mailer.delete("Neu & alt")
    mailer.move("Archive", mailer.uids("Archive")[:1], "INBOX")
    mailer.flag("Work/Täglich", [1], add=["\\Seen"])


async def everywhere(step: Callable[[Mailer], None], mailers: Iterable[Mailer]) -> None:
    """The step by all clients at once."""
    await asyncio.gather(*(asyncio.to_thread(step, mailer) for mailer in mailers))
