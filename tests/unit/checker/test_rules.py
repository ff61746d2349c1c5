"""The checker of tests/storm sees what it must see: each way of being wrong breaks exactly the rule meant for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.storm.checker import rules
from tests.storm.checker.clocks import Jump
from tests.storm.checker.database import Database, Row
from tests.storm.checker.findings import Report, UntrueError
from tests.storm.checker.fold import FoldedAccount, fold
from tests.storm.checker.invitations import Assignment, assignments, log_records, nobody_invited, uninvited
from tests.storm.checker.journal import Journal, ended, explained, untouched
from tests.storm.checker.log import Event, Raw
from tests.storm.checker.secrets import forms, leaks
from tests.storm.checker.server import ServerMailbox, ServerMessage

ACCOUNT = "6f1c1f0e-6d0a-4b0c-9c1e-2f6f5d1c7a11"
BOX = {"mailbox_id": "b1", "mailbox": "INBOX"}
EPOCH = 77


def events(*bodies: dict[str, Any], writer: str = "one/7.1") -> list[Event]:
    return [
        Event(0, number, 0, ACCOUNT, number, body["type"], body.get("writer", writer), body)
        for number, body in enumerate(bodies, 1)
    ]


def discovered(**changes: Any) -> dict[str, Any]:
    return {"type": "mailbox.discovered", **BOX, "wire_name": "INBOX", "uidvalidity": EPOCH, **changes}


def added(uid: int, message: str = "m", *flags: str, **changes: Any) -> dict[str, Any]:
    place = {**BOX, "uidvalidity": EPOCH, "uid": uid}
    return {"type": "message.added", **place, "message_id": message, "flags": list(flags), **changes}


def flagged(uid: int, message: str, flags: list[str], plus: list[str], minus: list[str]) -> dict[str, Any]:
    return added(uid, message) | {"type": "message.flags_changed", "flags": flags, "added": plus, "removed": minus}


def removed(uid: int, message: str = "m", **changes: Any) -> dict[str, Any]:
    return {**added(uid, message), "type": "message.removed", **changes}


def moved(uid: int, to: int, message: str = "m", *, era: int = EPOCH, to_era: int = EPOCH) -> dict[str, Any]:
    source, target = {**BOX, "uidvalidity": era, "uid": uid}, {**BOX, "uidvalidity": to_era, "uid": to}
    return {"type": "message.moved", "from": source, "to": target, "message_id": message, "flags": []}


def reset(previous: int = EPOCH, now: int = EPOCH + 1) -> dict[str, Any]:
    return {"type": "mailbox.reset", **BOX, "previous_uidvalidity": previous, "uidvalidity": now}


def folded(*bodies: dict[str, Any]) -> FoldedAccount:
    return fold(events(*bodies))[ACCOUNT]


def nonsense(*bodies: dict[str, Any]) -> set[str]:
    return {finding.rule for finding in folded(*bodies).nonsense}


def server(epoch: int = EPOCH, **messages: ServerMessage) -> dict[str, ServerMailbox]:
    by_uid = {int(name[1:]): message for name, message in messages.items()}
    return {"INBOX": ServerMailbox("INBOX", "INBOX", epoch, by_uid)}


def there(*flags: str, content: str | None = None) -> ServerMessage:
    return ServerMessage(frozenset(flags), content)


def test_a_sound_log_adds_up() -> None:
    account = folded(
        discovered(),
        added(1, "m1", "\\Seen"),
        added(2, "m2"),
        flagged(2, "m2", ["$Work"], ["$Work"], []),
        removed(1, "m1"),
        reset(),
        moved(2, 5, "m2", to_era=EPOCH + 1),
        {"type": "account.caught_up", "mailboxes": 1, "messages": 1},
    )
    assert account.nonsense == []
    assert list(rules.log_against_server(account, server(EPOCH + 1, u5=there()))) == []


@pytest.mark.parametrize(
    ("rule", "bodies"),
    [
        ("place_twice", [discovered(), added(1), added(1)]),
        ("place_back", [discovered(), added(1), removed(1), added(1), removed(1)]),
        ("place_back", [discovered(), added(1), moved(1, 2), added(1), removed(1)]),
        ("place_unknown", [discovered(), removed(1)]),
        ("place_unknown", [discovered(), flagged(1, "m", ["a"], ["a"], [])]),
        ("other_message", [discovered(), added(1, "m"), removed(1, "n")]),
        ("other_epoch", [discovered(), added(1, uidvalidity=EPOCH + 1)]),
        ("other_name", [discovered(), added(1, mailbox="Sent")]),
        ("no_change", [discovered(), added(1, "m", "a"), flagged(1, "m", ["a"], [], [])]),
        ("flags_do_not_add_up", [discovered(), added(1), flagged(1, "m", ["a"], ["b"], [])]),
        ("mailbox_twice", [discovered(), discovered()]),
        ("mailbox_unknown", [added(1)]),
        ("reset_of_other_epoch", [discovered(), reset(previous=3)]),
        ("unknown_event", [discovered(type="mailbox.painted")]),
        ("incomplete_event", [discovered(), {"type": "message.removed", **BOX, "uid": 1, "message_id": "m"}]),
        ("incomplete_event", [discovered(), {"type": "message.moved", "message_id": "m", "to": added(1)}]),
        ("unreadable_but_there", [discovered(), added(1), added(1, type="message.unreadable")]),
        ("caught_up_twice", [{"type": "account.caught_up"}, {"type": "account.caught_up"}]),
        ("renamed_from_elsewhere", [discovered(), discovered(type="mailbox.renamed", previous="Sent")]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_case_109_events_that_make_no_sense_are_found(rule: str, bodies: list[dict[str, Any]]) -> None:
    assert rule in nonsense(*bodies)


def test_case_109_gaps_repeats_and_strays_of_the_sequence() -> None:
    good = events(discovered(), added(1), added(2))
    assert list(rules.sequences(good)) == []
    assert [f.rule for f in rules.sequences([good[0], good[2]])] == ["sequence_gap"]
    twice = Event(0, 9, 0, ACCOUNT, 3, "message.added", "one/7.1", added(2))
    assert [f.rule for f in rules.sequences([*good, twice])] == ["sequence_repeated"]
    stray = Event(1, 1, 0, ACCOUNT, 4, "message.added", "one/7.1", added(3))
    assert [f.rule for f in rules.sequences([*good, stray])] == ["two_partitions"]


def test_numbers_that_mean_something_else_now_may_come_again() -> None:
    same = [reset(now=EPOCH), removed(1), removed(2), added(1), added(2)]
    assert nonsense(discovered(), added(1), added(2), *same) == set()
    other, back = EPOCH + 1, [reset(), moved(1, 1, to_era=EPOCH + 1)]
    there_and_back = [*back, reset(other, EPOCH), moved(1, 1, era=other, to_era=EPOCH)]
    assert nonsense(discovered(), added(1), *there_and_back) == set()


def test_headers_must_say_what_the_record_says() -> None:
    def told(**changes: str) -> Event:
        said = {"ce_id": f"{ACCOUNT}/3", "ce_type": "message.added", "ce_specversion": "1.0", "sequence": "3"} | changes
        headers = tuple((name, value.encode()) for name, value in said.items())
        return Event(0, 9, 0, ACCOUNT, 3, "message.added", "one/7.1", added(1), headers)

    assert list(rules.headers_of_changes([told()])) == []
    wrong = [told(ce_id=f"{ACCOUNT}/2"), told(ce_type="message.moved"), told(sequence="4"), events(added(1))[0]]
    assert [f.rule for f in rules.headers_of_changes(wrong)] == ["headers"] * 4
    assert [f.rule for f in rules.headers_of_changes([replace(told(), headers=told().headers * 2)])] == ["headers"]


@pytest.mark.parametrize(
    ("rule", "writers"),
    [
        (None, ["one/7.1", "one/7.1", "two/7.2", "one/7.3", "one/8.0"]),
        ("writers_interleave", ["one/7.1", "two/7.2", "one/7.1"]),
        ("fence_went_back", ["one/7.5", "two/7.4"]),
        ("fence_went_back", ["one/8.0", "two/7.4"]),
        ("no_writer", ["one/7.1", None]),
        ("no_writer", ["one/7.1", "two"]),
    ],
)
def test_s3_writers_must_not_interleave(rule: str | None, writers: list[str | None]) -> None:
    log = [Event(0, n, 0, ACCOUNT, n, "x", writer, {}) for n, writer in enumerate(writers, 1)]
    assert {finding.rule for finding in rules.writers(log)} == ({rule} if rule else set())


def test_of_a_mailbox_listed_and_refused_nobody_knows_whether_it_is_there() -> None:
    account = folded(discovered(), added(1))
    assert not list(rules.log_against_server(account, {}, {"INBOX"}))
    assert list(rules.log_against_server(account, {}, {"Sent"}))


@pytest.mark.parametrize(
    ("rule", "server_now"),
    [
        ("message_missing_in_log", server(u1=there(), u2=there())),
        ("message_only_in_log", server()),
        ("flags", server(u1=there("\\seen"))),
        ("uidvalidity", server(EPOCH + 1, u1=there())),
        ("mailbox_only_in_log", {}),
        ("mailbox_missing_in_log", server(u1=there()) | {"Sent": ServerMailbox("Sent", "Sent", 5, {})}),
        ("mailbox_name", {"INBOX": ServerMailbox("INBOX", "Inbox!", EPOCH, {1: there()})}),
    ],
)
def test_differences_between_log_and_server_are_named(rule: str, server_now: dict[str, ServerMailbox]) -> None:
    account = folded(discovered(), added(1))
    assert [finding.rule for finding in rules.log_against_server(account, server_now)] == [rule]


def test_one_content_one_id() -> None:
    account = folded(discovered(), added(1, "m1"), added(2, "m2"))
    same = server(u1=there(content="c"), u2=there(content="c"))
    assert [f.rule for f in rules.log_against_server(account, same)] == ["one_message_two_ids"]
    account = folded(discovered(), added(1, "m"), added(2, "m"))
    other = server(u1=there(content="c"), u2=there(content="d"))
    assert [f.rule for f in rules.log_against_server(account, other)] == ["two_messages_one_id"]


def test_case_14_places_of_an_old_epoch_must_not_stay() -> None:
    account = folded(discovered(), added(1), reset())
    assert [f.rule for f in rules.log_against_server(account, server(EPOCH + 1))] == ["old_epoch_left"]


def database(change: Callable[[Database], None] = lambda _: None) -> Database:
    row = {"name": "INBOX", "wire_name": "INBOX", "selectable": True, "uidvalidity": EPOCH}
    row |= {"delimiter": None, "special_use": None, "backfilled": False}
    found = Database(
        mailboxes={ACCOUNT: {"b1": row}},
        places={ACCOUNT: {("b1", EPOCH, 1): Row("m", frozenset())}},
        messages={ACCOUNT: {"m"}},
        sequences={ACCOUNT: 2},
        positions={("mailbox.changes", 0): 12},
    )
    change(found)
    return found


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (None, lambda d: None),
        ("database_place", lambda d: d.places[ACCOUNT].clear()),
        ("database_place", lambda d: d.places[ACCOUNT].update({("b1", EPOCH, 1): Row("m", frozenset({"a"}))})),
        ("database_place", lambda d: d.places[ACCOUNT].update({("b1", EPOCH, 2): Row("m", frozenset())})),
        ("database_message", lambda d: d.messages[ACCOUNT].add("left over")),
        ("database_sequence", lambda d: d.sequences.update({ACCOUNT: 1})),
        ("database_mailbox", lambda d: d.mailboxes.clear()),
        ("database_uidvalidity", lambda d: d.mailboxes[ACCOUNT]["b1"].update(uidvalidity=1)),
        ("database_uidvalidity", lambda d: d.mailboxes[ACCOUNT]["b1"].update(uidvalidity=None)),
        ("database_mailbox", lambda d: d.mailboxes[ACCOUNT]["b1"].update(special_use="\\trash")),
        ("database_mailbox", lambda d: d.mailboxes[ACCOUNT]["b1"].update(backfilled=True)),
        ("database_caught_up", lambda d: d.caught_up.add(ACCOUNT)),
        ("database_unreadable", lambda d: d.unreadable.update({ACCOUNT: {("b1", EPOCH, 9)}})),
    ],
)
def test_differences_between_log_and_database_are_named(rule: str | None, change: Callable[[Database], None]) -> None:
    account = folded(discovered(), added(1))
    found = [finding.rule for finding in rules.log_against_database(account, database(change))]
    assert found == ([rule] if rule else [])


def test_projection_must_stand_at_the_end_and_hold_nothing_else() -> None:
    last = [Event(0, offset, 0, ACCOUNT, 1, "x", None, {}) for offset in (3, 11)]
    assert list(rules.positions(database(), "mailbox.changes", last)) == []
    last.append(Event(0, 12, 0, ACCOUNT, 1, "x", None, {}))
    assert [f.rule for f in rules.positions(database(), "mailbox.changes", last)] == ["position"]
    assert [f.rule for f in rules.nothing_else_in_database([], database())] == ["database_account"]
    left_over = Database(messages={ACCOUNT: {"m"}})
    assert [f.rule for f in rules.nothing_else_in_database([], left_over)] == ["database_account"]
    assert list(rules.positions(database(), "mailbox.changes", [], {0: 12, 1: 0})) == []
    assert [f.rule for f in rules.positions(database(), "mailbox.changes", [], {0: 11})] == ["position_ahead"]


def test_what_a_rename_changes_besides_the_name_is_folded() -> None:
    to = {"type": "mailbox.renamed", **BOX, "previous": "INBOX", "wire_name": "INBOX", "special_use": "\\trash"}
    done = {"type": "backfill.completed", **BOX, "messages": 1}
    box = folded(discovered(delimiter="/"), to, done).mailboxes["b1"]
    assert (box.delimiter, box.special_use, box.backfilled) == (None, "\\trash", True)


def test_w15_commands_are_concluded_once() -> None:
    def told(kind: str, command: str) -> Raw:
        return Raw("t", 0, 0, 0, b"", b'{"type": "%s", "command_id": "%s"}' % (kind.encode(), command.encode()), ())

    log = [told("started", "a"), told("success", "a"), told("failure", "b"), told("failure", "b")]
    assert list(rules.conclusions(log[:3], ["a", "b"])) == []
    assert [f.expected for f in rules.conclusions(log, ["a", "c"])] == ["c: one", "b: one"]
    assert [f.rule for f in rules.conclusions(log[1:2], ["a"])] == ["not_begun"]
    for again in ("started", "progress"):
        assert [f.rule for f in rules.conclusions([*log[:2], told(again, "a")], ["a"])] == ["after_conclusion"]


def test_offsets_of_every_topic_and_partition_must_be_at_the_end() -> None:
    last = {("user.active", 0): 4, ("account.heat", 1): 2, ("sync.jobs", 0): 0}
    at_the_end = {("user.active", 0): 5, ("account.heat", 1): 3, ("sync.jobs", 0): 2}
    assert rules.offsets_behind(last, at_the_end) == {}
    behind = rules.offsets_behind(last, at_the_end | {("user.active", 0): 4} | {("account.heat", 1): 0})
    assert behind == {"user.active/0": (5, 4), "account.heat/1": (3, 0)}
    assert rules.offsets_behind({("sync.jobs", 0): 0}, {}) == {"sync.jobs/0": (1, 0)}


def test_w13_only_what_is_bad_is_in_the_dead_letters() -> None:
    def letter(value: bytes, reason: str, offset: str = "7") -> Raw:
        headers = (("dlq_reason", reason.encode()), ("dlq_partition", b"0"), ("dlq_offset", offset.encode()))
        return Raw("user.active.dlq", 0, 0, 0, b"", value, headers)

    bad = {b"no json": "not_json", b"[]": "schema"}
    assert list(rules.dead_letters([letter(b"no json", "not_json"), letter(b"[]", "schema")], bad)) == []
    wrong = [letter(b"[]", "not_json"), letter(b'{"user_id": "u"}', "handler_failed")]
    assert [f.expected for f in rules.dead_letters(wrong, bad)] == ["schema", "no dead letter: the record is valid"]
    twice = [letter(b"[]", "schema"), letter(b"[]", "schema"), letter(b"[]", "schema", "9")]
    assert rules.origins(twice) == {("0", "7"), ("0", "9")}


def test_events_must_be_explained_by_the_script() -> None:
    journal = Journal()
    journal.observe(server(u1=there("\\seen")))
    journal.observe(server())
    fine = folded(discovered(), added(1, "m", "\\Seen"), removed(1))
    assert list(explained(fine, journal)) == []
    invented = folded(discovered(), added(2), added(1), removed(2))
    assert [f.rule for f in explained(invented, journal)] == ["invented_place", "invented_flags", "invented_removal"]


def test_flags_must_be_told_in_the_order_in_which_they_were() -> None:
    journal = Journal()
    for flags in ((), ("\\seen",), ("\\flagged",), ("\\seen",)):
        journal.observe(server(u1=there(*flags)))
    seen, flagged_ = ["\\Seen"], ["\\Flagged"]
    fine = folded(discovered(), added(1), flagged(1, "m", seen, seen, []))
    whole = folded(discovered(), added(1, "m", *seen), flagged(1, "m", flagged_, flagged_, seen))
    assert not list(explained(fine, journal)) and not list(explained(whole, journal))
    # a change that was told is taken back and told again
    back = folded(
        discovered(),
        added(1, "m", *flagged_),
        flagged(1, "m", [], [], flagged_),
        flagged(1, "m", seen, seen, []),
    )
    assert back.nonsense == [] and not list(rules.log_against_server(back, server(u1=there("\\seen"))))
    assert [f.rule for f in explained(back, journal)] == ["flags_went_back"]


def deleted(**changes: Any) -> dict[str, Any]:
    return {"type": "mailbox.deleted", **BOX, **changes}


def test_a_mailbox_that_was_never_deleted_must_not_come_and_go() -> None:
    """Told as deleted and found again with all its mail: in the end log, server and database agree."""
    journal, now = Journal(), server(u1=there())
    journal.observe(now)
    again = {"mailbox_id": "b2"}
    flap = folded(discovered(), added(1), deleted(), discovered(**again), added(1, **again))
    assert flap.nonsense == [] and not list(explained(flap, journal)) and not list(rules.log_against_server(flap, now))
    assert [f.rule for f in ended(flap, journal, now)] == ["invented_deletion"]
    # of a mailbox that is really made anew, and of one that went under another name for a while, that is as it must be
    assert not list(ended(flap, journal, server(EPOCH + 1, u1=there())))
    for moving in (journal.renamed, journal.deleting):
        moving.add(EPOCH)
        assert not list(ended(flap, journal, now))
        moving.clear()


def test_a_reset_that_never_was_is_invented() -> None:
    journal, now = Journal(), server(u1=there())
    journal.observe(now)
    same = folded(discovered(), added(1), reset(now=EPOCH), removed(1), added(1))
    assert not list(rules.log_against_server(same, now))
    assert [f.rule for f in ended(same, journal, now)] == ["invented_reset"]
    assert not list(ended(folded(discovered(), added(1), reset()), journal, server(EPOCH + 1)))


@pytest.mark.parametrize("before", ["", "a", "ab", "user\x00"])
def test_cases_103_104_secrets_are_found_in_every_form(before: str) -> None:
    secret = 'c4nary\\"pass word+é'
    for content in (
        secret.encode(),
        base64.b64encode(before.encode() + secret.encode()),
        base64.urlsafe_b64encode(before.encode() + secret.encode() + b"\x01\x01"),
        b'LOGIN "u" "c4nary\\\\\\"pass word+\xc3\xa9"',
    ):
        assert [f.rule for f in leaks([secret], [("log", b"x " + content + b" y")])] == ["secret_leaked"]
    assert list(leaks([secret], [("log", b"c4nar\xff and nothing else")])) == []
    assert all(len(form) >= 8 for form in forms(secret))


def test_report_says_what_where_and_around() -> None:
    report = Report()
    report.require_true()
    account = folded(discovered(), added(1))
    report.add(rules.log_against_server(account, server()))
    with pytest.raises(UntrueError, match=r"(?s)seed 7.*message_only_in_log.*uid 1.*message\.added"):
        report.require_true("seed 7")


def test_s3_a_writer_of_an_older_generation_is_uninvited() -> None:
    given = [Assignment(1000, "one", 1, frozenset({0, 1})), Assignment(2000, "two", 2, frozenset({0}))]

    def wrote(at_ms: int, writer: str) -> Event:
        return Event(0, at_ms, at_ms, ACCOUNT, 1, "x", writer, {})

    rightful = [wrote(1500, "one/7.0"), wrote(2500, "two/7.1"), wrote(2600, "two/7.1")]
    assert list(uninvited(rightful, given)) == []
    sleeper = wrote(20_000, "one/7.2")
    assert [f.rule for f in uninvited([*rightful, sleeper], given)] == ["uninvited_writer"]
    again = [*given, Assignment(19_000, "one", 3, frozenset({0, 1}))]
    assert list(uninvited([*rightful, sleeper], again)) == []


def test_s3_a_writer_of_a_partition_that_another_was_given_is_uninvited() -> None:
    """In one generation, too: it heard that the partition is not its own, and fenced the owner all the same."""
    given = [Assignment(1000, "one", 4, frozenset({1})), Assignment(1000, "two", 4, frozenset({0}))]
    log = [Event(0, 1, 2000, ACCOUNT, 1, "x", "two/7.0", {}), Event(0, 2, 9000, ACCOUNT, 2, "x", "one/7.1", {})]
    assert [f.rule for f in uninvited(log, given)] == ["uninvited_writer"]
    assert list(uninvited(log, [*given, Assignment(8000, "one", 5, frozenset({0, 1}))])) == []
    assert list(uninvited(log, [*given, Assignment(8000, "two", 5, frozenset({1}))])) == [], "a line was lost"
    soon = [log[0], Event(0, 2, 5000, ACCOUNT, 2, "x", "one/7.1", {})]
    assert list(uninvited(soon, given)) == [], "a fence that was on its way"


def test_logs_without_assignments_prove_nothing(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    assert list(nobody_invited(events(added(1)), [], [log])) == []
    log.write_text('{"event": "given partitions 0 and 1", "worker": "one"}\n')
    given = assignments(log_records([log]))
    assert [f.rule for f in nobody_invited(events(added(1)), given, [log])] == ["no_assignments"]
    assert list(nobody_invited([], given, [log])) == []


def test_a_wrong_clock_makes_nobody_uninvited() -> None:
    """What a worker tells while its clock is wrong is taken for the right time, of its log and of its events."""
    day = 86_400_000
    jumps = [Jump("one", day, 10_000, 20_000), Jump("two", -day, 30_000, 40_000)]
    lines = [
        {"event": f"assignment of generation {number}: partitions [0]", "worker": worker, "timestamp": at}
        for number, worker, at in (
            (1, "one", "1970-01-02T00:00:12Z"),
            (2, "two", "1969-12-31T00:00:35Z"),
            (3, "one", "1970-01-01T00:00:50Z"),
        )
    ]
    given = assignments(lines, jumps)
    assert [(a.worker, a.at_ms) for a in given] == [("one", 12_000), ("two", 35_000), ("one", 50_000)]

    def wrote(at_ms: int, writer: str) -> Event:
        return Event(0, at_ms, at_ms, ACCOUNT, 1, "x", writer, {})

    rightful = [wrote(day + 13_000, "one/7.0"), wrote(36_000 - day, "two/7.1"), wrote(60_000, "one/7.3")]
    assert list(uninvited(rightful, given, jumps)) == []
    sleeper = wrote(45_000, "one/7.2")
    assert [f.rule for f in uninvited([*rightful[:2], sleeper], given, jumps)] == ["uninvited_writer"]


def test_assignments_are_read_from_log_records(tmp_path: Path) -> None:
    event = "assignment of generation 4: partitions [0, 3]"
    line = json.dumps({"event": event, "worker": "one", "timestamp": "2026-11-30T10:00:00Z"})
    (tmp_path / "one.log").write_text(f"{line}\nno json\n{{half\n")
    (found,) = assignments(log_records([tmp_path / "one.log", tmp_path / "missing.log"]))
    assert (found.worker, found.generation, found.partitions) == ("one", 4, frozenset({0, 3}))


def test_mail_that_somebody_changed_is_found() -> None:
    journal = Journal()
    journal.observe(server(u1=there(), u2=there("\\seen")))
    assert list(untouched(ACCOUNT, journal, server(u1=there(), u2=there("\\seen")))) == []
    found = list(untouched(ACCOUNT, journal, server(u1=there("\\seen"), u3=there())))
    assert [(f.rule, f.uid) for f in found] == [("mail_was_changed", n) for n in (1, 2, 3)]
