"""A worker whose wall clock is set while it runs: mail flows on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from streams.local.dovecot import Dovecot
from tests.e2e.conftest import AddAccount, NewFleet
from tests.rig.clock import Clock, library, sweep
from tests.rig.letters import ordinary

MINUTE_S, DAY_S = 60, 86_400
FLOWING_S = (0, 50 * MINUTE_S, 0, -2 * DAY_S, 2 * DAY_S, 0)


@pytest.mark.skipif(library() is None and "CI" not in os.environ, reason="libfaketime is not installed")
async def test_mail_flows_when_the_clock_is_wrong_and_right_again(
    new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot, dovecot_plain: Dovecot, tmp_path: Path
) -> None:
    """Ahead, right again, days behind, days ahead (where Kafka 4 would refuse records with times of their own), right
    again: each change is told at once.
    """
    preloaded = library()
    assert preloaded is not None
    clock = Clock(tmp_path / "clock", preloaded)
    fleet = await new_fleet(worker_settings={"one": clock.environment})
    mailers = [await add_account(fleet, server) for server in (dovecot, dovecot_plain)]
    await fleet.ready_worker("one")
    for number, ahead_s in enumerate(FLOWING_S):
        clock.set(ahead_s)
        for mailer in mailers:
            await asyncio.to_thread(mailer.append, "INBOX", ordinary(number))
        await fleet.caught_up(within_s=45)
    await fleet.at_rest()
    sweep()
