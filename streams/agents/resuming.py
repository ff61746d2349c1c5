"""How a Faust consumer takes up its topics after a rebalance, without losing an event.

Faust 0.15.3 loses events there in two ways, both seen on real brokers:

* It lets events of a partition in, then seeks to the committed offset, then empties the queues of its agents. What came
  in between is in no queue any more, and the consumer is past it.
* aiokafka's `seek_to_committed`, which it uses, leaves a partition where it is when nothing, or offset 0, is committed.
  What was fetched and thrown away while the flow was suspended is then never fetched again.

Either way the event is handled at the next rebalance, or never: offsets that are committed later may pass over it.

Invariant: between the last emptying of the queues and the first event that is let in, every partition is set to its
committed offset, or to its beginning. So an event that is not acknowledged comes again, and none is passed over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from faust.tables.manager import TableManager
from faust.tables.recovery import RebalanceAgain, Recovery, ServiceStopped
from faust.transport.drivers.aiokafka import Transport

from streams.agents.frugal import FrugalConsumer, FrugalThread
from streams.agents.starting import PatientProducer, patiently

NOTHING_COMMITTED: Final = -1

FETCH_WAIT_MS: Final = 200
"""How long a broker may hold a fetch for which it has nothing. Other requests wait behind it on the same connection,
and a recovery makes four of them: with Faust's 1,500 a rebalance took members that had partitions already 3 to 5 s.
"""


class RewindingThread(FrugalThread):
    """The thread of the Kafka client; knows how to rewind."""

    async def on_start(self) -> None:
        """See `mode.Service`."""
        await patiently(self, super().on_start, lambda: self._consumer)

    def _create_worker_consumer(self, transport: Any) -> Any:
        client = super()._create_worker_consumer(transport)
        client._fetch_max_wait_ms = FETCH_WAIT_MS
        return client

    async def seek_to_committed(self) -> Mapping[Any, int]:
        """Set every partition of a source topic to its committed offset, or to its beginning. Returns the offsets.

        Changelogs are left alone: where these are read from is decided by the recovery of the tables.
        """
        offsets: Mapping[Any, int] = await self.call_thread(self._rewind, frozenset(self.app.tables.changelog_topics))
        return offsets

    async def _rewind(self, changelogs: frozenset[str]) -> dict[Any, int]:
        client = self._ensure_consumer()
        partitions = [tp for tp in client.assignment() if tp.topic not in changelogs]
        # One request for all: a rebalance waits for this, and there are hundreds of partitions.
        committed = await client._coordinator.fetch_committed_offsets(partitions)
        offsets: dict[Any, int] = {}
        for tp in partitions:
            found = committed.get(tp)
            # A beginning that is gone is out of range, and the reset policy then finds the earliest there is.
            offsets[tp] = 0 if found is None or found.offset == NOTHING_COMMITTED else found.offset
            client.seek(tp, offsets[tp])
        return offsets


class RewindingConsumer(FrugalConsumer):
    """Faust's consumer on a `RewindingThread`."""

    def _new_consumer_thread(self) -> RewindingThread:
        return RewindingThread(self, loop=self.loop, beacon=self.beacon)


class RewindingTransport(Transport):
    """Faust's transport with a `RewindingConsumer` and a `PatientProducer`."""

    Producer = PatientProducer
    Consumer = RewindingConsumer


class OrderlyRecovery(Recovery):
    """The recovery of the tables; what follows it happens in an order in which no event is lost."""

    async def _wait(self, coro: Any, timeout: Any = None) -> None:
        """Wait for one step of a recovery; one that takes too long begins the recovery again.

        Faust takes a step that timed out for the stop of the service: a broker that is away for a minute in the middle
        of a rebalance would end the recovery for good, and with it all events, while the worker looks alive.
        """
        try:
            await super()._wait(coro, timeout)
        except ServiceStopped:
            if self.should_stop or self._crashed.is_set():
                raise
            self.log.warning("a step of the recovery took over %s s, the recovery begins again", timeout)
            self.signal_recovery_start.set()
            raise RebalanceAgain from None

    async def _seek_offsets(self, consumer: Any, tps: Any, offsets: Any, title: str) -> None:
        """Where changelogs are read from. An offset that is not known is the beginning: -1 is one way to say so, and
        while a broker comes back there are others, of which Faust dies.
        """
        told = {tp: offsets.get(tp) for tp in tps}
        known = Counter({tp: -1 if offset is None else max(offset, -1) for tp, offset in told.items()})
        await super()._seek_offsets(consumer, set(known), known, title)

    async def on_recovery_completed(self, generation_id: int = 0) -> None:
        """Tables are recovered: seek, empty the queues, and only then let events in."""
        app: Any = self.app
        consumer = app.consumer
        await app.on_rebalance_complete.send()
        self._set_recovery_ended()
        await asyncio.gather(
            *(
                table.on_recovery_completed(self.actives_for_table[table], self.standbys_for_table[table])
                for table in self.tables.values()
            )
        )
        if app.consumer_generation_id != generation_id:
            self.log.warning("another rebalance began, generation %s is not resumed", generation_id)
            return
        sources = {tp for tp in consumer.assignment() if not self._is_changelog_tp(tp)}
        # The flow is on, for changelogs: sources are kept out by being paused.
        consumer.pause_partitions(sources)
        if sources:
            await self._wait(consumer.perform_seek(), timeout=app.conf.broker_request_timeout)
        self.completed.set()
        # No turn of the loop from here to the end of the flow's resumption: nothing gets in between.
        app.flow_control.resume()
        consumer.resume_partitions(sources)
        consumer.resume_flow()
        await app._fetcher.maybe_start()
        self.tables.on_actives_ready()
        if not app.assignor.assigned_standbys():
            self.tables.on_standbys_ready()
        app.on_rebalance_end()
        tables: Any = self.tables
        tables.resumed(generation_id)
        self.log.info("Worker ready")


class OrderlyTables(TableManager):
    """Faust's tables with an `OrderlyRecovery`, which tells when it is over.

    Faust's sensors are not told for certain: a rebalance that begins, in the consumer's thread, while the one before
    ends loses the state that they hang on, and its own end is then told to nobody.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._on_resumed: list[Callable[[int], None]] = []

    def when_resumed(self, call: Callable[[int], None]) -> None:
        """Call this, with the generation, each time the tables are recovered and the streams flow again."""
        self._on_resumed.append(call)

    def resumed(self, generation_id: int) -> None:
        """For the recovery."""
        for call in self._on_resumed:
            call(generation_id)

    @property
    def recovery(self) -> Recovery:
        """The service that recovers the tables."""
        if self._recovery is None:
            self._recovery = OrderlyRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
