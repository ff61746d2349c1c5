"""Faust's consumer without the work that grows with the number of partitions and gives nothing.

Seen with 64 partitions and 200 activities a second: Faust looks each offset that it commits up in a set of the
assignment that it makes anew for it, which is partitions² and some 20 ms in which nothing else has the interpreter; it
draws a table of the offsets for a log line that is thrown away; and aiokafka asks a broker for more as soon as it has
anything. A request and its answer name every partition, so single events cost more in asking than in handling.

And with what Faust leaves undone: it takes no error of the group's coordination (see `streams.runtime.coordination`).

Invariant: what is delivered, acknowledged and committed is what Faust would; only the time of asking differs, by
`FETCH_EVERY_S` at most, and not at all after a quiet time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.errors import KafkaError
from faust.transport.consumer import ensure_TPset
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer

from streams.errors import ServiceUnavailable
from streams.runtime.coordination import ended, in_error, take_error

_LOGGER: Final = logging.getLogger(__name__)

FETCH_EVERY_S: Final = 0.01
"""Between the beginnings of two fetches from a broker: what comes meanwhile comes together."""


ATTEND_EVERY_S: Final = 1.0
"""Between two looks at the coordination, and so between two tries after errors of it."""


class FrugalThread(AIOKafkaConsumerThread):
    """The thread of the Kafka client; paces its fetches, remembers what is assigned and attends to the group."""

    _known: tuple[Any, frozenset[Any]] = (None, frozenset())
    _troubled_at = -math.inf

    async def on_start(self) -> None:
        """See `mode.Service`."""
        await super().on_start()
        pace_fetches(self._ensure_consumer()._fetcher)
        self.add_future(self._attend(self._ensure_consumer()._coordinator))

    async def _fetch_records(self, consumer: Any, *args: Any, **kwargs: Any) -> Any:
        """As Faust has it, but that an error of the coordination, which is told to everybody, ends no fetching."""
        try:
            return await super()._fetch_records(consumer, *args, **kwargs)
        except (KafkaError, RuntimeError):
            attended = time.monotonic() - self._troubled_at < ATTEND_EVERY_S
            if not attended and not in_error(consumer._coordinator):
                raise
            await asyncio.sleep(FETCH_EVERY_S)
            return {}

    async def _attend(self, coordinator: Any) -> None:
        while not self.should_stop:
            await asyncio.sleep(ATTEND_EVERY_S)
            error = take_error(coordinator)
            if error is not None:
                self._troubled_at = time.monotonic()
                _LOGGER.warning("the group cannot be coordinated: %r", error)
            if ended(coordinator) and not self.should_stop:
                # A worker that can be in no group serves nobody. Its successor can.
                reason = ServiceUnavailable(f"the coordination of the group has ended: {error!r}")
                asyncio.run_coroutine_threadsafe(self.app.crash(reason), self.parent_loop)
                return

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
        try:
            if early > 0:
                await asyncio.sleep(early)
            begun[node_id] = time.monotonic()
            return await fetch(assignment, node_id, request)
        except asyncio.CancelledError:
            # Nobody wants the answer any more, and whoever cancels looks at no error: one out of the pause that follows
            # a broker's failure ended the thread before it had left the group.
            return False

    fetcher._proc_fetch_request = paced
