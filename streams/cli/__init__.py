"""The subcommands of `faust -A streams`: a table of names, each imported only when it is run.

To add one: write `streams/cli/<name>.py` with a click command or group made with `streams.cli.frame`, and a line here.
"""

from __future__ import annotations

from typing import Final

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "accounts": ("streams.cli.accounts:group", "Add, list, show, change and remove accounts."),
    "dead-letters": (
        "streams.cli.dead_letters:group",
        "Look at records that could not be handled, and send them again.",
    ),
    "job": ("streams.cli.job:command", "Take jobs, settle them, end (one-shot process)."),
    "keys": ("streams.cli.keys:group", "Make and rotate encryption keys."),
    "projection": ("streams.cli.projection:group", "Migrate, rebuild, run and check the projection in PostgreSQL."),
    "send": ("streams.cli.send:group", "Send a command or an event and watch what becomes of it."),
    "status": ("streams.cli.status:command", "Show workers, partitions, accounts, tiers and errors."),
    "topics": ("streams.cli.topics:command", "Create topics, check their configuration, commit first offsets."),
}
"""Name to (where the click command is, one line of help)."""
