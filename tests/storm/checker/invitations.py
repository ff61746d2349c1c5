"""Who was given a partition, from what the workers say in their logs; and who wrote without having been given it.

A fence alone does not show a worker that slept through a rebalance, woke, and fenced the rightful owner by coming last:
its epoch is the highest. What shows it is that it writes in an older generation of the group than another worker was
given the same partition in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.storm.checker.clocks import Jump, right_ms
from tests.storm.checker.findings import Finding
from tests.storm.checker.fold import by_partition
from tests.storm.checker.log import Event

_LINE: Final = re.compile(r"^assignment of generation (?P<generation>\d+): partitions \[(?P<partitions>[\d, ]*)\]$")
_ON_THE_WAY_MS: Final = 5000
"""A fence that was opened and proved just before the next generation may write for the first time a little after it."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker was told which partitions are its own, in a generation of the group."""

    at_ms: int
    worker: str
    generation: int
    partitions: frozenset[int]


def log_records(logs: Sequence[Path]) -> list[dict[str, Any]]:
    """Every JSON record in these files."""
    found: list[dict[str, Any]] = []
    for path in logs:
        if path.exists():
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith("{") and line.endswith("}"):
                    try:
                        record = json.loads(line)
                    except ValueError:
                        continue  # two writers met in one line when a worker was killed
                    if isinstance(record, dict):
                        found.append(record)
    return found


def assignments(records: Iterable[dict[str, Any]], jumps: Sequence[Jump] = ()) -> list[Assignment]:
    """Every assignment that the records tell of, oldest first."""
    found = []
    for record in records:
        if match := _LINE.match(str(record.get("event", ""))):
            at = datetime.fromisoformat(record["timestamp"])
            numbers = frozenset(int(number) for number in match["partitions"].split(",") if number.strip())
            at_ms = right_ms(record["worker"], int(at.timestamp() * 1000), jumps)
            found.append(Assignment(at_ms, record["worker"], int(match["generation"]), numbers))
    return sorted(found, key=lambda each: each.at_ms)


def uninvited(events: Iterable[Event], given: Sequence[Assignment], jumps: Sequence[Jump] = ()) -> Iterator[Finding]:
    """Writers that began in an older generation than another worker had been given the partition in, or in the same one
    without having been given it.
    """
    for partition, ordered in by_partition(events):
        begun: set[str | None] = set()
        for event in ordered:
            if event.writer in begun:
                continue
            begun.add(event.writer)
            worker = (event.writer or "").rpartition("/")[0]
            at_ms = right_ms(worker, event.timestamp_ms, jumps)
            mine = [a for a in given if a.worker == worker and a.at_ms <= at_ms]
            others = [
                a
                for a in given
                if a.worker != worker and partition in a.partitions and a.at_ms + _ON_THE_WAY_MS < at_ms
            ]
            newest = max(others, key=lambda a: a.generation, default=None)
            if not mine or newest is None:
                continue
            known = max(mine, key=lambda a: a.generation)
            # Of one generation it knows that the partition is another's; but a later one, of which its own line was
            # lost on a full disk, may have given it the partition.
            refused = known.generation == newest.generation and partition not in known.partitions
            later = any(a.generation > newest.generation and a.at_ms <= at_ms for a in given)
            if known.generation < newest.generation or (refused and not later):
                yield Finding(
                    "uninvited_writer",
                    event.account,
                    expected=f"partition {partition} is {newest.worker}'s since generation {newest.generation}",
                    got=str(event),
                )


def nobody_invited(events: Iterable[Event], given: Sequence[Assignment], logs: Sequence[Path]) -> Iterator[Finding]:
    """Where workers have logs and something was written, somebody was given a partition: else their lines read
    otherwise than this module expects, and `uninvited` could find nothing.
    """
    first = next(iter(events), None)
    if first is not None and any(path.exists() for path in logs) and not given:
        yield Finding("no_assignments", expected="assignments in the workers' logs", got=f"none, and {first}")
