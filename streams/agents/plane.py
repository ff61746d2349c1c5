"""The control plane as it lives in a Faust app: agents, tables, the keeper of the assignment, timers.

It is a Faust sensor, because sensors start first and stop last and hear of the end of a rebalance (the signal
`on_partitions_assigned` fires before tables are recovered). Invariants: nothing escapes an agent, since Faust
acknowledges the event whose handler raised; tables change in agents only; no task of ours ends before the app does.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import faust
from aiokafka.errors import IllegalStateError, KafkaError
from faust.exceptions import ProducerSendError
from mode import Service

from streams.agents.accounts import AccountEvents
from streams.agents.announcements import Announcements
from streams.agents.assignment import AssignmentKeeper
from streams.agents.delivery import Deliveries
from streams.agents.intake import Inbound, Intake
from streams.agents.membership import GroupProof
from streams.agents.periodic import every
from streams.agents.ports import Outgoing, ShardHost
from streams.agents.store import store_url
from streams.agents.tables import ROCKSDB_OPTIONS, AccountRow, Partitioned, Rows, UserRow
from streams.agents.users import UserEvents
from streams.contracts import topics
from streams.contracts.account import AccountHeat, AccountStateChanged, UserAccount, UserActive
from streams.contracts.codec import Decoder
from streams.directory.reconcile import Rows as Directory
from streams.directory.reconcile import reconcile_once
from streams.domain.ownership import AccountEntry
from streams.observer import RuntimeObserver
from streams.settings import Settings

ACCOUNT_ID: Final = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")

SNAPSHOT_S: Final = 5.0
"""Seconds between reports of the host's state to the metrics."""

STUCK_S: Final = 120.0
"""An event that is under way for this long means the topic stands still."""

FIRST_COMPARISON_S: Final = 15.0
"""How long the first comparison with the database waits for events that are still to be read."""

ROWS_PER_SLICE: Final = 200
"""Rows read between two turns of the loop: under 5 ms."""

_LOGGER: Final = logging.getLogger(__name__)

Step = Callable[[], Awaitable[None]]


class FaustOutbox:
    """The app's producer as an `Outbox`."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._names = {spec.name: settings.topic(spec.name) for spec in topics.TOPICS}

    async def send(self, record: Outgoing) -> Awaitable[object]:
        """See `streams.agents.ports.Outbox`. The partition is that of the key by Kafka's murmur2."""
        # Not through a Faust topic, which wraps each record in three objects and a callback.
        producer = await self._app.maybe_start_producer()
        try:
            delivery: Awaitable[object] = await producer.send(
                self._names[record.topic], record.key, record.value, None, None, list(record.headers) or None
            )
        except ProducerSendError as error:
            # Faust wraps what aiokafka raises; who sends has to tell a record that is too large from a producer that
            # is being stopped.
            if isinstance(error.__cause__, KafkaError):
                raise error.__cause__ from None
            raise
        return delivery


RAW: Final[dict[str, Any]] = {
    "key_type": bytes,
    "value_type": bytes,
    "key_serializer": "raw",
    "value_serializer": "raw",
    "allow_empty": True,
}
"""How all topics are declared: a value that Faust cannot decode would be thrown into the stream."""


class ControlPlane(faust.Sensor):
    """Everything of the control plane in one worker. Made by `streams.agents.attach`."""

    def __init__(
        self,
        app: Any,
        *,
        settings: Settings,
        host: ShardHost,
        store: Directory | None = None,
        observer: RuntimeObserver,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__()
        self.app = app
        self.settings = settings
        self.host = host
        self.observer = observer
        self.outbox = FaustOutbox(app, settings)
        self._directory = store
        self._steps: list[tuple[float, str, Step]] = []
        self._recovered = asyncio.Event()
        self._compared = False
        self._rebalance_began = time.monotonic()

        accounts_table = self._table("accounts")
        users_table = self._table("users")
        self.account_rows = Rows(accounts_table, AccountRow)
        self._accounts_by_partition = Partitioned(accounts_table, settings.PARTITIONS)

        accounts = AccountEvents(self.account_rows, host)
        users = UserEvents(
            Rows(users_table, UserRow),
            timedelta(minutes=settings.TIER_SESSION_GRACE_MIN),
            now,
            Partitioned(users_table, settings.PARTITIONS).keys_after,
        )
        self._deliveries: list[Deliveries] = []
        self._declare(
            topics.STATE_CHANGED,
            "account_state",
            Intake(
                Decoder[AccountStateChanged](AccountStateChanged),
                lambda event: event.account_id,
                accounts.state_changed,
                forget=accounts.forgotten,
                key_pattern=ACCOUNT_ID,
                partitions=settings.PARTITIONS,
                observer=observer,
            ),
        )
        self._declare(
            topics.USER_ACTIVE,
            "user_activity",
            Intake(
                Decoder[UserActive](UserActive),
                lambda event: event.user_id,
                users.active,
                partitions=settings.PARTITIONS,
                observer=observer,
            ),
        )
        self._declare(
            topics.USER_ACCOUNTS,
            "user_accounts",
            Intake(
                Decoder[UserAccount](UserAccount),
                lambda event: event.user_id,
                users.account,
                partitions=settings.PARTITIONS,
                observer=observer,
            ),
        )
        self._declare(
            topics.HEAT,
            "account_heat",
            Intake(
                Decoder[AccountHeat](AccountHeat),
                lambda event: event.account_id,
                accounts.heat,
                partitions=settings.PARTITIONS,
                observer=observer,
            ),
        )

        source = settings.topic(topics.STATE_CHANGED)
        self.proof = GroupProof(app, source, deadline_s=settings.KAFKA_SESSION_TIMEOUT_S)
        self.keeper = AssignmentKeeper(
            host, self.proof, self.accounts_of, session_timeout_s=settings.KAFKA_SESSION_TIMEOUT_S
        )
        app.on_partitions_assigned.connect(self._on_assigned, weak=False)
        app.tables.when_resumed(self._on_resumed)
        app.sensors.add(self)
        self.repeat(SNAPSHOT_S, "report of the shards", self._report)
        if store is not None:
            self.repeat(settings.RECONCILE_S, "comparison with PostgreSQL", self.reconcile)

    # --- what others use ------------------------------------------------------------------------------------------

    def repeat(self, interval_s: float, name: str, step: Step) -> None:
        """Run `step` once partitions are assigned and recovered, then at an interval. To be called before the start."""
        self._steps.append((interval_s, name, step))

    async def accounts_of(self, partition: int) -> AsyncIterator[AccountEntry]:
        """Accounts of a recovered partition, in slices.

        Each is read when it comes out, so none is older than events.
        """
        table = self._accounts_by_partition
        for count, key in enumerate(table.keys(partition), 1):
            row = self.account_rows.decode(table.get(partition, key))
            if row is not None:
                yield row.entry(key.decode("utf-8", "replace"))
            if count % ROWS_PER_SLICE == 0:
                await asyncio.sleep(0)

    def account(self, partition: int, account_id: str) -> AccountEntry | None:
        """One account of a recovered partition, as it is now."""
        row = self.account_rows.decode(self._accounts_by_partition.get(partition, account_id.encode()))
        return None if row is None else row.entry(account_id)

    def problems(self) -> list[str]:
        """What keeps the control plane from its work; empty when all is well. Cheap, for the probes."""
        found = [
            f"{each.topic} stands still for {each.oldest_s():.0f} s"
            for each in self._deliveries
            if each.oldest_s() > STUCK_S
        ]
        if not self.keeper.member:
            found.append("no proof of membership in the group")
        return found

    # --- Faust ----------------------------------------------------------------------------------------------------

    def on_rebalance_start(self, app: Any) -> dict[str, float]:
        """Runs in the consumer's thread."""
        self._rebalance_began = time.monotonic()
        return {}

    def _on_resumed(self, generation_id: int) -> None:
        """Tables are recovered and the streams flow again."""
        self.observer.rebalance(time.monotonic() - self._rebalance_began)
        self.keeper.recovered(generation_id, self._partitions_of(self.app.consumer.assignment()))
        self._recovered.set()

    async def _on_assigned(self, app: Any, assigned: Any, **_: Any) -> None:
        self.keeper.assigned(app.consumer_generation_id, self._partitions_of(assigned))

    def _partitions_of(self, assigned: Any) -> frozenset[int]:
        source = self.settings.topic(topics.STATE_CHANGED)
        return frozenset(tp.partition for tp in assigned if tp.topic == source)

    @Service.task
    async def _keep_assignment(self) -> None:
        await self._forever("keeper of the assignment", self.keeper.run)

    @Service.task
    async def _watch_membership(self) -> None:
        await self._forever("watch over the membership", self.keeper.watch)

    @Service.task
    async def _deliver(self) -> None:
        await asyncio.gather(*(self._forever(f"deliveries of {each.topic}", each.run) for each in self._deliveries))

    @Service.task
    async def _run_steps(self) -> None:
        await self._recovered.wait()
        await asyncio.gather(*(every(interval, name, step) for interval, name, step in self._steps))

    async def _forever(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A task of Faust that raises stops the worker; ours say what is wrong and begin again."""
        while True:
            try:
                await run()
            except Exception:
                _LOGGER.exception("%s failed and begins again", name)
            await asyncio.sleep(1.0)

    # --- agents ---------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> Any:
        return self.app.Table(
            name,
            key_type=bytes,
            value_type=bytes,
            partitions=self.settings.PARTITIONS,
            store=store_url(name),
            options=dict(ROCKSDB_OPTIONS),
            help=f"{name} of the control plane",
        )

    def _declare(self, topic: str, name: str, intake: Intake[Any]) -> None:
        deliveries = Deliveries(topic, self.outbox)
        self._deliveries.append(deliveries)
        app = self.app

        async def agent(stream: Any) -> None:
            # Acknowledged by `Deliveries`, in the same order, when what an event led to is in Kafka.
            stream.enable_acks = False
            async for event in stream.events():
                message = event.message
                generation = message.generation_id
                record = Inbound(
                    topic, message.partition, message.offset, message.key, message.value, tuple(message.headers or ())
                )

                def ours(generation: int = generation) -> bool:
                    return bool(generation == app.consumer_generation_id)

                records = await intake.handled(record, ours)
                if records is not None:
                    await deliveries.put(records, event.ack, ours)

        agent.__qualname__ = f"streams.agents.{name}"
        app.agent(app.topic(self.settings.topic(topic), **RAW), name=agent.__qualname__)(agent)

    # --- timers ---------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        snapshot = self.host.snapshot()
        self.observer.accounts(snapshot.accounts, snapshot.unserved)
        self.observer.shards(Counter(snapshot.shards.values()))

    async def reconcile(self) -> None:
        """Compare the accounts of our partitions with the directory and announce what differs (row S7)."""
        if self._directory is None or self.app.rebalancing:
            return
        if not self._compared:
            self._compared = True
            await self._until_read()
        partitions = self.keeper.assignment.partitions
        announcements = Announcements(self.outbox)
        report = await reconcile_once(
            self._directory,
            self._accounts_of_all(partitions),
            announcements.publish,
            self.settings.RECONCILE_PAGE,
            partitions,
            partition_count=self.settings.PARTITIONS,
        )
        await announcements.delivered()
        level = logging.WARNING if report.announced or report.absent else logging.INFO
        _LOGGER.log(
            level,
            "compared %d accounts with the database: %d announced, %d absent, %d ahead of it",
            report.ours,
            report.announced,
            report.absent,
            report.ahead,
        )

    async def _until_read(self) -> None:
        """Wait a little for the events that were there before us: what they say need not be announced once more."""
        deadline = time.monotonic() + FIRST_COMPARISON_S
        while time.monotonic() < deadline and not self._all_read():
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.5)

    def _all_read(self) -> bool:
        consumer = self.app.consumer
        source = self.settings.topic(topics.STATE_CHANGED)
        try:
            ends = {tp: consumer.highwater(tp) for tp in consumer.assignment() if tp.topic == source}
        except IllegalStateError:
            # The assignment is changing at this moment.
            return False
        return all(end is not None and (consumer._read_offset[tp] or 0) >= end - 1 for tp, end in ends.items())

    async def _accounts_of_all(self, partitions: Iterable[int]) -> AsyncIterator[AccountEntry]:
        for partition in sorted(partitions):
            async for entry in self.accounts_of(partition):
                yield entry
