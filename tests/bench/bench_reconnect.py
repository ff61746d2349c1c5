"""A mail host drops thousands of hot accounts at once: how they come back.

Real runners with IDLE connections, through the real gate at the host's login limit; the host is a light one in a
process of its own, the log is in memory. Asserted: the host sees no more logins than its limit allows, and everybody is
back within accounts / limit and a fifth. Counts and ratios, so that the machine hardly matters as long as it keeps up.
"""

from __future__ import annotations

import asyncio
import sys
import time
from bisect import bisect_right
from typing import Any

import psutil

from streams.directory.accounts import AccountConnection, UnknownAccount
from streams.imap.credentials import Credential, Password, Secret
from streams.imap.hosts import HostGate, HostPolicy
from streams.imap.tls import client_tls_context
from streams.observer import NoopObserver
from streams.runtime.garbage import settle_heap
from streams.sync.connections import Connector, host_policy
from streams.sync.runner import AccountRunner, RunnerServices
from tests.bench.imap_host import PASSWORD, MailHost, mail_host, many_files
from tests.bench.stage import report, run
from tests.fixtures.engine import engine_settings
from tests.fixtures.memory_log import MemoryPartition
from tests.fixtures.runner import MemoryShard

ACCOUNTS = 5_000
LOGINS_PER_S = 100.0
SLACK = 1.2
START_S = 600.0
WINDOWS_S = (1.0, 5.0, 10.0)


class Directory:
    """All accounts at one host, in memory."""

    def __init__(self, port: int, count: int) -> None:
        self.rows = {
            f"a{number}": AccountConnection(
                f"a{number}", f"u{number}", "live", 1, "127.0.0.1", port, "plain", f"u{number}", "password"
            )
            for number in range(count)
        }

    async def connection(self, account_id: str) -> AccountConnection:
        """The row."""
        if account_id not in self.rows:
            raise UnknownAccount("no such account")
        return self.rows[account_id]


class Sources:
    """Everybody has the same password."""

    def of(self, connection: AccountConnection) -> Any:
        """Source of credentials."""
        return _Source(connection.username)


class _Source:
    def __init__(self, username: str) -> None:
        self._username = username

    async def current(self, *, force_refresh: bool = False) -> Credential:
        return Password(self._username, Secret(PASSWORD))


def peak(times: list[float], window_s: float) -> int:
    """Most events within any span of the window's length."""
    return max((bisect_right(times, at + window_s) - number for number, at in enumerate(times)), default=0)


async def all_idle(host: MailHost, count: int, within_s: float) -> tuple[float, dict[str, Any]]:
    """Wait until the host has seen IDLE from everybody; returns how long that took, and its report."""
    started = time.monotonic()
    while True:
        told = await host.ask("report")
        took = time.monotonic() - started
        if told["idle"] >= count and told["open"] >= count:
            return took, told
        if took > within_s:
            raise TimeoutError(f"{told['idle']} of {count} are back after {took:.0f} s, {told['open']} connections")
        await asyncio.sleep(0.25)


async def main(count: int, rate: float) -> None:
    """Start everybody."""
    many_files()
    settings = engine_settings(
        HOST_LOGINS_PER_S=rate, POLL_WARM=36_000.0, POLL_COLD=36_000.0, FETCH_STRUCTURE=False, HOST_CONNECTIONS=100_000
    )
    async with mail_host(count) as host:
        connector = Connector(
            settings,
            Directory(host.port, count),  # type: ignore[arg-type]
            Sources(),
            HostGate(HostPolicy(logins_per_s=1e6, concurrent_logins=50)),  # the start is not what is measured
            client_tls_context(),
            NoopObserver(),
        )
        services = RunnerServices(
            settings=settings,
            connector=connector,
            observer=NoopObserver(),
            worker="bench",
            backfills=asyncio.Semaphore(32),
            on_dead=lambda _, reason: print(f"dead: {reason}", file=sys.stderr),
            on_mail=lambda _: None,
        )
        shards = [MemoryShard(MemoryPartition()) for _ in range(count)]
        runners = [AccountRunner(f"a{number}", shard, services) for number, shard in enumerate(shards)]  # type: ignore[arg-type]
        for runner, shard in zip(runners, shards, strict=True):
            runner.start(await shard.running(), session_active=True)  # type: ignore[arg-type]
        try:
            await measure(host, connector, runners, rate)
        finally:
            tasks = [runner._task for runner in runners if runner._task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=60)
            await asyncio.gather(*(shard.current.close() for shard in shards if shard.current is not None))
            await asyncio.sleep(0)  # what was cancelled by the end of these sees it


async def measure(host: MailHost, connector: Connector, runners: list[AccountRunner], rate: float) -> None:
    """Settle, drop, watch."""
    count = len(runners)
    took, _ = await all_idle(host, count, START_S)
    print(f"[bench] {count} accounts are watched after {took:.0f} s", file=sys.stderr, flush=True)
    connector._gate = HostGate(host_policy(connector._settings))
    settle_heap()  # as a worker does
    cpu = psutil.Process().cpu_times()
    await host.ask("drop")
    limit_s = SLACK * count / rate
    took, told = await all_idle(host, count, 3 * limit_s)
    used = psutil.Process().cpu_times()
    logins: list[float] = sorted(told["logins"])
    at_once = HostPolicy().concurrent_logins
    peaks = {window: peak(logins, window) for window in WINDOWS_S}
    report(
        "reconnect",
        accounts=count,
        logins_per_s_limit=rate,
        logins=len(logins),
        **{f"peak_logins_per_s_over_{window:g}_s": most / window for window, most in peaks.items()},
        all_back_s=took,
        accounts_by_rate_s=count / rate,
        target_s=limit_s,
        cpu_share=(used.user + used.system - cpu.user - cpu.system) / took,
        failures=sum(runner.failure is not None for runner in runners),
    )
    for window, most in peaks.items():
        # what started within the window, and what was under way when it began
        assert most <= rate * window + 1 + at_once, f"{most} logins within {window:g} s"
    assert len(logins) <= count * 1.05, f"{len(logins)} logins for {count} accounts"
    assert took <= limit_s, f"all back after {took:.1f} s, not within {limit_s:.1f} s"


if __name__ == "__main__":
    run(
        main(
            int(sys.argv[1]) if len(sys.argv) > 1 else ACCOUNTS,
            float(sys.argv[2]) if len(sys.argv) > 2 else LOGINS_PER_S,
        )
    )
