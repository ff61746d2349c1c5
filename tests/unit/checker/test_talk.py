"""What other services say during a storm: all that is declared is drawn, and commands are said again as they were."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

from tests.rig.fleet import Fleet
from tests.storm.talk import COMMANDS, TOPICS, Talk


class _Fleet:
    def __init__(self) -> None:
        self.mailers = {"a": None, "b": None}
        self.versions = {"a": 3, "b": 3}
        self.commands: list[tuple[str, str, str, str]] = []
        self.said: Counter[str] = Counter()

    async def command(self, account: str, kind: str, topic: str, *, command_id: str | None = None) -> str:
        command_id = command_id or f"c-{len(self.commands)}"
        self.commands.append((account, kind, topic, command_id))
        return command_id

    async def produce(self, topic: str, key: str, value: bytes) -> None:
        self.said[topic] += 1

    def __getattr__(self, name: str) -> Any:
        async def said(*_: Any, **__: Any) -> None:
            self.said[name] += 1

        return said


async def test_everything_that_is_declared_is_drawn() -> None:
    fleet = _Fleet()
    talk = Talk(cast("Fleet", fleet), random.Random(1), pause_s=1)
    for _ in range(600):
        await talk._one()
    assert set(TOPICS) <= fleet.said.keys() and {"active", "change_state", "announce"} <= fleet.said.keys()
    assert {kind for _, kind, _, _ in fleet.commands} == {*COMMANDS, "export"}
    distinct = set(fleet.commands)
    assert len({command_id for _, _, _, command_id in distinct}) == len(distinct) < len(fleet.commands)
