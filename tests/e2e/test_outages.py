"""Services that stop, die, pause or refuse: the log stays true, and work goes on when they are back."""

from __future__ import annotations

import asyncio

import pytest

from streams.local.dovecot import Dovecot, DovecotOptions
from streams.local.kafka import Kafka
from streams.local.postgres import Postgres
from tests.e2e.conftest import AddAccount, NewFleet, PrivateDovecot
from tests.e2e.test_ownership import a_backfill, in_the_middle
from tests.rig.fleet import Fleet
from tests.rig.letters import ordinary
from tests.rig.mailer import Mailer
from tests.rig.outages import largest_batch

OUTAGE_S = 12.0

# Backstop only, as everywhere; these take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)


async def test_broker_restart_and_kill_9(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot, private_kafka: Kafka
) -> None:
    """The broker goes in the middle of a backfill, once in order and once by kill -9, while mail arrives."""
    fleet = await new_fleet(
        {"FETCH_CHUNK": "50", "FETCH_WINDOW": "100", "BACKFILL_MESSAGES_PER_S": "200"},
        bootstrap=private_kafka.bootstrap,
    )
    mailer = await a_backfill(fleet, add_account, dovecot, 3000)
    await fleet.ready_worker("one")
    await in_the_middle(fleet, mailer, least=200)
    await private_kafka.kill()
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(9000))
    await private_kafka.start()
    had = len(fleet.watch.of(mailer.login.account))
    await fleet.watch.until(
        lambda: len(fleet.watch.of(mailer.login.account)) > had + 100, within_s=90, what="it goes on"
    )
    await private_kafka.stop()
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(9001))
    await private_kafka.start()
    seen = await fleet.at_rest(within_s=150)
    assert len([e for e in seen.events if e.kind == "message.added"]) == 3000 + 2 + 1
    assert fleet.workers["one"].running


async def test_producer_errors_in_a_backfill_time_out_and_record_too_large(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot, private_kafka: Kafka
) -> None:
    """A broker silent for longer than a transaction may last, then one that refuses every batch as too large."""
    fleet = await new_fleet(
        {
            "FETCH_CHUNK": "50",
            "FETCH_WINDOW": "100",
            "BACKFILL_MESSAGES_PER_S": "200",
            "KAFKA_TRANSACTION_TIMEOUT_S": "5",
        },
        bootstrap=private_kafka.bootstrap,
    )
    mailer = await a_backfill(fleet, add_account, dovecot, 3000)
    account = mailer.login.account
    await fleet.ready_worker("one")
    await in_the_middle(fleet, mailer, least=200)
    private_kafka.pause()
    await asyncio.sleep(8)  # longer than the transaction timeout: the time is the fault itself
    private_kafka.resume()
    had = len(fleet.watch.of(account))
    await fleet.watch.until(lambda: len(fleet.watch.of(account)) > had + 100, within_s=90, what="it goes on")

    await largest_batch(fleet, 1000)
    fences = {event.writer for event in fleet.watch.of(account)}
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(9000))
    await asyncio.sleep(5)  # the broker refuses for as long as this
    await largest_batch(fleet, 1_114_112)
    seen = await fleet.at_rest(within_s=150)
    assert len([e for e in seen.events if e.kind == "message.added"]) == 3000 + 1 + 1
    assert len({e.writer for e in seen.events if e.account == account} - fences) >= 1, "a new fence after the refusal"


async def test_postgres_down_stops_no_running_account(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot, private_postgres: Postgres
) -> None:
    """Mail goes on into the log; the projection holds its position and catches up. Stopped once, killed once."""
    fleet = await new_fleet(dsn=private_postgres.dsn())
    mailer = await add_account(fleet, dovecot)
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    worker = await fleet.ready_worker("one")
    await fleet.at_rest()
    for number, end in enumerate((private_postgres.stop, private_postgres.kill)):
        await end()
        down_until = asyncio.get_running_loop().time() + OUTAGE_S
        while asyncio.get_running_loop().time() < down_until:
            await one_more(fleet, mailer, 1000 * number)
            await asyncio.sleep(1)
        await private_postgres.start()
        await fleet.at_rest()
    assert worker.running


async def one_more(fleet: Fleet, mailer: Mailer, number: int) -> None:
    """A message, and wait until it is in the log."""
    account = mailer.login.account
    had = len(fleet.watch.of(account, "message.added"))
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(number + had))
    await fleet.watch.until(
        lambda: len(fleet.watch.of(account, "message.added")) > had, within_s=20, what="mail goes on into the log"
    )


async def test_mail_server_gone_and_back(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot, private_dovecot: PrivateDovecot
) -> None:
    """An unreachable host backs off, visibly; other hosts go on; it is served again when it is back. S16."""
    fleet = await new_fleet()
    server = await private_dovecot(DovecotOptions())
    there = await add_account(fleet, dovecot)
    gone = await add_account(fleet, server)
    for mailer in (there, gone):
        await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    await fleet.ready_worker("one")
    await fleet.at_rest()
    await server.kill()
    gone.drop()
    account = gone.login.account

    def backing_off(found: dict[str, dict[str, object]]) -> bool:
        status = found.get(account, {})
        return status.get("phase") == "backing_off" and bool(status.get("retry_at")) and bool(status.get("error"))

    await fleet.eventually(fleet.statuses, backing_off, within_s=60, what="backing off, with the time of the next try")
    await asyncio.to_thread(there.append, "INBOX", ordinary(2))
    del fleet.mailers[account]
    await fleet.caught_up()
    fleet.mailers[account] = gone
    await server.start()
    await fleet.at_rest()
