"""The product with a probe inside: how late its loop is and, when asked, how long a write to a shard's log takes.

`faust -A tests.bench.probed_worker worker`. PROBE_FILE gets a JSON line each second: when it was, how late the loop
was at each look, how long each write took and since when it waited. PROBE_WRITES_PER_S writes go to the shards that
run here in turns, each a record of its own in the shard's own transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any, Final

from streams.errors import ShardError
from streams.runtime.services import Health
from streams.sync.hosting import Host
from streams.sync.log import Batch, Outgoing

LOOK_EVERY_S: Final = 0.01
LINE_EVERY_S: Final = 1.0


class Probe:
    """A service of the process."""

    name = "probe"

    def __init__(self, host: Host, topic: str, partitions: int) -> None:
        self._host = host
        self._topic = topic
        self._partitions = partitions
        self._path = Path(os.environ["PROBE_FILE"])
        self._writes_per_s = float(os.environ.get("PROBE_WRITES_PER_S", "0"))
        self._late: list[float] = []
        self._writes: list[tuple[int, float, float, bool]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to look, and to write."""
        self._begin(self._look())
        if self._writes_per_s > 0:
            self._begin(self._write())

    async def stop(self, deadline_s: float) -> None:
        """End."""
        for task in list(self._tasks):
            task.cancel()

    def health(self) -> Health:
        """Always well."""
        return Health()

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self) -> None:
        said = time.monotonic()
        with self._path.open("a") as lines:
            while True:
                before = time.monotonic()
                await asyncio.sleep(LOOK_EVERY_S)
                now = time.monotonic()
                self._late.append(max(0.0, now - before - LOOK_EVERY_S))
                if now - said >= LINE_EVERY_S:
                    late, self._late = self._late, []
                    writes, self._writes = self._writes, []
                    line = {"at": time.time(), "late_s": [round(each, 4) for each in late], "writes": writes}
                    lines.write(json.dumps(line) + "\n")
                    lines.flush()
                    said = now

    async def _write(self) -> None:
        partition = 0
        while True:
            await asyncio.sleep(1 / self._writes_per_s)
            for _ in range(self._partitions):
                partition = (partition + 1) % self._partitions
                if self._host.shard(partition) is not None:
                    self._begin(self._write_to(partition))
                    break

    async def _write_to(self, partition: int) -> None:
        """As a runner does: wait for the shard, submit, wait for the commit; a lost writer is another try."""
        shard = self._host.shard(partition)
        assert shard is not None
        began, done = time.time(), False
        try:
            while not done:
                log = await shard.running()
                record = Outgoing(self._topic, b"probe", b'{"probe": true}', [], partition)
                try:
                    await log.submit(Batch([record]))
                    done = True
                except ShardError:
                    await asyncio.sleep(0.01)
        except ShardError:
            return  # the shard went elsewhere
        finally:
            self._writes.append((partition, began, round(time.time() - began, 4), done))


def __getattr__(name: str) -> Any:
    if name == "app":
        import streams

        parts = streams.app.parts
        host = next(service for service in parts.owning if isinstance(service, Host))
        settings = parts.settings
        parts.beside.append(Probe(host, settings.topic("sync.command_events"), settings.PARTITIONS))
        globals()["app"] = streams.app
        return streams.app
    raise AttributeError(name)
