"""`make demo`, that is `python -m streams.local.demo`: see mail flow from a mail server into the log and the database.

DEMO_SECONDS ends it after that many seconds of mail. Exit codes: 0 mail flowed, 1 it did not, 2 a setting is wrong,
130 interrupted before it could.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from rich.console import Console

from streams.local.demo.run import Demo
from streams.local.errors import LocalStackError


async def _main(console: Console, seconds: float | None) -> int:
    demo = Demo(console, seconds)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, demo.interrupt)
    try:
        return 0 if await demo.run() else 1
    except asyncio.CancelledError:
        console.print("interrupted; everything is stopped")
        return 130
    except LocalStackError as error:
        console.print("the demo could not go on", style="bold red")
        # With the last lines of a log, in which Kafka writes addresses as `[/127.0.0.1]`: no markup.
        console.print(str(error), markup=False, emoji=False, soft_wrap=True)
        return 1


def main() -> int:
    """Run the demo; returns the exit code."""
    console = Console(highlight=False)
    text = os.environ.get("DEMO_SECONDS", "").strip()
    try:
        seconds = float(text) if text else None
        if seconds is not None and not 0 < seconds < 86_400:
            raise ValueError
    except ValueError:
        print(f"DEMO_SECONDS is {text!r}; it must be a number of seconds, from 1 to a day", file=sys.stderr)
        return 2
    return asyncio.run(_main(console, seconds))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the demo could take care of it
        sys.exit(130)
