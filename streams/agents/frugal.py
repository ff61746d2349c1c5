"""Faust's consumer without the work that grows with the number of partitions and gives nothing.

Seen with 64 partitions and 200 activities a second: Faust looks each offset that it commits up in a set of the
assignment that it makes anew for it, which is partitions² and some 20 ms in which nothing else has the interpreter; it
draws a table of the offsets for a log line that is thrown away; and aiokafka asks a broker for more as soon as it has
anything. A request and its answer name every partition, so single events cost more in asking than in handling.

Invariant: what is delivered, acknowledged and committed is what Faust would; only the time of asking differs, by
`FETCH_EVERY_S` at most, and not at all after a quiet time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from faust.transport.consumer import ensure_TPset
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer

FETCH_EVERY_S: Final = 0.01
"""Between the beginnings of two fetches from a broker: what comes meanwhile comes together."""


class FrugalThread(AIOKafkaConsumerThread):
    """The thread of the Kafka client; paces its fetches and remembers what is assigned."""

    _known: tuple[Any, frozenset[Any]] = (None, frozenset())

    async def on_start(self) -> None:
        """See `mode.Service`."""
        await super().on_start()
        pace_fetches(self._ensure_consumer()._fetcher)

    def assignment(self) -> set[Any]:
        """The partitions that are assigned, as Faust names them."""
        # The client makes a new frozenset with each assignment. Two threads come here: the pair changes as one.
        raw = self._ensure_consumer().assignment()
        known, ours = self._known
        if raw is not known:
            ours = frozenset(ensure_TPset(raw))
            self._known = raw, ours
        return set(ours)


class FrugalConsumer(Consumer):
    """Faust's consumer; commits without drawing tables."""

    async def _commit_offsets(self, offsets: Mapping[Any, int], start_new_transaction: bool = True) -> bool:
        """Commit what is still ours, after everything that was sent for it is in Kafka. We have no transactions."""
        assignment = self.assignment()
        ours = {tp: offset for tp, offset in offsets.items() if tp in assignment}
        if not ours:
            return False
        app: Any = self.app
        await app.producer.flush()
        committed = bool(await self._commit(ours))
        if committed:
            app.tables.on_commit(ours)
        self._committed_offset.update(ours)
        app.monitor.on_tp_commit(ours)
        return committed


def pace_fetches(fetcher: Any, *, every_s: float = FETCH_EVERY_S) -> None:
    """Let the fetches of an aiokafka fetcher begin at least so far apart, for each broker."""
    fetch = fetcher._proc_fetch_request
    begun: dict[Any, float] = {}

    async def paced(assignment: Any, node_id: Any, request: Any) -> Any:
        early = begun.get(node_id, 0.0) + every_s - time.monotonic()
        if early > 0:
            try:
                await asyncio.sleep(early)
            except asyncio.CancelledError:
                # As the fetch itself has it: nobody wants the answer any more, and whoever cancels looks at no error.
                return False
        begun[node_id] = time.monotonic()
        return await fetch(assignment, node_id, request)

    fetcher._proc_fetch_request = paced
