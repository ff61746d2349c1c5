"""A sabotage counts as caught for the right reason only; each can be applied to the product as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.storm.checker.findings import Finding, Report
from tests.storm.sabotage.ways import WAYS
from tests.storm.selftest import is_caught

APPLY = "import sys; from tests.storm.sabotage.ways import WAYS; WAYS[sys.argv[1]].apply()"


def report(*rules: str) -> Report:
    return Report([Finding(rule) for rule in rules])


def test_what_a_dead_worker_explains_is_not_caught() -> None:
    lost = WAYS["cursor-early"]
    assert is_caught(lost, report("message_missing_in_log"), ended=False)
    assert not is_caught(lost, report("message_missing_in_log"), ended=True)
    assert not is_caught(lost, report("sequence_gap"), ended=False)
    assert is_caught(WAYS["double-event"], report("place_twice", "message_missing_in_log"), ended=True)
    assert is_caught(WAYS["nothing"], report(), ended=False) and not is_caught(WAYS["nothing"], report(), ended=True)


@pytest.mark.parametrize(
    "name", ["begin-again", "lose-references", "flicker-flags", "lose-ids-in-rows", "leak-to-disk"]
)
def test_sabotages_find_what_they_patch(name: str) -> None:
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", APPLY, name], cwd=root, check=True, timeout=60)
