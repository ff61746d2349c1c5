"""Rebalances while shards write: how long a write of an account that stays takes at most, beside a quiet time.

``python -m tests.bench.bench_rebalance [--accounts 10000]``. Workers are the whole product with all accounts in their
tables, but run next to none of them, so that a machine of two cores can hold three; in each a probe writes to its
shards in turns, as runners do. What is asked is for how long an account whose partition stays could not write.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from random import Random

import asyncpg

from tests.bench.bench_rolling import assignments
from tests.bench.deployment import Deployment, deployment, milliseconds, probe_lines
from tests.bench.stage import report
from tests.rig.worker import Worker

QUIET_S = 10.0
SETTLE_S = 3.0
WRITES_PER_S = "20"


async def store(stage: Deployment, count: int) -> list[str]:
    """Accounts in the database, as nobody's mail server knows them."""
    random = Random(3)
    ids = [str(uuid.UUID(int=random.getrandbits(128), version=4)) for _ in range(count)]
    connection = await asyncpg.connect(stage.fleet.dsn)
    try:
        rows = await connection.fetch(
            "INSERT INTO mailstreams.accounts"
            " (account_id, user_id, state, host, port, tls, username, auth, secret_ref)"
            " SELECT id, id::text, 'live', '127.0.0.1', 9, 'plain', id::text, 'secret_ref', 's'"
            " FROM unnest($1::uuid[]) AS id RETURNING account_id::text, version",
            ids,
        )
    finally:
        await connection.close()
    for row in rows:
        stage.accounts[row["account_id"]] = row["account_id"]
        stage.fleet.versions[row["account_id"]] = row["version"]
    return ids


def start(stage: Deployment, name: str) -> Worker:
    """A worker with its probe."""
    return stage.fleet.start_worker(
        name, PROBE_FILE=str(stage.fleet.directory / f"{name}.probe"), PROBE_WRITES_PER_S=WRITES_PER_S
    )


async def settled(stage: Deployment) -> None:
    """Every partition runs in exactly one of the living workers, and they agree on it."""
    async with asyncio.timeout(180):
        while True:
            living = [worker for worker in stage.fleet.workers.values() if worker.running]
            held = [found[-1] if (found := assignments(worker, 0)) else frozenset() for worker in living]
            if sum(map(len, held)) == stage.fleet.partitions == len(frozenset().union(*held)):
                break
            await asyncio.sleep(0.25)
    for worker in living:
        await worker.ready()


def held(worker: Worker) -> frozenset[int]:
    """Partitions of the worker now."""
    return assignments(worker, 0)[-1]


async def measured(
    stage: Deployment, what: str, staying: tuple[Worker, ...], act: Callable[[], Awaitable[object]]
) -> None:
    """Do it, and report what writes to partitions that stayed where they were took meanwhile, and before."""
    before = {worker.name: held(worker) for worker in staying}
    quiet = time.time()
    await asyncio.sleep(QUIET_S)
    began = time.time()
    await act()
    await settled(stage)
    took = time.time() - began
    await asyncio.sleep(SETTLE_S)
    ended = time.time()
    meanwhile: list[float] = []
    at_rest: list[float] = []
    late: list[float] = []
    for worker in staying:
        kept = before[worker.name] & held(worker)
        for line in probe_lines(stage.fleet.directory / f"{worker.name}.probe", quiet, ended):
            if line["at"] > began:
                late += line["late_s"]
            for partition, at, seconds, done in line["writes"]:
                if partition in kept and done:
                    (meanwhile if at + seconds > began else at_rest).append(seconds)
    report(
        "rebalance_writes",
        what=what,
        accounts=len(stage.accounts),
        took_s=took,
        writes=len(meanwhile),
        **milliseconds(meanwhile),
        over_100_ms=sum(seconds > 0.1 for seconds in meanwhile),
        **milliseconds(at_rest, "at_rest_"),
        loop_late_max_ms=max(late, default=0.0) * 1000,
    )


async def main(count: int) -> None:
    """Two workers, then a third; it dies; another dies while one joins."""
    async with deployment([], MAX_ACCOUNTS_PER_WORKER="1", LOG_LEVEL="info", RECONCILE_S="3600") as stage:
        ids = await store(stage, count)
        stage.fleet.users.update({name: name for name in ids})
        one, two = start(stage, "w1"), start(stage, "w2")
        for worker in (one, two):
            await worker.ready()
        await stage.announce(ids)
        await settled(stage)
        await stage.at_rest(*(stage.fleet.directory / f"{worker.name}.probe" for worker in (one, two)))

        async def joins() -> None:
            await start(stage, "w3").ready()

        async def dies() -> None:
            await stage.fleet.workers["w3"].kill()
            await asyncio.sleep(float(stage.fleet.environment["KAFKA_SESSION_TIMEOUT_S"]))

        async def dies_while_another_joins() -> None:
            joining = start(stage, "w4")
            await joining.alive()
            await stage.fleet.workers["w3"].kill()
            await joining.ready()

        await measured(stage, "a third worker joins", (one, two), joins)
        await measured(stage, "the third dies by kill -9", (one, two), dies)
        await start(stage, "w3").ready()
        await settled(stage)
        await measured(stage, "one dies by kill -9 while another joins", (one, two), dies_while_another_joins)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accounts", type=int, default=10_000)
    asyncio.run(main(parser.parse_args().accounts))
