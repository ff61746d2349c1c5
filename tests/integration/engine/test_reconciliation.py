"""Whatever a server's mail does, and whatever fails meanwhile: the folded log is the server, gapless, nothing said
twice.

Random sequences of changes (also between two commands of a look), passes and windows of history over either of two
connections, crashes, lost connections (at any byte of any answer) and lost producers (before or after the commit), for
each kind of server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.imap.session import ImapSession
from tests.fixtures.engine import Engine, letter
from tests.fixtures.memory_log import Verdict
from tests.scripted_imap.bending import Action, Drop
from tests.scripted_imap.model import Account, Mailbox
from tests.scripted_imap.server import BARE, BASE, CONDSTORE, FULL, QRESYNC, ImapServer, Profile

ESEARCH_ONLY = BASE | {"ESEARCH"}
KINDS = {
    "objectid": Profile(FULL),
    "qresync": Profile(QRESYNC),
    "condstore": Profile(CONDSTORE),
    "esearch": Profile(ESEARCH_ONLY),
    "bare": Profile(BARE),
    "bare_without_uidnext": Profile(BARE, tell_uidnext=False),
    "condstore_without_modseq": Profile(CONDSTORE, tell_highestmodseq=False),
}
FLAGS = ("\\Seen", "\\Flagged", "\\Deleted", "kw", "Other")

number = st.integers(0, 1000)
changes = st.one_of(
    st.tuples(st.just("deliver"), number, st.integers(1, 5), st.sets(st.sampled_from(FLAGS))),
    st.tuples(st.just("flags"), number, number, st.sets(st.sampled_from(FLAGS))),
    st.tuples(st.just("expunge"), number, number),
    st.tuples(st.just("move"), number, number, number),
    st.tuples(st.just("copy"), number, number, number),
    st.tuples(st.just("create"), number),
    st.tuples(st.just("delete"), number),
    st.tuples(st.just("rename"), number, number),
    st.tuples(st.just("swap"), number, number),
    st.tuples(st.just("replace"), number, st.integers(0, 3)),
    st.tuples(st.just("epoch"), number),
    st.tuples(st.just("lose_history"), number),
)
steps = st.one_of(
    changes,
    changes,
    changes,
    st.tuples(st.just("look")),
    st.tuples(st.just("look")),
    st.tuples(st.just("full")),
    st.tuples(st.just("history"), st.integers(1, 3)),
    st.tuples(st.just("crash")),
    st.tuples(st.just("other_connection")),
    st.tuples(st.just("during"), st.integers(0, 12), changes.filter(lambda step: step[0] != "lose_history")),
    st.tuples(st.just("later"), st.sampled_from([60, 7200])),
    st.tuples(st.just("cut"), st.integers(0, 12), st.integers(0, 400)),
    st.tuples(st.just("lose"), st.integers(0, 4), st.sampled_from(["lose_before", "lose_after"])),
)


class World:
    """A server, an engine on it, and faults waiting to strike."""

    def __init__(self, server: ImapServer, account: Account) -> None:
        self.account = account
        self.server = server
        self.engine = Engine(server, FETCH_CHUNK=3, FETCH_WINDOW=7, FLAG_WINDOW=4)
        self.engine.memory.trouble.window = 7
        self.other: ImapSession | None = None
        self.serial = 0
        self.during: list[tuple[int, tuple[Any, ...]]] = []
        self.cut: tuple[int, int] | None = None
        self.lose: tuple[int, Verdict] | None = None
        server.bend(r"^(?!LOGIN|CAPABILITY|GREETING|ENABLE|ID|AUTHENTICATE)", self._bend)
        self.engine.partition.judge = self._judge

    def _bend(self, lines: list[bytes]) -> Iterable[Action]:
        waiting, self.during = self.during, []
        for after, change in waiting:
            if after:
                self.during.append((after - 1, change))
            else:
                self.change(change)
        if self.cut is not None:
            after, size = self.cut
            if after == 0:
                self.cut = None
                return [b"".join(lines)[:size], Drop()]
            self.cut = (after - 1, size)
        return lines

    def _judge(self, _: int) -> Verdict:
        if self.lose is not None:
            after, verdict = self.lose
            if after == 0:
                self.lose = None
                return verdict
            self.lose = (after - 1, verdict)
        return "commit"

    def box(self, n: int) -> Mailbox:
        boxes = list(self.account.mailboxes.values())
        return boxes[n % len(boxes)]

    async def step(self, what: tuple[Any, ...]) -> None:
        """One step of the script."""
        engine = self.engine
        match what:
            case ("look",):
                await engine.survive(engine.look())
            case ("full",):
                await engine.survive(engine.look(full=True))
            case ("history", windows):
                await engine.survive(engine.history(windows))
            case ("crash",):
                await engine.hang_up()
                if engine.log is not None:
                    await engine.log.close()
                engine.forget()
            case ("other_connection",):  # as a watcher has one besides the poller
                self.other, engine.session = engine.session, self.other
            case ("during", after, change):
                self.during.append((after, change))
            case ("later", seconds):
                engine.now += seconds
            case ("cut", after, size):
                self.cut = (after, size)
            case ("lose", after, verdict):
                self.lose = (after, verdict)
            case _:
                self.change(what)

    def change(self, what: tuple[Any, ...]) -> None:
        """Another client does something."""
        account = self.account
        match what:
            case ("deliver", n, count, flags):
                for _ in range(count):
                    self.serial += 1
                    self.box(n).deliver(letter(self.serial), flags=flags)
            case ("flags", n, m, flags):
                box = self.box(n)
                if box.messages:
                    box.set_flags(box.uids[m % len(box.uids)], flags)
            case ("expunge", n, m):
                box = self.box(n)
                if box.messages:
                    box.expunge(box.uids[m % len(box.uids)])
            case ("move" | "copy" as how, n, m, k):
                box, other = self.box(n), self.box(k)
                if box.messages:
                    uid = box.uids[m % len(box.uids)]
                    (box.move_to if how == "move" else box.copy_to)(uid, other)
            case ("create", n):
                if f"f{n % 4}" not in account.mailboxes:
                    account.create(f"f{n % 4}")
            case ("delete", n):
                box = self.box(n)
                if box.name != "INBOX":
                    account.delete(box.name)
            case ("rename", n, m):
                box = self.box(n)
                if box.name != "INBOX" and f"f{m % 6}" not in account.mailboxes:
                    account.rename(box.name, f"f{m % 6}")
            case ("swap", n, m):
                box, other = self.box(n), self.box(m)
                if box is not other and "INBOX" not in (box.name, other.name):
                    one, two = box.name, other.name
                    account.rename(one, "aside")
                    account.rename(two, one)
                    account.rename("aside", two)
            case ("replace", n, kept):  # whoever has it open is served the old one yet
                box = self.box(n)
                if box.name != "INBOX":
                    account.delete(box.name)
                    new = account.create(box.name)
                    new.uidvalidity = max(new.uidvalidity, box.uidvalidity + 1)
                    for message in box.messages[:kept]:
                        box.copy_to(message.uid, new)
            case ("epoch", n):
                self.box(n).new_epoch()
            case ("lose_history", n):
                box = self.box(n)
                box.lose_history(max(1, box.highestmodseq - 3))


async def run(kind: str, script: list[tuple[Any, ...]]) -> Engine:
    """Play a script, then let everything come to rest, and compare."""
    account = Account("user", "secret")
    account.create("f0")
    async with ImapServer([account], KINDS[kind]) as server:
        world = World(server, account)
        engine = world.engine
        try:
            for step in script:
                await world.step(step)
            world.cut = world.lose = None
            world.during = []
            for _ in range(3):
                engine.now += 7 * 3600.0  # past every reconcile and every time that something is set aside
                await engine.survive(engine.look())
                await engine.survive(engine.history())
            engine.agrees(account)
            right_ids(engine, account)
            with engine.quiet():
                await engine.look(full=True)
            # what was committed is all there is: a successor that knows nothing else agrees
            await engine.hang_up()
            engine.forget()
            with engine.quiet():
                await engine.look(full=True)
        finally:
            if world.other is not None:
                world.other.abort()
            await engine.close()
        return engine


def right_ids(engine: Engine, account: Account) -> None:
    """Assert that each place holds the message that was added with its id, and not another one's."""
    subjects = {event["message_id"]: event["headers"]["subject"] for event in engine.of("message.added")}
    fold = engine.fold()
    ids = {name: key for key, name in fold.names.items()}
    for name, box in account.mailboxes.items():
        for message in box.messages:
            subject = subjects[fold.places[ids[name], box.uidvalidity, message.uid][0]]
            assert b"\r\nSubject: %b\r\n" % subject.encode() in message.raw


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(script=st.lists(steps, min_size=3, max_size=30))
def test_s16_s17_fold_is_server_whatever_happens(kind: str, script: list[tuple[Any, ...]]) -> None:
    """Cases 1, 2, 3, 6, 14, 23, 24, 27, 33: never a lost, doubled or invented change."""
    asyncio.run(asyncio.wait_for(run(kind, script), 60))


quiet_steps = st.one_of(
    changes.filter(lambda step: step[0] != "lose_history"),
    changes.filter(lambda step: step[0] != "lose_history"),
    st.tuples(st.just("check")),
)


async def run_quietly(kind: str, script: list[tuple[Any, ...]]) -> None:
    """Without any failure every look and its history end in the server's state, at once and without help from time."""
    account = Account("user", "secret")
    account.create("f0")
    async with ImapServer([account], KINDS[kind]) as server:
        world = World(server, account)
        engine = world.engine
        engine.settings = engine.settings.model_copy(update={"FLAG_WINDOW": 1000})
        try:
            for step in [*script, ("check",)]:
                if step != ("check",):
                    world.change(step)
                    continue
                await engine.look()
                await engine.history()
                engine.agrees(account)
                await engine.look()  # a quiet one
                engine.agrees(account)
        finally:
            await engine.close()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(script=st.lists(quiet_steps, min_size=3, max_size=40))
def test_s10_each_look_ends_in_the_servers_state(kind: str, script: list[tuple[Any, ...]]) -> None:
    """Nothing waits for the periodic comparison to be repaired: what it would hide shows here."""
    asyncio.run(asyncio.wait_for(run_quietly(kind, script), 60))
