"""A short storm with a fixed seed, and a small flood of bad input: `make storm` and its options are the long forms."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.local.dovecot import Dovecot
from tests.e2e.conftest import AddAccount, NewFleet
from tests.rig.letters import ordinary
from tests.storm.flood import REASONS, flood
from tests.storm.storm import Options, storm


@pytest.mark.timeout(600)
async def test_s1_s3_s5_s16_a_short_storm_is_true(private_directory: Path) -> None:
    """Scripts, chatter and faults for half a minute; then mail server, log and database agree."""
    outcome = await storm(Options(seed=7, minutes=0.5, workers=2, accounts=6, fault_pause_s=2.0), private_directory)
    outcome.report.require_true("\n".join([f"seed {outcome.options.seed}", *outcome.faults]))
    assert outcome.figures["actions"] > 20
    assert outcome.figures["faults"] > 0


async def test_w13_a_flood_of_bad_input(new_fleet: NewFleet, add_account: AddAccount, dovecot: Dovecot) -> None:
    """Every bad record in the dead letters with its reason, every valid one handled, memory flat."""
    fleet = await new_fleet()
    mailer = await add_account(fleet, dovecot)
    await asyncio.to_thread(mailer.append, "INBOX", ordinary(1))
    await fleet.ready_worker("one")
    figures = await flood(fleet, 4000, within_s=120)
    assert sum(figures.letters.values()) >= 4000
    assert figures.reasons.keys() == REASONS
