"""A process with services that misbehave as told: `python program.py SCENARIO`. It says what happens on stdout."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

from streams.observer import NoopObserver
from streams.runtime.hooks import Hooks
from streams.runtime.launch import launch
from streams.runtime.services import Health, Stage
from streams.settings import load_settings

SCENARIO = sys.argv[1]


def say(text: str) -> None:
    print(text, flush=True)


class Tasks:
    """Holds tasks in flight: what a stop does with them is the scenario."""

    name = "tasks"

    async def start(self) -> None:
        if SCENARIO == "slow start":
            say("the service starts")
            await asyncio.sleep(60)
        if SCENARIO == "stuck thread":
            threading.Thread(target=time.sleep, args=(600,), name="the stuck thread").start()
        if SCENARIO == "exit within":
            # A thread that waits for the loop, as a Kafka consumer's does.
            threading.Thread(target=time.sleep, args=(600,), name="a thread").start()
            asyncio.get_running_loop().call_later(0.1, sys.exit, 0)
        if SCENARIO == "stuck pool thread":
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        say("started")

    async def stop(self, deadline_s: float) -> None:
        say(f"stop within {deadline_s:.1f}")
        if SCENARIO == "blocked loop":
            time.sleep(600)
        if SCENARIO == "long task" and deadline_s > 0:
            await asyncio.sleep(deadline_s)
        say("stopped")

    def health(self) -> Health:
        return Health(overrunning=("task-17",), detail={"in_flight": 1})


def main() -> int:
    hooks = Hooks()

    async def up() -> None:
        say("hook up")
        if SCENARIO == "blocking hook":
            time.sleep(30)
        if SCENARIO == "slow hook":
            await asyncio.sleep(60)

    async def down() -> None:
        say("hook down")

    hooks.add("hook", startup=up, shutdown=down)

    async def good() -> None: ...

    async def slow_probe() -> None:
        await asyncio.sleep(60)

    return launch(
        load_settings(),
        stages=[Stage([Tasks()], uses_grace=True)],
        checks=[],
        hooks=hooks,
        observer=NoopObserver(),
        exposition=lambda: (b"# nothing\n", "text/plain"),
        custom_probes={"slow": (slow_probe, False)} if SCENARIO == "slow probe" else {"good": (good, False)},
    )


if __name__ == "__main__":
    sys.exit(main())
