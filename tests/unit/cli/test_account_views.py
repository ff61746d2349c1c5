"""`accounts show`: what is known of an account becomes lines that answer a person's questions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from streams.cli.account_views import _folder, _folders_table, _Listing, account_facts, in_lines
from streams.projection.status import AccountStatus, MailboxStatus

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ACCOUNT: Any = SimpleNamespace(
    account_id="a1", user_id="u1", username="ada", host="imap.test", port=993, tls="tls", auth="password",
    state="live", reason=None,
)  # fmt: skip
STATUS = AccountStatus(
    account_id="a1", phase="running", since=NOW, tier="hot", tier_reason="session", worker="w0", error_code=None,
    error_message=None, error_mailbox=None, error_at=None, retry_at=None, last_sync_at=NOW - timedelta(minutes=1),
    next_poll_at=NOW + timedelta(minutes=4), newest_mail_at=NOW - timedelta(hours=2), mailboxes=3, messages=120,
    backfill_remaining=1, partition=7, heat_until=NOW + timedelta(minutes=30),
    set_aside={"Broken": "mailbox_unusable: cannot be opened"},
)  # fmt: skip
INBOX = MailboxStatus("1", "INBOX", None, True, 9, 100, 4, NOW, None)
BROKEN = MailboxStatus("2", "Broken", None, True, 9, 20, 0, None, None)


def facts(status: AccountStatus | None, account: Any = ACCOUNT) -> dict[str, str]:
    return dict(account_facts(account, status, now=NOW))


def test_tier_reason_heat_owner_and_times_are_told() -> None:
    found = facts(STATUS)
    assert found["tier"] == "hot (session)"
    assert found["session"] == "keeps it hot until 2026-11-30 12:30:00Z"
    assert found["owner"] == "w0, partition 7"
    assert found["last sync"] == "2026-11-30 11:59:00Z"
    assert found["next poll"] == "2026-11-30 12:04:00Z"
    assert found["newest mail"] == "2026-11-30 10:00:00Z"
    assert found["messages"] == "120 in 3 folders, history of 1 not complete"
    assert "error" not in found


def test_a_session_that_is_over_heats_nothing() -> None:
    assert facts(replace(STATUS, heat_until=NOW))["session"] == "none"
    assert facts(replace(STATUS, heat_until=None))["session"] == "none"


def test_an_account_that_backs_off_tells_when_and_why() -> None:
    found = facts(
        replace(
            STATUS, phase="backing_off", retry_at=NOW, error_code="host_busy", error_message="later",
            error_mailbox="Work", error_at=NOW,
        )
    )  # fmt: skip
    assert found["again at"] == "2026-11-30 12:00:00Z"
    assert "next poll" not in found
    assert found["error"] == "host_busy in Work: later (2026-11-30 12:00:00Z)"


def test_a_live_account_nobody_has_spoken_of_is_told_as_such() -> None:
    assert facts(None)["status"] == "no worker has said anything of it yet"
    assert "status" not in facts(None, SimpleNamespace(**{**vars(ACCOUNT), "state": "disabled"}))


def test_a_folder_has_its_accounts_last_sync_unless_it_is_set_aside_or_a_container() -> None:
    assert _folder(INBOX, STATUS)["last_sync_at"] == STATUS.last_sync_at
    assert _folder(INBOX, STATUS)["history_complete"]
    assert _folder(BROKEN, STATUS)["last_sync_at"] is None
    assert _folder(BROKEN, STATUS)["set_aside"] == "mailbox_unusable: cannot be opened"
    assert _folder(replace(INBOX, selectable=False), STATUS)["last_sync_at"] is None
    assert _folder(INBOX, None)["last_sync_at"] is None


def test_names_of_folders_are_never_markup() -> None:
    console = Console(width=160, record=True, markup=False)
    console.print(_folders_table([replace(INBOX, name="[red]odd[/]"), BROKEN], STATUS))
    shown = console.export_text()
    assert "[red]odd[/]" in shown
    assert "mailbox_unusable" in shown
    assert "not complete" in shown


def test_what_users_and_mail_servers_write_is_never_markup_in_a_listing(capsys: pytest.CaptureFixture[str]) -> None:
    listing = _Listing(as_json=False)
    account = SimpleNamespace(**{**vars(ACCOUNT), "user_id": "[/u]", "username": "[red]ada"})
    refused = replace(STATUS, error_code="auth_failed", error_message="the server says [/x] :smile:")
    listing.add([account], {"a1": refused})
    listing.end()
    shown = capsys.readouterr().out
    assert "[/u]" in shown
    assert "[red]ada" in shown
    assert "[/x] :smile:" in " ".join(shown.split())


def test_where_a_table_has_no_room_an_account_is_told_in_lines() -> None:
    lines = [line.plain for line in in_lines(ACCOUNT, STATUS)]
    assert lines == [
        "a1  live  running  hot  120 messages",
        "    u1: ada at imap.test:993, last sync 2026-11-30 11:59:00Z",
    ]
    failing = replace(STATUS, error_code="host_busy", error_message="[/x] later", last_sync_at=None)
    assert [line.plain for line in in_lines(ACCOUNT, failing)][1:] == [
        "    u1: ada at imap.test:993",
        "    host_busy: [/x] later",
    ]
    assert next(in_lines(ACCOUNT, None)).plain == "a1  live"
