"""The demo's own arithmetic: which event a deed led to, what is measured, when it counts as a failure."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from streams.local.demo.__main__ import _main, main
from streams.local.demo.deeds import Deeds, key_of
from streams.local.demo.run import Demo
from streams.local.demo.view import View, milliseconds, percentile
from streams.local.demo.watch import Seen, Watch, describe
from streams.local.errors import ServiceFailed

ACCOUNT = "9a1964c6-1253-4edb-971d-e8bc62568270"


def _event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "account_id": ACCOUNT, "sequence": 1, "mailbox": "INBOX", "uid": 7, **fields}


@pytest.mark.parametrize(
    ("event", "deed"),
    [
        (_event("message.added", headers={"message_id": "<1@x>"}), ("added", ACCOUNT, "1@x")),
        (
            _event("message.flags_changed", flags=["$a", "\\Seen"]),
            ("flags", ACCOUNT, 7, frozenset({"\\Seen", "$a"})),
        ),
        (_event("message.removed"), ("removed", ACCOUNT, 7)),
        (_event("message.moved", **{"from": {"uid": 9}, "to": {"uid": 1}}), ("moved", ACCOUNT, 9)),
    ],
)
def test_event_finds_its_deed_once(event: dict[str, Any], deed: tuple[Any, ...]) -> None:
    deeds = Deeds()
    deeds.begin(deed, 5.0)
    assert (deeds.waiting, deeds.done) == (1, 1)
    assert deeds.claim(key_of(event)) == 5.0
    assert deeds.claim(key_of(event)) is None
    assert (deeds.waiting, deeds.done) == (0, 1)


def test_event_that_nobody_did_has_no_deed() -> None:
    deeds = Deeds()
    assert deeds.claim(key_of(_event("account.caught_up"))) is None
    deeds.begin(("removed", ACCOUNT, 7), 5.0)
    deeds.forget(("removed", ACCOUNT, 7))
    assert deeds.done == 0
    assert deeds.claim(key_of(_event("message.removed"))) is None


def test_description_of_an_arrival_names_sender_and_subject() -> None:
    headers = {"subject": "Lunch?", "from": [{"name": "Radia Perlman", "address": "radia@bridges.example"}]}
    assert describe(_event("message.added", headers=headers)) == "INBOX: Lunch? from Radia Perlman"
    assert describe(_event("message.added")) == "INBOX: (no subject) from unknown sender"


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([1.0], 0.5) == 1.0
    assert milliseconds(1.2345) == "1,234 ms"
    assert milliseconds(None) == ""


def _summary(*seen: Seen) -> tuple[bool, str]:
    output = io.StringIO()
    watch = Watch(Deeds(), "mailbox.changes")
    watch.measured.extend(seen)
    watch.counts.update(entry.kind for entry in seen)
    return View(Console(file=output, width=120), watch, {}, []).summary(), output.getvalue()


def test_demo_has_failed_when_nothing_reached_the_database() -> None:
    flowed, text = _summary(Seen(ACCOUNT, 1, "message.added", "", logged_at=2.0, wall=0.0, begun_at=1.0))
    assert not flowed
    assert "nothing flowed" in text


def test_summary_counts_from_the_deed() -> None:
    seen = Seen(ACCOUNT, 1, "message.added", "", logged_at=2.0, wall=0.0, begun_at=1.5, stored_at=2.25)
    flowed, text = _summary(seen)
    assert flowed
    assert "500 ms" in text
    assert "750 ms" in text


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "1e9"])
def test_wrong_demo_seconds_is_one_line_and_exit_2(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEMO_SECONDS", text)
    assert main() == 2
    assert capsys.readouterr().err.count("\n") == 1


async def test_a_log_that_looks_like_markup_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_self: Demo) -> bool:
        raise ServiceFailed("kafka", "ended with exit code 1", "[main] refused by [/127.0.0.1:9092]")

    monkeypatch.setattr(Demo, "run", fails)
    sink = io.StringIO()
    assert await _main(Console(file=sink, width=200), None) == 1
    assert "[main] refused by [/127.0.0.1:9092]" in sink.getvalue()
