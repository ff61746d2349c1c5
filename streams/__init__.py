"""mailstreams: IMAP mailboxes as a fenced, ordered event log.

Map of the package, from what knows nothing to what knows everything::

    errors        who must act on what goes wrong
    contracts     records of the topics, codecs, topic registry
    domain        pure decisions: no I/O, no clock
    mime          headers and bodies of messages, bounded and forgiving
    observer      the port through which everything reports about itself
    settings      one settings object, read once, handed down
    imap          IMAP, from bytes to a session
    directory     accounts and credentials in PostgreSQL
    runtime       the process: checks, start, probes, logs, metrics, drain, exit
    sync          shards, runners and the writer of the log
    agents        Faust agents and tables: lifecycle, session heat
    commands      commands as tasks
    projection    the log folded into PostgreSQL
    assembly      puts all of it together; the only module that knows every other
    cli           the subcommands of `faust -A streams`
    local         Kafka, PostgreSQL and a mail server on this machine

`streams.app` (what `faust -A streams` looks for) is made when it is first asked for, so that the pure modules can be
imported without Faust. There must never be a module of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    app: Any

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from streams.cli.entry import made_for_this_program

        globals()["app"] = made = made_for_this_program()
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
