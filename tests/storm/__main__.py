"""`make storm`, `make storm-selftest`, `make soak`: see docs/reliability.md.

SEED=7 MINUTES=3 WORKERS=3 make storm      one storm, or SEEDS=20 of them, from SEED on (AT_ONCE=2: two at a time)
make storm-selftest                        proof that the checker sees what is broken on purpose (ONLY=name)
HOURS=8 make soak                          a light storm for long, with memory and descriptors watched
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.storm.storm import Options, Outcome, storm

STREAMS: Final = Path(__file__).parents[2] / "streams"


def main() -> int:
    """Command line; the environment gives the defaults, as make passes them on."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "1")))
    parser.add_argument("--seeds", type=int, default=int(os.environ.get("SEEDS", "1")))
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES", "3")))
    parser.add_argument("--workers", type=int, default=int(os.environ.get("WORKERS", "3")))
    parser.add_argument("--accounts", type=int, default=int(os.environ.get("ACCOUNTS", "9")))
    parser.add_argument("--at-once", type=int, default=int(os.environ.get("AT_ONCE", "1")), help="storms at a time")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the logs of storms that were true, too")
    parser.add_argument("--selftest", action="store_true")
    parser.add_argument("--only", default=os.environ.get("ONLY"), help="one sabotage of the self-test")
    parser.add_argument("--flood", type=int, metavar="RECORDS", help="bad input instead of a storm")
    options = parser.parse_args()
    if options.selftest:
        from tests.storm.selftest import selftest

        return asyncio.run(selftest(only=options.only, seed=options.seed))
    if options.flood:
        return asyncio.run(_flood(options.flood, options.seed))
    # Brokers that come and go are what this is about; clients that say so would hide the report.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    failed: list[int] = []
    seeds = range(options.seed, options.seed + options.seeds)
    if options.at_once > 1 and options.seeds > 1:
        failed = at_once(seeds, options.at_once)
        seeds = range(0)
    for seed in seeds:
        wanted = Options(
            seed=seed,
            minutes=options.minutes,
            workers=options.workers,
            accounts=options.accounts,
            faults=not options.no_faults,
        )
        if not run(wanted, keep=options.keep):
            failed.append(seed)
    if options.seeds > 1:
        print(f"{options.seeds - len(failed)} of {options.seeds} storms were true; failed seeds: {failed or 'none'}")
    return 1 if failed else 0


def at_once(seeds: Iterable[int], number: int) -> list[int]:
    """Several storms at a time, each in a process of its own, with the settings of this one. Returns what failed."""

    def one(seed: int) -> int:
        command = [sys.executable, "-m", "tests.storm", *sys.argv[1:], "--seed", str(seed), "--seeds", "1"]
        return subprocess.run(command, check=False).returncode

    compileall.compile_dir(STREAMS, quiet=1)
    with ThreadPoolExecutor(number) as pool:
        return [seed for seed, code in zip(seeds, pool.map(one, seeds), strict=True) if code]


async def _flood(number: int, seed: int) -> int:
    from tests.rig.fleet import running_fleet
    from tests.storm.flood import flood
    from tests.storm.services import StormServices

    with tempfile.TemporaryDirectory(prefix="ms-flood-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        async with (
            StormServices(directory, ["one"]) as services,
            running_fleet(
                directory, bootstrap=services.kafka.bootstrap, prefix="flood.", dsn=services.postgres.dsn(), seed=seed
            ) as fleet,
        ):
            for kind, server in services.mail.items():
                server.add_user(f"flood-{kind}", f"pw-flood-{kind}-{seed}")
                await fleet.add(f"flood-{kind}", f"pw-flood-{kind}-{seed}", server.host, server.port)
            await fleet.ready_worker("one")
            print(json.dumps({"flood": number, **asdict(await flood(fleet, number, seed=seed, within_s=900))}))
    return 0


def run(options: Options, *, keep: bool = False) -> bool:
    """One storm with its report; whether it was true. Its logs are kept when it was not."""
    # Python writes half a .pyc where a worker's disk is full, which all workers of this tree would read.
    compileall.compile_dir(STREAMS, quiet=1)
    directory = Path(tempfile.mkdtemp(prefix=f"ms-storm-{options.seed}-"))
    directory.chmod(0o711)
    outcome: Outcome | None = None
    try:
        outcome = asyncio.run(storm(options, directory, _say))
        _tell(outcome, directory)
        return outcome.true
    finally:
        if outcome is not None and outcome.true and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"seed {options.seed}: logs are kept in {directory}", flush=True)


def _say(line: str) -> None:
    print(line, flush=True)


def _tell(outcome: Outcome, directory: Path) -> None:
    if not outcome.true:
        print(f"seed {outcome.options.seed} is NOT true; faults in order:")
        for line in outcome.faults:
            print(f"  {line}")
        report = "\n".join(outcome.report.lines())
        (directory / "report.txt").write_text(report + "\n")
        print(report)
    print(outcome.line(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
