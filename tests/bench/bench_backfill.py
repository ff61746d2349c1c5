"""Backfill of one mailbox into the committed log, beside imapflow which only fetches and parses the same items.

Figures: ratio of rates (target 0.5, aim 1.0), peak memory.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time

from tests.bench.stage import Bench, bench, fill, imapflow, realistic, report

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


async def run_ours(stage: Bench, user: str, count: int) -> tuple[float, float]:
    """(messages per second from first contact to the committed log, of which seconds of CPU)."""
    account = await stage.add(user, "pw")
    async with stage.host(FETCH_STRUCTURE=False, FETCH_WINDOW=5000) as host:
        started, cpu = time.monotonic(), time.process_time()
        while True:
            runner = host.runner(account)
            if runner is not None and runner.phase == "running" and runner.messages >= count:
                break
            if time.monotonic() - started > 600:
                raise TimeoutError(f"{user}: {runner.messages if runner else 0} of {count}")
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - started
        return count / seconds, time.process_time() - cpu


async def main(count: int) -> None:
    """Fill a mailbox, let both read it three times, report the best of each."""
    async with bench() as stage:
        users = [f"bench{n}" for n in range(4)]
        for user in users:
            stage.dovecot.add_user(user, "pw")
        fill(stage.dovecot, users[0], realistic(count))
        run_imapflow(stage.dovecot.port, users[0])  # warms the server's index
        theirs = max(run_imapflow(stage.dovecot.port, users[0]) for _ in range(2))
        rates = []
        for _ in range(2):
            rate, cpu = await run_ours(stage, users[0], count)
            rates.append(rate)
            await stage.store._pool.execute("DELETE FROM mailstreams.accounts")
            stage.entries.clear()
        report(
            "backfill",
            messages=count,
            ours_per_s=max(rates),
            imapflow_per_s=theirs,
            ratio=max(rates) / theirs,
            cpu_s=cpu,
            target_ratio=0.5,
        )
        report("backfill_memory", messages=count, peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
