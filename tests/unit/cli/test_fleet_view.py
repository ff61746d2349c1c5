"""What `status` makes of what it reads: S2, S18."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

from rich.console import Console

from streams.cli.fleet_view import Member, Observed, counts, ranges, summarise
from streams.cli.status import _show
from streams.contracts.account import AccountSyncStatus, AccountTierChanged, Phase, SyncError, Tier
from streams.contracts.keys import partition_for
from streams.domain.lifecycle import Life

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
PARTITIONS = 4


def accounts_in(partition: int) -> Iterator[str]:
    """Ids of accounts in a partition."""
    return (i for n in count() if partition_for(i := str(uuid.UUID(int=n, version=4)), PARTITIONS) == partition)


def status(
    account_id: str,
    worker: str,
    phase: Phase = "running",
    *,
    tier: Tier = "warm",
    next_poll: timedelta | None = None,
    error: SyncError | None = None,
) -> AccountSyncStatus:
    return AccountSyncStatus(
        account_id=account_id,
        phase=phase,
        since=NOW,
        at=NOW,
        tier=tier,
        worker=worker,
        error=error,
        next_poll_at=None if next_poll is None else NOW + next_poll,
    )


def fleet() -> Observed:
    """Two workers of three owned partitions, and an account for every case."""
    seen = Observed("g", "Stable", [Member("w0", "h0", frozenset({0, 1})), Member("w1", "h1", frozenset({2}))])
    zero, one, two, three = (accounts_in(partition) for partition in range(4))
    for account, made in (
        (next(zero), lambda a: status(a, "w0", tier="hot", next_poll=timedelta(minutes=-5))),
        (next(zero), lambda a: status(a, "w0", "backing_off", error=SyncError(code="timed_out", message="x", at=NOW))),
        (next(one), lambda a: status(a, "w1")),  # a former owner's word
        (next(one), lambda _: None),
        (next(two), lambda a: status(a, "w1", "stopped")),
        (next(two), lambda a: status(a, "w1", next_poll=timedelta(minutes=5))),
        (next(three), lambda a: status(a, "w0")),  # nobody has the partition
    ):
        seen.lives[account] = Life("u", "live", 1)
        if (said := made(account)) is not None:
            seen.statuses[account] = said
    dead = next(two)
    seen.lives[dead] = Life("u", "error", 1)
    seen.statuses[dead] = status(dead, "w1", error=SyncError(code="credentials_refused", message="y", at=NOW))
    return seen


def test_s18_workers_partitions_tiers_and_phases() -> None:
    view = summarise(fleet(), partitions=PARTITIONS, now=NOW)
    assert view.unassigned == [3]
    assert [(w.worker, w.partitions, w.live, w.served, w.by_tier) for w in view.workers] == [
        ("w0", [0, 1], 4, 2, {"hot": 1, "warm": 1}),
        ("w1", [2], 2, 1, {"warm": 1}),
    ]
    assert view.by_state == {"live": 7, "error": 1}
    assert view.by_phase == {"running": 2, "backing_off": 1, "unserved": 4}
    assert view.by_tier == {"hot": 1, "warm": 2}


def test_s18_two_workers_of_one_name_are_two() -> None:
    """WORKER_NAME is the host's by default: two on one machine, or an image's name."""
    seen = fleet()
    seen.members.append(Member("w0", "h2", frozenset({3})))
    view = summarise(seen, partitions=PARTITIONS, now=NOW)
    assert [(w.worker, w.host, w.partitions, w.live, w.served, w.by_tier) for w in view.workers] == [
        ("w0", "h0", [0, 1], 4, 2, {"hot": 1, "warm": 1}),
        ("w0", "h2", [3], 1, 1, {"warm": 1}),
        ("w1", "h1", [2], 2, 1, {"warm": 1}),
    ]


def test_s2_unserved_is_what_the_owner_itself_does_not_claim() -> None:
    view = summarise(fleet(), partitions=PARTITIONS, now=NOW)
    assert (view.live, view.served, view.unserved) == (7, 3, 4)


def test_s18_the_oldest_overdue_poll_and_the_newest_errors_of_live_accounts() -> None:
    seen = fleet()
    view = summarise(seen, partitions=PARTITIONS, now=NOW)
    assert view.oldest_overdue_s == 300
    assert seen.statuses[str(view.oldest_overdue_account)].tier == "hot"
    assert [error.code for error in view.errors] == ["timed_out"]
    assert summarise(seen, partitions=PARTITIONS, now=NOW, errors=0).errors == []


def test_s18_the_recorded_tier_goes_before_the_tier_in_the_status() -> None:
    seen = fleet()
    account = next(iter(seen.statuses))
    seen.tiers[account] = AccountTierChanged(account_id=account, tier="cold", reason="idle_mail", at=NOW)
    assert summarise(seen, partitions=PARTITIONS, now=NOW).by_tier == {"cold": 1, "warm": 2}


def test_s18_a_fleet_without_workers_is_shown_too() -> None:
    view = summarise(Observed("g"), partitions=PARTITIONS, now=NOW)
    assert (view.unassigned, view.workers, view.live) == ([0, 1, 2, 3], [], 0)


def test_s18_the_text_names_everything() -> None:
    sink = io.StringIO()
    _show(summarise(fleet(), partitions=PARTITIONS, now=NOW), Console(file=sink, width=200))
    text = sink.getvalue()
    wanted = ("2 workers", "without an owner: partitions 3", "w0", "2: 0-1", "unserved  4", "300 s", "timed_out")
    assert [part for part in wanted if part not in text] == []


def test_s18_what_a_mail_server_says_is_never_markup() -> None:
    account = next(accounts_in(0))
    seen = Observed("g", "Stable", [Member("[/w]", "[/h]", frozenset({0, 1, 2, 3}))], {account: Life("u", "live", 1)})
    said = SyncError(code="auth_failed", message="NO [/x] [alert] :smile:", at=NOW, mailbox="[red]odd[/]")
    seen.statuses[account] = status(account, "[/w]", error=said)
    sink = io.StringIO()
    _show(summarise(seen, partitions=PARTITIONS, now=NOW), Console(file=sink, width=200))
    text = sink.getvalue()
    assert [part for part in ("[/w]", "[/h]", "[red]odd[/]", "NO [/x] [alert] :smile:") if part not in text] == []


def test_numbers_and_counts_for_people() -> None:
    assert ranges([7, 3, 2, 1, 9, 8]) == "1-3, 7-9"
    assert ranges([]) == ""
    assert counts({"cold": 2, "odd": 1, "hot": 3}, ("hot", "warm", "cold")) == "hot 3, cold 2, odd 1"
    assert counts({}, ()) == "none"
