"""What other services say during a storm: sessions, states (repeated and overtaken too), commands, jobs, nonsense."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Final

from aiokafka.errors import KafkaError

from streams.errors import MailstreamsError
from tests.rig.fleet import Fleet

COMMANDS: Final = ("sync_now", "sync_now", "resync", "verify", "backfill")
NONSENSE: Final = {
    b"no json": "not_json",
    b"[]": "schema",
    b'{"account_id": 17}': "schema",
    b"\xff\xfe\x00": "not_json",
    b'{"state": "live"}': "schema",
    b"{" * 2000: "not_json",
}
"""What is no record of any topic, and the reason it gets in the dead letters."""
TOPICS: Final = ("account.state_changed", "user.active", "sync.commands", "sync.jobs")


class Talk:
    """Seeded chatter of other services about the accounts of a fleet."""

    def __init__(self, fleet: Fleet, random_: random.Random, *, pause_s: float) -> None:
        self.fleet = fleet
        self.said: Counter[str] = Counter()
        self.nonsense: Counter[str] = Counter()
        self._random = random_
        self._pause_s = pause_s
        self._disabled: set[str] = set()
        self._sent: list[tuple[str, str, str, str]] = []
        """Commands: account, kind, topic, id."""

    async def run(self, over: asyncio.Event) -> None:
        """Talk until `over` is set; then every account is live again."""
        while not over.is_set():
            try:
                async with asyncio.timeout(20):
                    await self._one()
            except (KafkaError, OSError, TimeoutError, MailstreamsError):
                self.said["failed"] += 1
            try:
                await asyncio.wait_for(over.wait(), self._random.expovariate(1 / self._pause_s))
            except TimeoutError:
                continue

    async def all_live(self) -> None:
        """Nobody stays disabled."""
        for account in sorted(self._disabled):
            await self.fleet.change_state(account, "live")
        self._disabled.clear()

    async def _one(self) -> None:
        account = self._random.choice(sorted(self.fleet.mailers))
        what = self._random.choices(
            ("active", "disable", "enable", "repeat", "overtaken", "command", "job", "again", "nonsense"),
            weights=(30, 6, 12, 8, 8, 16, 4, 4, 16),
        )[0]
        self.said[what] += 1
        match what:
            case "active":
                await self.fleet.active(account, self._random.choice(("login", "ws_connect", "ws_ping")))
            case "disable":
                self._disabled.add(account)
                await self.fleet.change_state(account, "disabled")
            case "enable" if self._disabled:
                back = self._random.choice(sorted(self._disabled))
                await self.fleet.change_state(back, "live")
                self._disabled.discard(back)
            case "repeat":
                state = "disabled" if account in self._disabled else "live"
                for _ in range(self._random.randint(1, 4)):
                    await self.fleet.announce(account, state)
            case "overtaken" if self.fleet.versions[account] > 1:
                older = self._random.randint(1, self.fleet.versions[account] - 1)
                await self.fleet.announce(account, self._random.choice(("live", "disabled")), version=older)
            case "command":
                await self._command(account, self._random.choice(COMMANDS), "sync.commands")
            case "job":
                await self._command(account, "export", "sync.jobs")  # it may fail, and must be concluded
            case "again" if self._sent:
                account, kind, topic, command_id = self._random.choice(self._sent)
                await self.fleet.command(account, kind, topic, command_id=command_id)
            case "nonsense":
                topic = self._random.choice(TOPICS)
                await self.fleet.produce(topic, account, self._random.choice(list(NONSENSE)))
                self.nonsense[topic] += 1

    async def _command(self, account: str, kind: str, topic: str) -> None:
        command_id = await self.fleet.command(account, kind, topic)
        self._sent.append((account, kind, topic, command_id))
