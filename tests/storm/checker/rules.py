"""What must hold: of the log by itself, and between log, mail server and database. Pure: values in, findings out."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from tests.storm.checker.database import Database
from tests.storm.checker.findings import Finding
from tests.storm.checker.fold import FoldedAccount, FoldedMailbox, by_partition
from tests.storm.checker.log import Event, Raw
from tests.storm.checker.server import ServerMailbox

_NEAR = 4


def _window(events: list[Event], index: int) -> tuple[str, ...]:
    return tuple(str(event) for event in events[max(0, index - _NEAR) : index + _NEAR])


def sequences(events: Iterable[Event]) -> Iterator[Finding]:
    """Per account: 1, 2, 3, ... in the order of the log, in one partition. A gap is a loss, a repeat is a doubling."""
    expected: dict[str, int] = defaultdict(lambda: 1)
    home: dict[str, int] = {}
    for partition, ordered in by_partition(events):
        for event in ordered:
            if home.setdefault(event.account, partition) != partition:
                yield Finding("two_partitions", event.account, expected=home[event.account], got=partition)
            wanted = expected[event.account]
            if event.sequence != wanted:
                rule = "sequence_gap" if event.sequence > wanted else "sequence_repeated"
                near = [other for other in ordered if other.account == event.account]
                yield Finding(
                    rule, event.account, expected=wanted, got=event.sequence, around=_window(near, near.index(event))
                )
            expected[event.account] = event.sequence + 1


def writers(events: Iterable[Event]) -> Iterator[Finding]:
    """Per partition each writer has one unbroken run, and fences only grow: no zombie wrote after its successor began.

    A writer is `worker/fence`; the fence is Kafka's producer id and epoch, which the broker itself hands out in order.
    """
    for partition, ordered in by_partition(events):
        ended: set[str] = set()
        current: str | None = None
        highest: tuple[int, ...] = ()
        for index, event in enumerate(ordered):
            if event.writer == current and current is not None:
                continue
            rule, wanted = "", ""
            fence = fence_of(event.writer)
            if fence is None:
                rule, wanted = "no_writer", "a header `writer`: worker/id.epoch"
            elif event.writer in ended:
                rule, wanted = "writers_interleave", f"partition {partition}: nothing more by {event.writer}"
            elif fence <= highest:
                rule, wanted = "fence_went_back", f"partition {partition}: a fence over {highest}"
            if rule:
                yield Finding(rule, event.account, expected=wanted, got=str(event), around=_window(ordered, index))
            if current is not None:
                ended.add(current)
            current = event.writer
            highest = max(highest, fence or ())


def fence_of(writer: str | None) -> tuple[int, ...] | None:
    """Kafka's producer id and epoch out of a header `writer`: worker/id.epoch. None: it is none."""
    numbers = (writer or "").rpartition("/")[2].split(".")
    return tuple(int(number) for number in numbers) if all(number.isdigit() for number in numbers) else None


def strange_records(records: Iterable[Raw]) -> Iterator[Finding]:
    """`mailbox.changes` holds changes and nothing else."""
    for raw in records:
        yield Finding(
            "strange_record", expected="a change keyed by its account", got=f"{raw.partition}@{raw.offset} {raw.key!r}"
        )


def headers_of_changes(events: Iterable[Event]) -> Iterator[Finding]:
    """CloudEvents attributes and the number of the event say the same as the record, each once."""
    for event in events:
        meant = {
            "ce_id": f"{event.account}/{event.sequence}",
            "ce_type": event.kind,
            "ce_specversion": "1.0",
            "sequence": str(event.sequence),
        }
        said = {
            name: [value.decode("utf-8", "replace") for key, value in event.headers if key == name] for name in meant
        }
        if said != {name: [value] for name, value in meant.items()}:
            yield Finding("headers", event.account, expected=meant, got=said, around=(str(event),))


def _by_wire_name(account: FoldedAccount) -> Iterator[tuple[str, FoldedMailbox] | Finding]:
    names: dict[str, FoldedMailbox] = {}
    for mailbox in account.mailboxes.values():
        if not mailbox.selectable:
            continue
        wire = mailbox.key
        if wire in names:
            yield Finding(
                "name_twice",
                account.account,
                wire,
                expected="one mailbox",
                got=[names[wire].mailbox_id, mailbox.mailbox_id],
            )
        names[wire] = mailbox
    yield from names.items()


def log_against_server(
    account: FoldedAccount, server: Mapping[str, ServerMailbox], contradicted: Set[str] = frozenset()
) -> Iterator[Finding]:
    """Fold of the log = mail server: mailboxes, epochs, UIDs, flags; and one message id for one content.

    Of mailboxes that are `contradicted` (listed, and refused when they are opened) nobody knows whether they are there.
    """
    folded: dict[str, FoldedMailbox] = {}
    for item in _by_wire_name(account):
        if isinstance(item, Finding):
            yield item
        else:
            folded[item[0]] = item[1]
    for wire in sorted(server.keys() - folded.keys()):
        yield Finding(
            "mailbox_missing_in_log",
            account.account,
            wire,
            expected="known",
            got="unknown",
            around=account.around(most=5),
        )
    for wire in sorted(folded.keys() - server.keys() - contradicted):
        near = account.around(mailbox_id=folded[wire].mailbox_id, most=5)
        yield Finding("mailbox_only_in_log", account.account, wire, expected="gone", got="there", around=near)
    for wire in sorted(folded.keys() & server.keys()):
        yield from _mailbox(account, folded[wire], server[wire])
    yield from _old_places(account)
    yield from _identities(account, folded, server)


def _mailbox(account: FoldedAccount, folded: FoldedMailbox, there: ServerMailbox) -> Iterator[Finding]:
    if folded.name != there.name:
        yield Finding("mailbox_name", account.account, there.wire_name, expected=there.name, got=folded.name)
    box = folded.mailbox_id
    if folded.uidvalidity is not None and folded.uidvalidity != there.uidvalidity:
        near = account.around(mailbox_id=box, most=5)
        yield Finding(
            "uidvalidity",
            account.account,
            there.wire_name,
            expected=there.uidvalidity,
            got=folded.uidvalidity,
            around=near,
        )
        return
    places = account.of_mailbox(box)
    for uid in sorted(there.messages.keys() | places.keys()):
        message, place = there.messages.get(uid), places.get(uid)
        wrong: tuple[str, Any, Any] | None = None
        if message is None:
            wrong = ("message_only_in_log", "gone", place)
        elif place is None:
            if (box, there.uidvalidity, uid) not in account.unreadable:
                wrong = ("message_missing_in_log", "there", None)
        elif place.flags != message.flags:
            wrong = ("flags", sorted(message.flags), sorted(place.flags))
        if wrong is not None:
            near = account.around(mailbox_id=box, uid=uid)
            yield Finding(wrong[0], account.account, there.wire_name, uid, wrong[1], wrong[2], near)


def _old_places(account: FoldedAccount) -> Iterator[Finding]:
    for box, era, uid in account.places:
        mailbox = account.mailboxes.get(box)
        if mailbox is None or mailbox.uidvalidity != era:
            near = account.around(mailbox_id=box, uid=uid)
            name = mailbox.name if mailbox else box
            yield Finding("old_epoch_left", account.account, name, uid, mailbox and mailbox.uidvalidity, era, near)


def _identities(
    account: FoldedAccount, folded: Mapping[str, FoldedMailbox], server: Mapping[str, ServerMailbox]
) -> Iterator[Finding]:
    """Places of equal content have one message id, of different content have different ones."""
    ids_of: defaultdict[str, set[str]] = defaultdict(set)
    contents_of: defaultdict[str, set[str]] = defaultdict(set)
    for wire in folded.keys() & server.keys():
        for uid, place in account.of_mailbox(folded[wire].mailbox_id).items():
            message = server[wire].messages.get(uid)
            if message is not None and message.content is not None:
                ids_of[message.content].add(place.message)
                contents_of[place.message].add(message.content)
    for content, ids in ids_of.items():
        if len(ids) > 1:
            yield Finding("one_message_two_ids", account.account, expected="one id", got=(content, sorted(ids)))
    for message_id, contents in contents_of.items():
        if len(contents) > 1:
            yield Finding(
                "two_messages_one_id", account.account, expected="one content", got=(message_id, sorted(contents))
            )


def log_against_database(account: FoldedAccount, database: Database) -> Iterator[Finding]:
    """Fold of the log = projection: mailboxes, places, flags, messages, what cannot be read, the sequence."""
    name = account.account
    rows = database.mailboxes.get(name, {})
    for box in sorted(account.mailboxes.keys() | rows.keys()):
        folded, row = account.mailboxes.get(box), rows.get(box)
        if folded is None or row is None:
            where = folded.name if folded else str(row["name"] if row else box)
            yield Finding("database_mailbox", name, where, None, folded and folded.name, row and row["name"])
            continue
        columns = ("name", "wire_name", "selectable", "delimiter", "special_use", "backfilled")
        said: dict[str, Any] = {column: getattr(folded, column) for column in columns}
        shown = {key: row[key] for key in said}
        if shown != said and "\x00" not in folded.name:
            yield Finding("database_mailbox", name, folded.name, None, said, shown)
        # What cannot be read tells an epoch, too, and no row of places comes of it.
        unknown = row["uidvalidity"] is None and not account.of_mailbox(box)
        if row["uidvalidity"] != folded.uidvalidity and not unknown:
            yield Finding("database_uidvalidity", name, folded.name, None, folded.uidvalidity, row["uidvalidity"])
    places = database.places.get(name, {})
    for key in sorted(account.places.keys() | places.keys()):
        folded_place, row_place = account.places.get(key), places.get(key)
        got = None if row_place is None else (row_place.message, sorted(row_place.flags))
        wanted = None if folded_place is None else (folded_place.message, sorted(folded_place.flags))
        if got != wanted:
            mailbox = account.mailboxes.get(key[0])
            near = account.around(mailbox_id=key[0], uid=key[2])
            yield Finding("database_place", name, mailbox.name if mailbox else key[0], key[2], wanted, got, near)
    ids = {place.message for place in account.places.values()}
    for message_id in sorted(ids ^ database.messages.get(name, set())):
        yield Finding("database_message", name, expected=message_id in ids, got=f"{message_id}: the opposite")
    for key in sorted(account.unreadable ^ database.unreadable.get(name, set())):
        yield Finding(
            "database_unreadable", name, key[0], key[2], key in account.unreadable, key not in account.unreadable
        )
    if database.sequences.get(name) != account.sequence:
        yield Finding("database_sequence", name, expected=account.sequence, got=database.sequences.get(name))
    if (name in database.caught_up) != bool(account.caught_up):
        yield Finding("database_caught_up", name, expected=bool(account.caught_up), got=name in database.caught_up)


def nothing_else_in_database(accounts: Iterable[str], database: Database) -> Iterator[Finding]:
    """The projection holds no account that the log does not."""
    known = set(accounts)
    there: set[str] = set()
    for of in (database.places, database.mailboxes, database.sequences, database.messages, database.unreadable):
        there.update(of)
    for account in sorted(there - known):
        yield Finding("database_account", account, expected="not there", got="there")


def positions(
    database: Database, topic: str, events: Iterable[Event], ends: Mapping[int, int] | None = None
) -> Iterator[Finding]:
    """At rest the projection stands behind the last event of every partition, and not beyond the partition's end, where
    it would pass over what comes. `topic` is its name without prefix; `ends` were read after the database.
    """
    last: dict[int, int] = {}
    for event in events:
        last[event.partition] = max(event.offset, last.get(event.partition, -1))
    for partition, offset in sorted(last.items()):
        at = database.positions.get((topic, partition))
        if at is None or at <= offset:
            yield Finding("position", expected=f"{topic}/{partition} behind {offset}", got=at)
    for partition, end in sorted((ends or {}).items()):
        at = database.positions.get((topic, partition), 0)
        if at > end:
            yield Finding("position_ahead", expected=f"{topic}/{partition} at most {end}", got=at)


def conclusions(records: Iterable[Raw], commands: Iterable[str]) -> Iterator[Finding]:
    """W15: each command is concluded exactly once, a success has begun before, and nothing is told of it afterwards:
    what begins once more has been done once more. `records` of a partition are in order.
    """
    concluded: Counter[str] = Counter()
    started: set[str] = set()
    for raw in records:
        body = json.loads(raw.value or b"{}")
        command, kind = str(body.get("command_id")), body.get("type")
        if kind in ("success", "failure"):
            concluded[command] += 1
            if kind == "success" and command not in started:
                yield Finding("not_begun", expected=f"{command}: started before", got=f"{raw.partition}@{raw.offset}")
        elif concluded[command]:
            yield Finding(
                "after_conclusion", expected=f"{command}: concluded", got=f"{kind} at {raw.partition}@{raw.offset}"
            )
        elif kind == "started":
            started.add(command)
    for command in commands:
        if concluded[command] != 1:
            yield Finding("conclusions", expected=f"{command}: one", got=concluded[command])
    for command, number in concluded.items():
        if number > 1:
            yield Finding("conclusions", expected=f"{command}: one", got=number)


def dead_letters(letters: Iterable[Raw], bad: Mapping[bytes, str]) -> Iterator[Finding]:
    """Nothing is in the dead letters but what was bad, for the reason that it has. `bad`: value → reason."""
    for raw in letters:
        wanted, got = bad.get(raw.value or b""), raw.header("dlq_reason")
        if wanted != got:
            where = f"{raw.topic} {raw.partition}@{raw.offset}"
            what = f"{where}: {got}, {raw.header('dlq_error')}: {(raw.value or b'')[:80]!r}"
            yield Finding("dead_letter", expected=wanted or "no dead letter: the record is valid", got=what)


def origins(letters: Iterable[Raw]) -> set[tuple[str | None, str | None]]:
    """Which records these letters are of: partition and offset. A record may lie in the dead letters twice."""
    return {(raw.header("dlq_partition"), raw.header("dlq_offset")) for raw in letters}


def offsets_behind(
    last: Mapping[tuple[str, int], int], committed: Mapping[tuple[str, int], int]
) -> dict[str, tuple[int, int]]:
    """Partitions whose group has not committed an offset behind the last record: (wanted, committed)."""
    return {
        f"{topic}/{partition}": (offset + 1, committed.get((topic, partition), 0))
        for (topic, partition), offset in sorted(last.items())
        if committed.get((topic, partition), 0) <= offset
    }
