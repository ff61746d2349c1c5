"""Whether what is said of each account is still so: `account.sync_status`, and its copy in the database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.storm.checker.findings import Finding
from tests.storm.checker.fold import FoldedAccount
from tests.storm.checker.log import Raw
from tests.storm.checker.rules import fence_of

AT_WORK: Final = frozenset({"running", "syncing"})
COLUMNS: Final = ("phase", "worker", "partition", "tier", "mailboxes", "messages")


def latest(records: Iterable[Raw]) -> dict[str, Raw]:
    """The last record of each account, tombstones included."""
    return {(raw.key or b"").decode("utf-8", "replace"): raw for raw in records}


def stale(told: Mapping[str, Raw], accounts: Mapping[str, FoldedAccount], live: Iterable[str]) -> Iterator[Finding]:
    """At rest every live account is said to be at work, by nobody who wrote before the log's last writer, with as many
    mailboxes and messages as the log adds up to.
    """
    for name in sorted(live):
        account, raw = accounts.get(name) or FoldedAccount(name), told.get(name)
        if raw is None or not raw.value:
            yield Finding("stale_status", name, expected="a status", got="none")
            continue
        body: dict[str, Any] = json.loads(raw.value)
        writer = raw.header("writer")
        last = account.events[-1].writer if account.events else None
        wrong: tuple[Any, Any] | None = None
        if body.get("phase") not in AT_WORK:
            wrong = (sorted(AT_WORK), (body.get("phase"), body.get("error")))
        elif (fence_of(writer) or ()) < (fence_of(last) or ()):
            wrong = (f"told by {last} or later", writer)
        elif body.get("worker") != (writer or "").rpartition("/")[0]:
            wrong = (f"worker of {writer}", body.get("worker"))
        elif body.get("partition") != raw.partition:
            wrong = (raw.partition, body.get("partition"))
        else:
            counted = {"mailboxes": len(account.mailboxes), "messages": len(account.places)}
            said = {what: body.get(what) for what in counted}
            if said != counted:
                wrong = (counted, said)
        if wrong is not None:
            yield Finding("stale_status", name, expected=wrong[0], got=wrong[1])


def stale_rows(told: Mapping[str, Raw], rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """The database has of each account the status that was told last, and none of others."""
    bodies = {name: json.loads(raw.value) for name, raw in told.items() if raw.value}
    for name in sorted(bodies.keys() | rows.keys()):
        said = {column: bodies[name].get(column) for column in COLUMNS} if name in bodies else None
        shown = {column: rows[name][column] for column in COLUMNS} if name in rows else None
        if said != shown:
            yield Finding("database_status", name, expected=said, got=shown)
