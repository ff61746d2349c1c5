"""A runner through bad logins, lost connections, limits and crashes: cases 28, 71 to 84, rows S9, S10, S15 to S17."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from streams.domain import mirror
from streams.errors import MirrorDamaged, ProducerLost, RetryLater
from streams.imap.hosts import HostGate, HostPolicy
from streams.imap.session import ImapSession
from streams.sync.passes import AccountPass
from streams.sync.runner import AccountRunner
from streams.sync.state import AccountState, MailboxState
from tests.fixtures.engine import letter
from tests.fixtures.runner import Running, until
from tests.integration.engine.conftest import Run
from tests.integration.engine.test_cursors import fill
from tests.scripted_imap.bending import Drop, Hang, Reset
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import BARE, BASE, CONDSTORE, GMAIL, QRESYNC, Profile

DAY_S = 86_400.0


@dataclass(slots=True)
class Turns:
    """Turns to read history that nobody gets for now."""

    free: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0


def hold_history(runner: AccountRunner) -> Turns:
    """The host's rates for history are used up until the turns are free."""
    connector, turns = runner._services.connector, Turns()
    wait_in_turn = connector.history_turn

    async def wait(host: str, **how: Any) -> Any:
        turns.waiting += 1
        await turns.free.wait()
        return await wait_in_turn(host, **how)

    connector.history_turn_now = lambda host: None  # type: ignore[method-assign]
    connector.history_turn = wait  # type: ignore[method-assign]
    return turns


async def settled(running: Running, account: Account) -> None:
    await until(lambda: running.agrees(account), what="log = server")


async def test_case_28_mail_that_comes_before_idle_begins(account: Account, run: Run) -> None:
    """A message arrives after the last FETCH and before `+ idling`: it is read at once, not at the next poll."""
    running = await run(QRESYNC, POLL_WARM=600.0, POLL_COLD=600.0)
    await running.start(hot=True)
    await until(lambda: running.server.counts["IDLE"] >= 1)
    for n in range(3):
        before = running.server.counts["IDLE"]
        running.server.bend(
            r"^IDLE", lambda lines, n=n: (account.mailboxes["INBOX"].deliver(letter(50 + n)), lines)[1], times=1
        )
        account.mailboxes["INBOX"].deliver(letter(n))
        await settled(running, account)
        await until(lambda before=before: running.server.counts["IDLE"] > before)
    await settled(running, account)


@pytest.mark.parametrize(
    "text",
    ["[UNAVAILABLE] later", "[ALERT] Too many simultaneous connections", "[UNAVAILABLE] Maximum number of connections"],
)
async def test_cases_71_72_a_busy_server_is_no_wrong_password(text: str, account: Account, run: Run) -> None:
    """Backoff, state unchanged, never `error`; it goes on by itself."""
    running = await run(Profile(QRESYNC, login_no=text), CREDENTIALS_RETRIES=1)
    await running.start()
    await until(lambda: running.runner.retry_at is not None)
    assert running.runner.phase == "backing_off"
    assert running.directory.reasons == []
    # the host holds every login back for as long as it asked for; that time is over now
    running.server.profile = Profile(QRESYNC)
    running.runner._services.connector._gate = HostGate(HostPolicy(logins_per_s=1000))
    running.runner.poke()
    await settled(running, account)
    assert not running.deaths


async def test_case_72_a_limit_on_connections_is_lived_with(account: Account, run: Run) -> None:
    """The server takes one connection; a hot account wants two: it still gets everything."""
    fill(account, 3)
    running = await run(Profile(QRESYNC, max_connections=1))
    await running.start(hot=True)
    await settled(running, account)
    fill(account, 1, first=10)
    await settled(running, account)


async def test_case_73_authenticated_but_not_connected(account: Account, run: Run) -> None:
    """BAD to everything after login: no loop, a visible reason."""
    running = await run(CONDSTORE)
    running.server.bend(
        r"^(LIST|EXAMINE|STATUS)",
        lambda lines: [lines[-1].split()[0] + b" BAD User is authenticated but not connected.\r\n"],
    )
    await running.start()
    await until(lambda: running.statuses() and running.statuses()[-1].get("error"))
    status = running.statuses()[-1]
    assert status["phase"] == "backing_off"
    assert "authenticated but not connected" in status["error"]["message"]
    logins = running.server.logins["user"]
    assert running.runner.retry_at is not None
    assert logins <= 4
    assert running.directory.reasons == []


@pytest.mark.parametrize("hot", [False, True], ids=["polled", "hot"])
async def test_a_server_that_tells_more_than_a_record_holds_costs_its_account_alone(
    hot: bool, account: Account, run: Run
) -> None:
    """Keywords without bound: the account waits, visibly; the log of its shard is not lost, and no event is doubled."""
    fill(account, 3)
    running = await run(QRESYNC, BACKOFF_MAX_S=1.0)
    await running.start(hot=hot)
    await settled(running, account)
    shard_log = running.shard.current
    for n in range(30):
        account.mailboxes["INBOX"].deliver(letter(10 + n), flags=[f"{n:02}" * 30_000])
    running.runner.poke()
    await until(lambda: running.statuses()[-1].get("error", {}).get("code") == "record_too_large")
    logins = running.server.logins["user"]
    await asyncio.sleep(0.5)
    assert running.server.logins["user"] <= logins + 3
    assert shard_log is running.shard.current
    assert shard_log is not None
    assert not shard_log.lost.done()
    account.mailboxes["INBOX"].expunge(*account.mailboxes["INBOX"].uids[3:])
    running.runner.poke()
    await settled(running, account)
    assert [event["sequence"] for event in running.events()] == list(range(1, len(running.events()) + 1))


async def test_case_74_a_token_is_taken_fresh_for_each_login(account: Account, run: Run) -> None:
    """After a reconnect the token is a new one; one that is refused is refreshed once by force."""
    account.token = "t2"
    running = await run(QRESYNC)
    running.sources.token = lambda force: "t2" if force else "t1"
    await running.start()
    await settled(running, account)
    assert running.sources.asked[:2] == [False, True]
    account.token = "t3"
    running.sources.token = lambda force: "t3"
    await running.server.drop_all()
    fill(account, 1)
    await settled(running, account)
    assert running.server.tokens[-1] == "t3"


async def test_s9_credentials_refused_for_good_put_the_account_to_error(account: Account, run: Run) -> None:
    """Retried slowly, then `error` in PostgreSQL and the event, the runner is dead and its sockets closed."""
    running = await run(QRESYNC, CREDENTIALS_RETRIES=3)
    running.sources.password = "wrong"
    await running.start(hot=True)
    await until(lambda: running.deaths)
    assert running.directory.row is not None
    assert running.directory.row.state == "error"
    changed = running.truth.events(running.settings.topic("account.state_changed"), running.account_id)
    assert [(e["state"], e["version"]) for e in changed] == [("error", 2)]
    await until(lambda: running.server.open == 0)
    assert running.server.counts["AUTHENTICATE"] == 3


async def test_s9_new_credentials_meanwhile_win(account: Account, run: Run) -> None:
    """Somebody stored new credentials while we were refused: they are tried, and the account never becomes `error`."""
    running = await run(QRESYNC, CREDENTIALS_RETRIES=2)
    running.sources.password = "wrong"
    await running.start()
    await until(lambda: running.runner.failure is not None)
    assert running.directory.row is not None
    running.directory.row = replace(running.directory.row, version=2)
    running.sources.password = "secret"
    await settled(running, account)
    assert running.directory.row.state == "live"


@pytest.mark.parametrize("what", ["gone", "disabled"])
async def test_s9_an_account_that_is_not_live_ends_its_runner(what: str, account: Account, run: Run) -> None:
    """The directory says that it is gone, or disabled: the runner marks itself dead."""
    running = await run(QRESYNC)
    assert running.directory.row is not None
    running.directory.row = None if what == "gone" else replace(running.directory.row, state="disabled")
    await running.start()
    await until(lambda: running.deaths)
    assert running.server.open == 0


@pytest.mark.parametrize(
    "last",
    [b"* BYE Session invalidated - AccessTokenExpired\r\n", Drop(), Reset()],
    ids=["bye", "fin", "rst"],
)
async def test_cases_75_79_a_connection_that_ends_in_idle_is_made_again(
    last: object, account: Account, run: Run
) -> None:
    """BYE, FIN, RST while watching: noticed at once, it ends nothing else, mail of the gap is read."""
    running = await run(QRESYNC, POLL_WARM=600.0, POLL_COLD=600.0)
    await running.start(hot=True)
    await until(lambda: running.runner.watching and running.server.counts["IDLE"])
    bend = running.server.bend(r"IDLE-PUSH", lambda lines: [last, Drop()], times=1)  # type: ignore[list-item]
    account.mailboxes["INBOX"].deliver(letter(1))
    await settled(running, account)
    assert bend.used == 1
    await until(lambda: running.runner.watching)
    account.mailboxes["INBOX"].deliver(letter(2))
    await settled(running, account)


@pytest.mark.parametrize("command", ["LIST", "EXAMINE", "UID SEARCH", "UID FETCH"])
async def test_case_80_a_command_without_an_answer_costs_the_connection_only(
    command: str, account: Account, run: Run
) -> None:
    """Deadline, new connection, everything arrives; the same for a connection that is dropped there."""
    fill(account, 5)
    running = await run(CONDSTORE, IMAP_COMMAND_TIMEOUT_S=0.2)
    running.server.bend(rf"^{command}", lambda lines: [Hang()], times=1)
    running.server.bend(rf"^{command}", lambda lines: [Drop()], times=1, skip=1)
    if command == "UID FETCH":
        running.server.bends.pop(0)  # a streamed answer has a longer deadline of its own; see the engine's tests
    await running.start()
    await settled(running, account)


async def test_case_78_a_silent_peer_is_found_by_renewing_idle(account: Account, run: Run) -> None:
    """NAT dropped the flow: DONE is not answered within its deadline, a new connection reads what came meanwhile."""
    running = await run(QRESYNC, POLL_WARM=600.0, POLL_COLD=600.0, IMAP_IDLE_RENEW_S=0.3)
    connector = running.runner._services.connector
    connector._limits = replace(connector._limits, idle_answer_timeout_s=0.3)
    await running.start(hot=True)
    await until(lambda: running.server.counts["IDLE"] >= 2)
    running.server.bend(r"^(DONE|IDLE-PUSH)", lambda lines: [Hang()], times=1)
    account.mailboxes["INBOX"].deliver(letter(1))
    await settled(running, account)


async def test_case_81_a_parser_error_touches_no_credentials(account: Account, run: Run) -> None:
    """Bytes that cannot be framed end the connection; the account stays live."""
    fill(account, 2)
    running = await run(QRESYNC, CREDENTIALS_RETRIES=1)
    running.server.bend(r"^EXAMINE", lambda lines: [b"A999 OK what?\r\n", *lines], times=2)
    await running.start()
    await settled(running, account)
    assert running.directory.reasons == []


async def test_case_82_many_folders_take_one_connection(account: Account, run: Run) -> None:
    """17 folders with history: in turn, over one connection; the watcher has the other."""
    for n in range(17):
        account.create(f"f{n}")
        fill(account, 20, f"f{n}", first=100 * (n + 1))
    running = await run(QRESYNC, FETCH_WINDOW=10, FETCH_CHUNK=5)
    await running.start(hot=True)
    await settled(running, account)
    assert running.server.peak <= 2


@pytest.mark.parametrize("kind", [QRESYNC, CONDSTORE, BASE, BARE], ids=["qresync", "condstore", "idle_only", "bare"])
async def test_case_84_any_untagged_line_wakes_the_watcher(kind: frozenset[str], account: Account, run: Run) -> None:
    """FETCH (FLAGS) without UID, EXPUNGE, EXISTS in IDLE (or by NOOP where there is no IDLE)."""
    fill(account, 10)
    running = await run(kind, POLL_WARM=600.0 if kind is not BARE else 0.2, POLL_COLD=600.0)
    await running.start(hot=True)
    await settled(running, account)
    await until(lambda: running.runner.watching)
    inbox = account.mailboxes["INBOX"]
    inbox.set_flags(3, ["\\Seen"])
    await settled(running, account)
    inbox.expunge(4)
    await settled(running, account)
    inbox.deliver(letter(50))
    inbox.set_flags(5, ["\\Flagged"])
    inbox.expunge(6, 7)
    await settled(running, account)


async def test_a_change_that_comes_late_is_not_played_back(account: Account, run: Run) -> None:
    """What the watcher is told after a pass has seen something newer changes nothing (no flag goes back and forth)."""
    fill(account, 3)
    running = await run(QRESYNC, POLL_WARM=0.2)
    await running.start(hot=True)
    await settled(running, account)
    held: list[bytes] = []

    def hold(lines: list[bytes]) -> list[bytes]:
        held.extend(lines)
        return []

    bend = running.server.bend(r"IDLE-PUSH", hold)  # the watcher's connection lags behind
    inbox = account.mailboxes["INBOX"]
    inbox.set_flags(2, ["\\Seen"])
    await settled(running, account)
    inbox.set_flags(2, ["\\Flagged"])
    await settled(running, account)
    bend.times = 0
    running.server.bend(r"IDLE-PUSH", lambda lines: [*held, *lines], times=1)
    inbox.set_flags(3, ["\\Seen"])
    await settled(running, account)
    changes = [(e["uid"], tuple(e["flags"])) for e in running.events() if e["type"] == "message.flags_changed"]
    assert changes == [(2, ("\\Seen",)), (2, ("\\Flagged",)), (3, ("\\Seen",))]


async def test_what_an_inbox_that_was_replaced_still_tells_is_not_taken_for_the_new_one(
    account: Account, run: Run
) -> None:
    """The watching connection has the old INBOX open and is served yet; the poll has seen the new one. Flags of the old
    one's messages and mail that comes to it are nothing of the new one's.
    """
    fill(account, 3)
    running = await run(QRESYNC, POLL_WARM=0.2)
    await running.start(hot=True)
    await settled(running, account)
    await until(lambda: running.runner.watching)
    old = account.mailboxes.pop("INBOX")
    new = account.create("INBOX")
    for n in range(100, 105):
        new.deliver(letter(n))
    await settled(running, account)
    old.set_flags(2, ["\\Flagged"])
    old.deliver(letter(50), uid=9)
    await asyncio.sleep(0.1)
    new.deliver(letter(105))
    await settled(running, account)
    assert [e for e in running.events() if e["type"] == "message.flags_changed"] == []
    assert "letter 50" not in {e["headers"]["subject"] for e in running.events() if e["type"] == "message.added"}


async def test_case_76_throttled_slows_history_down_and_not_live_mail(account: Account, run: Run) -> None:
    """[THROTTLED] on answers: one window of history per poll, logins to the host wait, no error."""
    fill(account, 60)
    running = await run(CONDSTORE, FETCH_WINDOW=10, FETCH_CHUNK=10, POLL_WARM=0.1)
    running.runner._memory.trouble.window = 10
    running.server.bend(
        r"UID FETCH", lambda lines: [*lines[:-1], lines[-1].split()[0] + b" OK [THROTTLED] Success\r\n"]
    )
    await running.start()
    await settled(running, account)
    assert running.server.logins["user"] >= 5
    assert running.directory.reasons == []


async def test_case_18_an_account_that_kills_its_process_has_to_wait(account: Account, run: Run) -> None:
    """Three processes died while they began to work on it: backed off, visibly, in the mirror; then it is cleared."""
    fill(account, 10)
    running = await run(QRESYNC)
    bend = running.server.bend(r"^UID FETCH", lambda lines: [Hang()])
    for _ in range(3):
        fetches = running.server.counts["UID FETCH"]
        await running.start()
        await until(lambda fetches=fetches: running.server.counts["UID FETCH"] > fetches)
        await running.crash()
    record = mirror.decode_account(running.truth.mirror[mirror.account_key(running.account_id)])
    assert record.unfinished == 3
    logins = running.server.logins["user"]
    # the wait is at most BACKOFF_MAX_S x 1.5 here; made long, so that it can be seen
    running.settings = running.settings.model_copy(update={"BACKOFF_MAX_S": 600.0})
    await running.crash()
    await running.start(hot=True)
    await until(lambda: running.statuses() and (running.statuses()[-1].get("error") or {}).get("code") == "crash_loop")
    assert running.statuses()[-1]["phase"] == "backing_off"
    assert running.server.logins["user"] == logins
    bend.times = 0
    running.runner.poke()
    await settled(running, account)
    await until(
        lambda: mirror.decode_account(running.truth.mirror[mirror.account_key(running.account_id)]).unfinished == 0
    )
    await until(lambda: "error" not in running.statuses()[-1])


async def test_case_18_a_wait_that_was_recorded_by_a_wrong_clock_is_not_longer(account: Account, run: Run) -> None:
    """The clock of the processes that died was days ahead: the account waits as long as it would have, not days."""
    fill(account, 10)
    running = await run(QRESYNC)
    bend = running.server.bend(r"^UID FETCH", lambda lines: [Hang()])
    for _ in range(3):
        running.runner._services.wall = lambda: time.time() + 2 * DAY_S
        fetches = running.server.counts["UID FETCH"]
        await running.start()
        await until(lambda fetches=fetches: running.server.counts["UID FETCH"] > fetches)
        await running.crash()
    bend.times = 0
    await running.start()
    assert running.runner.phase == "backing_off"
    await settled(running, account)


@pytest.mark.parametrize("hot", [False, True])
async def test_s16_polls_go_on_when_the_wall_clock_is_set(hot: bool, account: Account, run: Run) -> None:
    """Two days back, two days on, and right again, while a poll is due and while a failure is waited out."""
    running = await run(QRESYNC)
    ahead_s = 0.0
    running.runner._services.wall = lambda: time.time() + ahead_s
    await running.start(hot=hot)
    await settled(running, account)
    for number, ahead_s in enumerate((-2 * DAY_S, 2 * DAY_S, 0.0)):  # noqa: B007
        account.mailboxes["INBOX"].deliver(letter(100 + number))
        account.create(f"Box {number}")
        await settled(running, account)
    bend = running.server.bend(r"^LIST", lambda lines: [Drop()])
    await until(lambda: running.runner.retry_at is not None)
    ahead_s = -2 * DAY_S
    bend.times = 0
    fill(account, 1, first=200)
    await settled(running, account)
    shown = running.runner.next_poll_at - (time.time() + ahead_s)
    assert shown <= running.settings.POLL_WARM * 1.1


async def test_case_18_failures_that_harm_nobody_do_not_count(account: Account, run: Run) -> None:
    """A refused connection is no crash."""
    running = await run(Profile(QRESYNC))
    running.server.bend(r"^LIST", lambda lines: [Drop()])
    await running.start()
    await until(lambda: running.runner.failure is not None and running.runner.failure.count >= 3)
    record = mirror.decode_account(running.truth.mirror[mirror.account_key(running.account_id)])
    assert record.unfinished <= 1


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("BACKFILL_MESSAGES_PER_S", 40.0),
        ("BACKFILL_BYTES_PER_S", 12_000.0),
        ("HOST_BACKFILL_MESSAGES_PER_S", 40.0),
        ("HOST_BACKFILL_BYTES_PER_S", 12_000.0),
    ],
)
async def test_s17_history_keeps_its_rate_and_live_mail_does_not_wait(
    limit: str, value: float, account: Account, run: Run
) -> None:
    """About two seconds of history at the rate; mail that arrives meanwhile is in the log long before its end."""
    fill(account, 80)
    running = await run(QRESYNC, FETCH_WINDOW=10, FETCH_CHUNK=10, POLL_WARM=0.2, **{limit: value})
    running.runner._memory.trouble.window = 10
    loop = asyncio.get_running_loop()
    await running.start(hot=True)
    await until(lambda: any(e["type"] == "message.added" for e in running.events()))
    began = loop.time()
    account.mailboxes["INBOX"].deliver(letter(500))
    await until(lambda: any(e["type"] == "message.added" and e["uid"] == 81 for e in running.events()))
    live = loop.time() - began
    await settled(running, account)
    assert loop.time() - began > 1.2
    assert live < 1.2


async def test_s17_history_that_waits_keeps_no_poll_waiting(account: Account, run: Run) -> None:
    """Every place to read history is taken by others: a warm account is polled on its schedule all the same."""
    fill(account, 20)
    running = await run(QRESYNC, POLL_WARM=0.2)
    slots = running.runner._services.backfills
    for _ in range(4):
        await slots.acquire()
    await running.start()
    await until(lambda: running.runner.last_sync_at is not None)
    account.mailboxes["INBOX"].deliver(letter(500))
    await until(lambda: any(e["type"] == "message.added" and e["uid"] == 21 for e in running.events()))
    assert not any(e["type"] == "message.added" and e["uid"] < 21 for e in running.events())
    for _ in range(4):
        slots.release()
    await settled(running, account)
    await running.runner.stop(2.0)
    assert slots._value == 4


async def test_s17_an_account_that_waits_for_its_rate_leaves_its_place_to_others(account: Account, run: Run) -> None:
    """The rate of one account or host holds up nobody else's history."""
    fill(account, 60)
    running = await run(QRESYNC, FETCH_WINDOW=10, FETCH_CHUNK=10, POLL_WARM=30.0, HOST_BACKFILL_MESSAGES_PER_S=20.0)
    running.runner._memory.trouble.window = 10
    slots = running.runner._services.backfills
    await running.start()
    await until(lambda: any(e["type"] == "message.added" for e in running.events()))
    await until(lambda: slots._value == 4, what="no place is held while waiting")
    assert running.gate.states()[0].history_waiting == 1
    await settled(running, account)


async def test_s11_s16_last_poll_is_recorded_and_inherited(account: Account, run: Run) -> None:
    """Each complete look leaves its time in the mirror, so that a new owner polls one interval later, not at once."""
    running = await run(QRESYNC, POLL_WARM=0.3)
    await running.start()
    await settled(running, account)

    def last() -> float:
        return mirror.decode_account(running.truth.mirror[mirror.account_key(running.account_id)]).last_poll_at or 0.0

    first = await until(last)
    await until(lambda: last() > first)
    await running.stop()
    running.settings = running.settings.model_copy(update={"POLL_WARM": 600.0})
    await running.crash()
    await running.start()
    assert running.runner.next_poll_at > last() + 1


async def test_s15_tiers_change_shape_and_lose_nothing(account: Account, run: Run) -> None:
    """warm, hot, cold, hot: connections come and go, the log adds up, each change is an event."""
    running = await run(QRESYNC, POLL_WARM=0.2, POLL_COLD=0.4)
    runner = await running.start()
    await settled(running, account)
    await until(lambda: running.server.open == 0)
    for tier in ("hot", "cold", "hot", "warm"):
        runner.set_tier(tier, "session" if tier == "hot" else "idle_mail")  # type: ignore[arg-type]
        if tier == "hot":
            await until(lambda: runner.watching)
        fill(account, 1, first=len(running.events()) + 1000)
        await settled(running, account)
        if tier != "hot":
            await until(lambda: running.server.open == 0)
    changed = running.truth.events(running.settings.topic("account.tier_changed"), running.account_id)
    assert [e["tier"] for e in changed] == ["warm", "hot", "cold", "hot", "warm"]


async def test_s3_a_lost_log_is_read_again(account: Account, run: Run) -> None:
    """The producer is lost again and again, before and after commits: the log stays gapless and complete."""
    fill(account, 30)
    running = await run(QRESYNC, FETCH_WINDOW=10, FETCH_CHUNK=5)
    verdicts = {3: "lose_before", 6: "lose_after", 8: "lose_before", 9: "lose_after", 12: "lose_before"}
    running.truth.judge = lambda n: verdicts.pop(n, "commit")  # type: ignore[assignment,arg-type,return-value]
    await running.start(hot=True)
    await settled(running, account)
    fill(account, 3, first=100)
    await settled(running, account)


async def test_s3_a_command_that_outlives_its_runner_writes_nothing_more(account: Account, run: Run) -> None:
    """Disabled and live again while a look for a command is under way: two numberings of one account's events."""
    running = await run(QRESYNC)
    account.mailboxes["INBOX"].deliver(letter(1))
    first = await running.start()
    await settled(running, account)
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def look(session: ImapSession, state: AccountState, account_pass: AccountPass) -> None:
        account.mailboxes["INBOX"].deliver(letter(2))
        await account_pass.run(session)
        looked.set()
        await go_on.wait()

    command = asyncio.create_task(first.perform("command", look))
    await asyncio.wait_for(looked.wait(), 10)
    await first.stop(0.1)
    running.runner = running._new_runner()
    await running.start()
    await until(lambda: running.agrees(account), what="the next runner tells what the command found")
    go_on.set()
    with pytest.raises(ProducerLost):
        await command
    account.mailboxes["INBOX"].deliver(letter(3))
    await until(lambda: running.agrees(account), what="and goes on")
    numbers = [event["sequence"] for event in running.events()]
    assert numbers == sorted(set(numbers))


async def test_s3_a_command_that_waits_for_its_turn_reads_no_history_after_its_runner(
    account: Account, run: Run
) -> None:
    """The runner is stopped while a `backfill` waits for the host's rates: the account's next runner numbers alone."""
    running = await run(QRESYNC, POLL_WARM=600.0, POLL_COLD=600.0)
    fill(account, 20)
    first = await running.start(hot=True)
    turns = hold_history(first)
    await until(lambda: first.watching, what="INBOX is watched")
    boxes = frozenset({event["mailbox_id"] for event in running.events() if event["type"] == "mailbox.discovered"})
    command = asyncio.create_task(first.read_history(boxes, lambda *_: None))
    await until(lambda: turns.waiting >= 2, what="the poller and the command wait")
    await first.stop(0.1)
    running.runner = running._new_runner()
    second = await running.start(hot=True)
    hold_history(second)
    await until(lambda: second.watching, what="INBOX is watched again")
    turns.free.set()
    with pytest.raises(RetryLater):
        await command
    told = len(running.events())
    account.mailboxes["INBOX"].deliver(letter(50))
    await until(lambda: len(running.events()) > told, what="the next runner goes on")
    numbers = [event["sequence"] for event in running.events()]
    assert numbers == sorted(set(numbers))


async def test_s9_a_command_that_outlives_a_runner_that_died_writes_nothing_more(account: Account, run: Run) -> None:
    """Nobody stops a runner that ends by itself; the account may be live again while a command of it goes on."""
    running = await run(QRESYNC)
    account.mailboxes["INBOX"].deliver(letter(1))
    first = await running.start()
    await settled(running, account)
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def look(session: ImapSession, state: AccountState, account_pass: AccountPass) -> None:
        account.mailboxes["INBOX"].deliver(letter(2))
        await account_pass.run(session)
        looked.set()
        await go_on.wait()

    command = asyncio.create_task(first.perform("command", look))
    await asyncio.wait_for(looked.wait(), 10)
    row, running.directory.row = running.directory.row, None
    first.account_changed()
    await until(lambda: running.deaths, what="the runner finds that its account is gone")
    running.directory.row = row
    running.runner = running._new_runner()
    await running.start()
    await until(lambda: running.agrees(account), what="the next runner tells what the command found")
    go_on.set()
    with pytest.raises(ProducerLost):
        await command
    account.mailboxes["INBOX"].deliver(letter(3))
    await until(lambda: running.agrees(account), what="and goes on")
    numbers = [event["sequence"] for event in running.events()]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("hot", [False, True])
async def test_s3_half_a_change_is_never_written(
    hot: bool, account: Account, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local store fails (its disk is full) between a message's flags and its identity: neither reaches the log."""
    fill(account, 5)
    running = await run(QRESYNC, POLL_COLD=0.2, POLL_WARM=0.2)
    await running.start(hot=hot)
    await settled(running, account)
    put, id_segment = MailboxState.put, MailboxState._id_segment
    within: list[int] = []
    failed: list[int] = []

    def putting(box: MailboxState, uid: int, *rest: Any) -> Any:
        within.append(uid)
        try:
            return put(box, uid, *rest)
        finally:
            within.clear()

    def fails_once(box: MailboxState, epoch: int, base: int) -> Any:
        if within and not failed:
            failed.extend(within)
            raise OSError("IO error: While appending to file: File too large")
        return id_segment(box, epoch, base)

    monkeypatch.setattr(MailboxState, "put", putting)
    monkeypatch.setattr(MailboxState, "_id_segment", fails_once)
    fill(account, 2, first=100)
    await until(lambda: failed)
    await settled(running, account)
    await running.crash()
    await running.start()
    account.mailboxes["INBOX"].expunge(account.mailboxes["INBOX"].uids[-1])
    await settled(running, account)
    assert not running.shard.unreadable


async def test_a_damaged_mirror_stops_the_shard_and_concludes_nothing(account: Account, run: Run) -> None:
    """A record that cannot be read is never "nothing known"."""
    fill(account, 5)
    running = await run(QRESYNC)
    await running.start()
    await settled(running, account)
    await running.crash()
    key = next(k for k in running.truth.mirror if "/flags/" in k)
    running.truth.mirror[key] = running.truth.mirror[key][:-1] + b"?"
    events = len(running.events())
    account.mailboxes["INBOX"].set_flags(1, ["\\Seen"])
    await running.start()
    await until(lambda: running.shard.unreadable)
    assert isinstance(running.shard.unreadable[0], MirrorDamaged)
    assert len(running.events()) == events


async def test_case_97_gmail_is_watched_at_all_mail(account: Account, run: Run) -> None:
    """INBOX is a view there: IDLE stands on All Mail."""
    account.create("[Gmail]/All Mail", attributes=("\\All",))
    account.create("[Gmail]/Trash", attributes=("\\Trash",))
    running = await run(GMAIL, POLL_WARM=600.0, POLL_COLD=600.0)
    await running.start(hot=True)
    await until(lambda: running.runner.watching and running.server.counts["IDLE"])
    account.mailboxes["[Gmail]/All Mail"].deliver(letter(1), labels=("\\Inbox",))
    await until(lambda: any(e["type"] == "message.added" for e in running.events()))
    assert running.events()[-1]["labels"] == ["\\Inbox"]


async def test_s15_the_status_tells_tier_reason_and_heat_when_they_change(account: Account, run: Run) -> None:
    """Between polls too: the next one is far away."""
    fill(account, 2)
    running = await run(QRESYNC, POLL_WARM=600.0, POLL_COLD=600.0)
    runner = await running.start()
    await settled(running, account)
    until_then = datetime(2026, 11, 30, 12, tzinfo=UTC)
    runner.set_heat(until_then)
    runner.set_tier("hot", "session")
    await until(lambda: running.statuses()[-1].get("heat_until"))
    status = running.statuses()[-1]
    assert (status["tier"], status["tier_reason"], status["heat_until"]) == ("hot", "session", "2026-11-30T12:00:00Z")
    runner.set_tier("hot", "recent_mail")  # the tier stays, why it has it does not
    await until(lambda: running.statuses()[-1]["tier_reason"] == "recent_mail")
    runner.set_heat(None)
    await until(lambda: "heat_until" not in running.statuses()[-1])


async def test_case_67_the_status_names_folders_that_are_set_aside(account: Account, run: Run) -> None:
    account.create("Broken")
    fill(account, 2, "Broken")
    running = await run(Profile(QRESYNC, refused={"Broken": "[NOPERM] not for you"}))
    await running.start()
    await until(lambda: running.statuses() and running.statuses()[-1].get("set_aside"))
    status = running.statuses()[-1]
    assert list(status["set_aside"]) == ["Broken"]
    code, _, reason = status["set_aside"]["Broken"].partition(": ")
    assert (status["error"]["mailbox"], status["error"]["code"], status["error"]["message"]) == ("Broken", code, reason)
    assert "not for you" in reason
    assert "T" in status["last_sync_at"]


async def test_s13_an_account_whose_history_was_not_read_yet_is_not_taken_for_one_without_mail(
    account: Account, run: Run
) -> None:
    """The first pass tells how many messages there are, not how old: until then the tier stays, and so for the next
    owner.
    """
    fill(account, 3)
    running = await run(QRESYNC, POLL_WARM=600.0, POLL_COLD=600.0)
    running.server.bend(r"UID FETCH", lambda lines: [Hang()])
    await running.start()
    await until(lambda: running.runner.last_sync_at is not None, what="the first pass is over")
    assert not running.runner.mail_known
    await running.crash()
    runner = await running.start()
    assert not runner.mail_known
    running.server.bends.clear()
    await until(lambda: running.runner.mail_known, what="history was read")
    assert running.runner.newest_mail_at is not None
    await settled(running, account)


async def test_s11_a_new_owner_tells_the_last_sync_of_the_former(account: Account, run: Run) -> None:
    running = await run(QRESYNC, POLL_WARM=600.0, POLL_COLD=600.0)
    await running.start()
    await settled(running, account)
    await until(lambda: running.runner.mail_known and running.statuses()[-1].get("last_sync_at"))
    before = running.statuses()[-1]["last_sync_at"]
    await running.crash()
    runner = await running.start()
    runner.set_heat(datetime(2026, 11, 30, 12, tzinfo=UTC))
    await until(lambda: running.statuses()[-1].get("heat_until"))
    assert running.statuses()[-1]["last_sync_at"][:10] == before[:10]
