"""Whatever another client does to mail is in log and database, in each tier, on capable and simple servers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from streams.local.dovecot import Dovecot, DovecotOptions
from tests.e2e.conftest import AddAccount, NewFleet, PrivateDovecot
from tests.e2e.sessions import sessions
from tests.rig.letters import ordinary
from tests.rig.routine import before, everywhere, later, while_running

AGES: Final = {"hot": timedelta(0), "warm": timedelta(days=3), "cold": timedelta(days=30)}
"""With TIER_HOT_ACTIVITY_H 24 and TIER_COLD_AFTER_D 14 the age of the newest mail decides the tier (S13)."""


async def test_s10_s17_every_change_in_every_tier_on_every_server(
    new_fleet: NewFleet,
    add_account: AddAccount,
    dovecot: Dovecot,
    dovecot_plain: Dovecot,
    private_dovecot: PrivateDovecot,
) -> None:
    """Arrivals, flags, expunges, moves, copies, folders made, renamed, deleted; history before. S10, S13, S15, S17."""
    between = await private_dovecot(DovecotOptions(hidden=frozenset({"QRESYNC"})))
    fleet = await new_fleet()
    tiers: dict[str, str] = {}
    for server in (dovecot, between, dovecot_plain):
        for tier, age in AGES.items():
            mailer = await add_account(fleet, server, age=age)
            tiers[mailer.login.account] = tier
    mailers = list(fleet.mailers.values())
    await everywhere(before, mailers)
    await fleet.ready_worker("one")
    await fleet.caught_up()

    def as_planned(found: dict[str, str]) -> bool:
        # Warm is where every account begins; nothing is published for what did not change.
        return all(found.get(account, "warm") == tier for account, tier in tiers.items())

    await fleet.eventually(fleet.tiers, as_planned, what=f"the tiers are {tiers}")
    await everywhere(while_running, mailers)
    await fleet.caught_up()
    await everywhere(later, mailers)
    seen = await fleet.at_rest()
    everything: set[str] = set()
    for account, folded in seen.accounts.items():
        kinds = {event.kind for event in folded.events}
        everything |= kinds
        assert kinds >= {
            "mailbox.discovered",
            "mailbox.deleted",
            "message.added",
            "message.flags_changed",
            "message.removed",
            "account.caught_up",
            "backfill.completed",
        }, f"{tiers[account]}: {sorted(kinds)}"
        twins = [place.message for key, place in folded.places.items() if place.message]
        assert len(twins) > len(set(twins)), "copies and twins share their message id"
    # A look that falls between the two halves of a move sees an addition, the next one a removal: both are true.
    assert "message.moved" in everything
    assert await fleet.tiers() == {a: t for a, t in tiers.items() if t != "warm"} | {
        a: t for a, t in (await fleet.tiers()).items() if t == "warm"
    }


async def test_cases_14_18_uidvalidity_reset_moves_what_is_known(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot, dovecot_plain: Dovecot
) -> None:
    """A new epoch: `mailbox.reset`, then moves; the messages keep their ids and are not added again."""
    fleet = await new_fleet({"FETCH_CHUNK": "50", "FETCH_WINDOW": "50"})
    mailers = [await add_account(fleet, dovecot), await add_account(fleet, dovecot_plain)]
    for mailer in mailers:
        await asyncio.to_thread(mailer.append_many, "INBOX", [ordinary(number) for number in range(120)])
    await fleet.ready_worker("one")
    await fleet.caught_up()
    ids = {a: {place.message for place in fleet.watch.account(a).places.values()} for a in fleet.mailers}
    for mailer, server in zip(mailers, (dovecot, dovecot_plain), strict=True):
        await server.reset_uidvalidity(mailer.login.username, "INBOX")
        await asyncio.to_thread(mailer.observe, "INBOX")
    seen = await fleet.at_rest()
    for account in fleet.mailers:
        folded = seen.accounts[account]
        kinds = [event.kind for event in folded.events]
        assert kinds.count("mailbox.reset") == 1
        assert kinds.count("message.moved") == 120
        assert kinds.count("message.added") == 120 + 1, "all once, and the marker"
        assert ids[account] <= {place.message for place in folded.places.values()}


async def test_s16_one_refused_account_disturbs_no_other(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    """A wrong password ends in state `error`, code `credentials_refused`, without a storm of logins. S9, S16."""
    fleet = await new_fleet({"CREDENTIALS_RETRIES": "3"})
    good = await add_account(fleet, dovecot)
    bad = await add_account(fleet, dovecot, stored_password="not-the-right-one")
    await asyncio.to_thread(good.append, "INBOX", ordinary(1))
    await fleet.ready_worker("one")
    account, user = bad.login.account, bad.login.username

    def refused(found: dict[str, dict[str, object]]) -> bool:
        error = found.get(account, {}).get("error")
        return isinstance(error, dict) and error.get("code") == "credentials_refused"

    await fleet.eventually(fleet.statuses, refused, what="the refusal is told")
    await fleet.eventually(lambda: account_state(fleet.dsn, account), lambda s: s == "error", what="the state is error")
    attempts = dovecot.failed_logins(user)
    assert 1 <= attempts <= 3
    await fleet.at_rest(stopped={account})
    assert dovecot.failed_logins(user) == attempts, "nothing is tried any more"


async def account_state(dsn: str, account: str) -> str:
    from tests.storm.checker.database import account_states

    return str((await account_states(dsn))[account]["state"])


async def test_s8_disabled_stops_and_live_starts(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    """`disabled` closes the sockets, `live` starts at once; what happened between is caught up."""
    fleet = await new_fleet({"RECONCILE_S": "600"})
    mailer = await add_account(fleet, dovecot)
    account = mailer.login.account
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    await fleet.ready_worker("one")
    await fleet.caught_up()
    await fleet.change_state(account, "disabled")

    def phase(wanted: str) -> object:
        return lambda found: found.get(account, {}).get("phase") == wanted

    await fleet.eventually(fleet.statuses, phase("stopped"), within_s=30, what="stopped")  # type: ignore[arg-type]
    await fleet.eventually(
        lambda: sessions(dovecot, mailer.login.username), lambda found: found == 1, what="only our own session is left"
    )
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(2))
    before = len(fleet.watch.of(account))
    await fleet.change_state(account, "live")
    await fleet.at_rest()
    assert len(fleet.watch.of(account)) > before


async def test_w13_bad_records_are_dead_letters_and_the_stream_goes_on(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot
) -> None:
    """Unknown and malformed events: dead letter with its reason and origin; the next good one is handled. W13."""
    from tests.storm.checker.log import read_raw

    fleet = await new_fleet({"RECONCILE_S": "600"})
    mailer = await add_account(fleet, dovecot, announce=False)
    await fleet.ready_worker("one")
    account = mailer.login.account
    bad = [b"no json", b'{"account_id": "17"}', b"[]", b"\xff\xfe", b'{"account_id": "%s"}' % account.encode()]
    for topic in ("account.state_changed", "user.active", "sync.commands"):
        for value in bad:
            await fleet.produce(topic, account, value)
    await fleet.announce(account, "live")
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    await fleet.at_rest()

    async def letters() -> dict[str, list[str | None]]:
        return {
            topic: [raw.header("dlq_reason") async for raw in read_raw(fleet.kafka, f"{topic}.dlq")]
            for topic in ("account.state_changed", "user.active", "sync.commands")
        }

    found = await fleet.eventually(letters, lambda f: all(len(v) >= len(bad) for v in f.values()), what="dead letters")
    assert all(set(reasons) <= {"not_json", "schema"} for reasons in found.values()), found


async def test_w15_commands_are_concluded_once(new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot) -> None:
    """`sync_now`, `resync` and `verify` succeed, each told once, also when sent again. W14, W15."""
    fleet = await new_fleet()
    mailer = await add_account(fleet, dovecot)
    account = mailer.login.account
    await asyncio.to_thread(mailer.append_many, "INBOX", [ordinary(number) for number in range(30)])
    await fleet.ready_worker("one")
    await fleet.caught_up()
    for kind in ("sync_now", "resync", "verify"):
        command = await fleet.command(account, kind)
        told = await fleet.concluded(command)
        assert told["type"] == "success", told
        again = {"command_id": command, "account_id": account, "kind": kind, "args": {}, "at": told["at"]}
        await fleet.produce("sync.commands", account, again)
    unknown = await fleet.command(account, "paint")
    assert (await fleet.concluded(unknown))["type"] == "failure"
    await fleet.at_rest()
