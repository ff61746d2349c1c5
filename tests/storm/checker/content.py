"""What `message.added` and the database say of a message, against what its header says.

It shows that what is told of a message is of this message, and that conversations can be put together by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from tests.storm.checker.findings import Finding
from tests.storm.checker.fold import FoldedAccount
from tests.storm.checker.server import ServerMailbox

_REFERENCES_MAX: Final = 100
"""Of more a part is told: the first, and the last ones."""
_INTERNET_ID_CHARS: Final = 500
"""So much of a Message-ID has a column of its own."""


def _said(body: Mapping[str, Any], name: str) -> Any:
    if name == "internal_date":
        return datetime.fromisoformat(body[name]) if body.get(name) else None
    holder = body.get("headers") or {} if name.startswith("headers.") else body
    last = name.rpartition(".")[2]
    return holder.get(last) or ([] if last in ("in_reply_to", "references") else holder.get(last))


def _differs(name: str, wanted: Any, said: Any) -> bool:
    if name == "headers.references" and len(wanted) > _REFERENCES_MAX:
        return not said or said[0] != wanted[0] or said[-1] != wanted[-1] or not set(said) <= set(wanted)
    return bool(wanted != said)


def told_of_messages(account: FoldedAccount, server: Mapping[str, ServerMailbox]) -> Iterator[Finding]:
    """`message.added` says of each message what the server says of it."""
    by_name = {mailbox.key: mailbox for mailbox in account.mailboxes.values() if mailbox.selectable}
    done: set[str] = set()
    for wire in sorted(by_name.keys() & server.keys()):
        for uid, place in account.of_mailbox(by_name[wire].mailbox_id).items():
            there, told = server[wire].messages.get(uid), account.told.get(place.message)
            if there is None or there.content is None or told is None or place.message in done:
                continue
            done.add(place.message)
            for name, wanted in there.facts.items():
                said = _said(told.body, name)
                if not (told.body.get("truncated") and name.startswith("headers.")) and _differs(name, wanted, said):
                    yield Finding("content", account.account, wire, uid, f"{name}: {wanted!r}", said, (str(told),))


def messages_in_database(account: FoldedAccount, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """The row of a message says what was last told of it, unless its text could not be stored as it was."""
    for message in sorted({place.message for place in account.places.values()} & rows.keys() & account.told.keys()):
        row, body = rows[message], account.told[message].body
        if row["cleaned"] or row["truncated"] or body.get("truncated"):
            continue
        header = _said(body, "headers.message_id")
        wanted = {
            "subject": _said(body, "headers.subject"),
            "internet_message_id": header[:_INTERNET_ID_CHARS] if header else None,
            "in_reply_to": _said(body, "headers.in_reply_to"),
            "references": _said(body, "headers.references"),
            "size": body.get("size"),
        }
        shown = {name: row[name] for name in wanted}
        if shown != wanted:
            near = (str(account.told[message]),)
            yield Finding("database_content", account.account, None, None, wanted, shown, near)
