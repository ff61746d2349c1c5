"""Backfill of one mailbox into the committed log, beside imapflow which only fetches and parses the same items.

Figures: ratio of rates (target 0.5, aim 1.0), peak memory by size of the mailbox (target 1.3), where our time goes.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import subprocess
import sys
import time

import psutil

from tests.bench.stage import Bench, bench, fill, imapflow, realistic, report, run

FETCH_JS = """
const { ImapFlow } = require('imapflow');
(async () => {
  const c = new ImapFlow({ host: '127.0.0.1', port: +process.argv[1], secure: false, doSTARTTLS: false,
    disableCompression: true, auth: { user: process.argv[2], pass: 'pw' }, logger: false });
  await c.connect(); const lock = await c.getMailboxLock('INBOX', { readOnly: true });
  const t = Date.now(); let n = 0;
  const q = { uid: true, flags: true, internalDate: true, size: true,
    headers: ['from', 'to', 'cc', 'reply-to', 'subject', 'date', 'message-id', 'in-reply-to', 'references'] };
  for await (const m of c.fetch('1:*', q, { uid: true })) n++;
  console.log(JSON.stringify({ n, s: (Date.now() - t) / 1000 }));
  lock.release(); await c.logout();
})();
"""


def run_imapflow(port: int, user: str) -> float:
    """Messages per second of imapflow alone."""
    home = imapflow()
    done = subprocess.run(
        ["node", "-e", FETCH_JS, str(port), user], cwd=home, check=True, capture_output=True, text=True, timeout=300
    )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return float(found["n"]) / max(float(found["s"]), 1e-6)


async def run_ours(stage: Bench, user: str, count: int) -> tuple[float, float, float]:
    """Messages per second from first contact to the committed log, seconds of CPU, and the peak of resident MiB."""
    account = await stage.add(user, "pw")
    process = psutil.Process()
    async with stage.host(FETCH_STRUCTURE=False, FETCH_WINDOW=5000) as host:
        started, cpu, peak, looked = time.monotonic(), time.process_time(), 0, 0.0
        while True:
            runner = host.runner(account)
            if runner is not None and runner.phase == "running" and runner.messages >= count:
                break
            now = time.monotonic()
            if now - started > 600:
                raise TimeoutError(f"{user}: {runner.messages if runner else 0} of {count}")
            if now - looked > 0.1:
                peak, looked = max(peak, process.memory_info().rss), now
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - started
        spent = time.process_time() - cpu
    await stage.store._pool.execute("DELETE FROM mailstreams.accounts")
    stage.entries.clear()
    return count / seconds, spent, peak / 2**20


PLACES = {
    "waiting": ("epoll", "select.py"),
    "framing_and_parsing": ("streams/imap/", "asyncio/streams", "recv", "uvloop"),
    "headers": ("streams/mime/",),
    "events_and_mirror": ("streams/sync/", "streams/domain/", "streams/contracts/", "msgspec", "pyroaring"),
    "kafka": ("aiokafka", "zstd", "cramjam", "crc32"),
}
"""Whose time it is, by what the profiler names; what fits nowhere goes to whoever called it, or to "other"."""


async def profiled(stage: Bench, user: str, count: int) -> dict[str, float]:
    """Share of each place in the time of one run. The profiler slows all of it, so only the shares mean anything."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        await run_ours(stage, user, count)
    finally:
        profile.disable()
    shares: dict[str, float] = dict.fromkeys([*PLACES, "other"], 0.0)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, function), (_, _, own, _, callers) in stats.items():
        place = _place(f"{file} {function}")
        if place is not None:
            shares[place] += own
            continue
        for (by_file, _, by_function), (_, _, share, _) in callers.items():
            shares[_place(f"{by_file} {by_function}") or "other"] += share
    total = sum(shares.values())
    return {name: round(value / total, 3) for name, value in shares.items()}


def _place(name: str) -> str | None:
    return next((place for place, marks in PLACES.items() if any(mark in name for mark in marks)), None)


async def main(count: int, large: int) -> None:
    """Fill a mailbox, let both read it, report the best of each; then a larger one, for the memory."""
    async with bench() as stage:
        for user in ("small", "large"):
            stage.dovecot.add_user(user, "pw")
        fill(stage.dovecot, "small", realistic(count))
        run_imapflow(stage.dovecot.port, "small")  # warms the server's index
        theirs = max(run_imapflow(stage.dovecot.port, "small") for _ in range(3))
        runs = [await run_ours(stage, "small", count) for _ in range(3)]
        rate = max(each[0] for each in runs)
        cpu = min(each[1] for each in runs)
        report(
            "backfill",
            messages=count,
            ours_per_s=rate,
            imapflow_per_s=theirs,
            ratio=rate / theirs,
            cpu_us_per_message=cpu / count * 1e6,
            target_ratio=0.5,
        )
        fill(stage.dovecot, "large", realistic(large))
        _, _, peak = await run_ours(stage, "large", large)
        small = max(each[2] for each in runs)
        report("backfill_memory", messages=[count, large], peak_mib=[small, peak], ratio=peak / small, target_ratio=1.3)
        report("backfill_where_time_goes", messages=count, **await profiled(stage, "small", count))


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[1:]]
    run(main(*(sizes or [20_000, 100_000])))
