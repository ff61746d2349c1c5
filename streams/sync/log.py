"""A shard's log: the fenced producer of one partition, its group commits, and the mirror as of the last of them.

Invariants:

* every batch goes out in one transaction together with the mirror records it leads to (design rule: the mirror never
says more than the log holds);
* a transaction is committed only after every send has succeeded: aiokafka would commit one whose batch failed;
* after any failure, time-out or cancellation the producer is thrown away with everything that was not acknowledged;
the owner opens a new `ShardLog`, which fences again and reads the tail of the mirror;
* `read` and `scan` see what was submitted, committed or not; after a failure they raise, since what a reader has in
memory goes further than what is left to be read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced

from streams.contracts import topics
from streams.contracts.topics import MAX_RECORD_BYTES
from streams.domain import mirror
from streams.errors import MailstreamsError, MirrorDamaged, ProducerLost
from streams.observer import RuntimeObserver
from streams.settings import Settings
from streams.sync.store import MirrorStore

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 524_288
"""Size at which a produce batch is closed; a transaction may hold several."""
TRANSACTION_BYTES: Final = 2_097_152
"""Group commit: what one transaction takes at most."""
QUEUED_BYTES: Final = 4_194_304
"""Submitted and not yet committed, above which writers wait for room."""
CLOSE_TIMEOUT_S: Final = 3.0
"""`stop()` of a transactional producer hangs without a broker."""

LOCAL_COPY_S: Final = 6 * 3600.0
"""Local records of a partition that were last written longer ago are read anew: compaction drops a tombstone after a
day (`delete.retention.ms`), and a copy that missed it would hold what was deleted meanwhile, by another owner.
"""

_KINDS: Final = frozenset({"account", "mailbox", "flags", "ids", "command", "lane"})


class Writable(Protocol):
    """What `ShardLog.write` takes."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...
    @property
    def partition(self) -> int | None: ...


@dataclass(slots=True)
class Outgoing:
    """One record for a topic other than the mirror's. `partition` None is the shard's own."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None = None


@dataclass(slots=True)
class Batch:
    """What must be committed together: records, and mirror records (None deletes) with a few words on each."""

    records: list[Outgoing] = field(default_factory=list)
    mirror: dict[str, tuple[bytes | None, str]] = field(default_factory=dict)

    def size(self) -> int:
        """Approximate bytes."""
        return sum(len(r.value or b"") + 300 for r in self.records) + sum(
            len(v or b"") + len(k) + 100 for k, (v, _) in self.mirror.items()
        )

    def __bool__(self) -> bool:
        return bool(self.records or self.mirror)


class ShardLog:
    """The log of one partition while this worker holds it. One use: `fence`, `restore`, then `submit` until `lost` or
    `close`.
    """

    def __init__(
        self, partition: int, *, settings: Settings, store: MirrorStore, observer: RuntimeObserver, worker: str
    ) -> None:
        self.partition = partition
        self._settings = settings
        self._store = store
        self._observer = observer
        self._worker = worker
        self._producer: AIOKafkaProducer | None = None
        self._queue: deque[tuple[Batch, asyncio.Future[None], int]] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._overlay: dict[str, tuple[Batch, bytes | None]] = {}
        self._committer: asyncio.Task[None] | None = None
        self._closing = False
        self.lost: asyncio.Future[ProducerLost] = asyncio.get_running_loop().create_future()
        self.writer = worker
        self.last_commit_at: float | None = None
        self._mirror_topic = settings.topic(topics.MIRROR)

    # --- opening -----------------------------------------------------------------------------------------------------
    async def fence(self) -> None:
        """Open the transactional producer; Kafka fences every older holder and ends its transaction (KIP-98).

        Raises `ProducerLost` when it cannot be opened within the session timeout.
        """
        settings = self._settings
        producer = AIOKafkaProducer(
            **settings.kafka_client(),
            client_id=f"{self._worker}.changes-{self.partition}",
            transactional_id=settings.transactional_id("changes", self.partition),
            transaction_timeout_ms=int(settings.KAFKA_TRANSACTION_TIMEOUT_S * 1000),
            request_timeout_ms=int(max(settings.KAFKA_TRANSACTION_TIMEOUT_S * 1000, 5000)),
            max_batch_size=BATCH_BYTES,
            max_request_size=MAX_RECORD_BYTES + 131_072,
            compression_type="zstd",  # of events a fifth of the time that aiokafka's lz4 takes, and half the size
            linger_ms=0,
        )
        self._producer = producer
        try:
            async with asyncio.timeout(max(settings.KAFKA_SESSION_TIMEOUT_S, 10.0)):
                await producer.start()
        except Exception as error:
            raise ProducerLost(
                f"the fence of partition {self.partition} could not be opened: {_kind(error)}"
            ) from error
        manager = producer._txn_manager  # the epoch has no public accessor; it names the fence in the `writer` header
        self.writer = f"{self._worker}/{manager.producer_id}.{manager.producer_epoch}"

    async def restore(self) -> int:
        """Read the mirror's partition to its end, taken now (after the fence). Returns the records read.

        Raises `MirrorDamaged` for a record that cannot be read, `ProducerLost` when Kafka does not answer.
        """
        tp = TopicPartition(self._mirror_topic, self.partition)
        consumer = AIOKafkaConsumer(
            **self._settings.kafka_client(),
            client_id=f"{self._worker}.restore-{self.partition}",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=4 << 20,
            check_crcs=True,
        )
        count = 0
        try:
            async with asyncio.timeout(30):
                await consumer.start()
                consumer.assign([tp])
                end = (await consumer.end_offsets([tp]))[tp]
                beginning = (await consumer.beginning_offsets([tp]))[tp]
            start = self._store.position(self.partition)
            if start > end or start < beginning or self._store.idle_s(self.partition) > LOCAL_COPY_S:
                self._store.forget(self.partition)
                start = beginning
            consumer.seek(tp, start)
            position = start
            while position < end:
                async with asyncio.timeout(60):
                    fetched = await consumer.getmany(tp, timeout_ms=500, max_records=2000)
                records: dict[str, bytes | None] = {}
                for record in fetched.get(tp, ()):
                    key = (record.key or b"").decode("utf-8", "replace")
                    self._check(key, record.value)
                    records[key] = record.value
                    count += 1
                async with asyncio.timeout(10):
                    position = await consumer.position(tp)
                self._store.apply(self.partition, records, position)
        except MailstreamsError:
            raise
        except Exception as error:
            raise ProducerLost(f"the mirror of partition {self.partition} could not be read: {_kind(error)}") from error
        finally:
            await _within(consumer.stop(), CLOSE_TIMEOUT_S)
        self._committer = asyncio.create_task(self._commit_forever(), name=f"committer-{self.partition}")
        return count

    def _check(self, key: str, value: bytes | None) -> None:
        parts = key.split("/")
        if len(parts) < 2 or parts[1] not in _KINDS:
            raise MirrorDamaged(f"partition {self.partition} holds a mirror record of an unknown kind: {key[:120]!r}")
        if value is not None:
            try:
                mirror.unseal(value)
            except MirrorDamaged as error:
                raise MirrorDamaged(f"{key}: {error}") from None

    # --- reading -----------------------------------------------------------------------------------------------------
    def read(self, key: str) -> bytes | None:
        """Mirror record of that key as of everything submitted. Raises `ProducerLost` once the log is lost."""
        self._raise_if_reads_are_behind()
        if key in self._overlay:
            return self._overlay[key][1]
        return self._store.get(self.partition, key)

    def scan(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Mirror records whose key begins with `prefix`, in key order, as of everything submitted.

        Raises `ProducerLost` once the log is lost.
        """
        self._raise_if_reads_are_behind()
        pending = {k: v for k, (_, v) in self._overlay.items() if k.startswith(prefix)}
        if not pending:
            yield from self._store.scan(self.partition, prefix)
            return
        merged: dict[str, bytes | None] = dict(self._store.scan(self.partition, prefix))
        merged.update(pending)
        for key in sorted(merged):
            value = merged[key]
            if value is not None:
                yield key, value

    def _raise_if_reads_are_behind(self) -> None:
        if self.lost.done():
            raise ProducerLost(str(self.lost.result()))

    # --- writing -----------------------------------------------------------------------------------------------------
    async def room(self) -> None:
        """Wait until more may be submitted. Raises `ProducerLost` once the log is lost."""
        while not self._room.is_set():
            self._raise_if_lost()
            await self._room.wait()
        self._raise_if_lost()

    def submit(self, batch: Batch) -> asyncio.Future[None]:
        """Queue a batch; the future is done when it is committed, or fails with `ProducerLost`. Order is kept."""
        self._raise_if_lost()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        size = batch.size()
        self._queue.append((batch, future, size))
        self._queued_bytes += size
        for key, (value, _) in batch.mirror.items():
            self._overlay[key] = (batch, value)
        if self._queued_bytes >= QUEUED_BYTES:
            self._room.clear()
        self._wake.set()
        return future

    def write(
        self, records: Sequence[Writable], mirror_records: Mapping[str, tuple[bytes | None, str]]
    ) -> asyncio.Future[None]:
        """What `submit` does, for those who do not know our types: the commands of this partition."""
        outgoing = [Outgoing(it.topic, it.key, it.value, list(it.headers), it.partition) for it in records]
        return self.submit(Batch(outgoing, dict(mirror_records)))

    def _raise_if_lost(self) -> None:
        self._raise_if_reads_are_behind()
        if self._closing:
            raise ProducerLost("the log is closed")

    async def _commit_forever(self) -> None:
        taken: list[tuple[Batch, asyncio.Future[None], int]] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    taken = self._take()
                    await self._commit(taken)
                    taken = []
                if self._closing:
                    return
        except Exception as error:
            self._lose(ProducerLost(f"the writer of partition {self.partition} was lost: {_kind(error)}"), taken, error)
        except asyncio.CancelledError:
            self._lose(ProducerLost(f"the writer of partition {self.partition} was stopped"), taken, None)
            raise

    def _take(self) -> list[tuple[Batch, asyncio.Future[None], int]]:
        taken = [self._queue.popleft()]
        size = taken[0][2]
        while self._queue and size + self._queue[0][2] <= TRANSACTION_BYTES:
            taken.append(self._queue.popleft())
            size += taken[-1][2]
        return taken

    async def _commit(self, taken: list[tuple[Batch, asyncio.Future[None], int]]) -> None:
        producer = self._producer
        assert producer is not None
        started = time.monotonic()
        mirror_records: dict[str, tuple[bytes | None, str]] = {}
        by_place: dict[tuple[str, int], list[Outgoing]] = {}
        for batch, _, _ in taken:
            for record in batch.records:
                place = (record.topic, self.partition if record.partition is None else record.partition)
                by_place.setdefault(place, []).append(record)
            mirror_records.update(batch.mirror)
        if mirror_records:
            by_place[self._mirror_topic, self.partition] = [
                Outgoing(self._mirror_topic, key.encode(), value, [("about", words.encode("utf-8", "replace"))])
                for key, (value, words) in mirror_records.items()
            ]
        count = sum(len(records) for records in by_place.values())
        position: int | None = None
        async with asyncio.timeout(self._settings.KAFKA_TRANSACTION_TIMEOUT_S):
            await producer.begin_transaction()
            acknowledgements: list[tuple[str, int, asyncio.Future[Any]]] = []
            for (topic, partition), records in by_place.items():
                sending = await self._send(producer, topic, partition, records)
                for _, _, future in sending:
                    future.add_done_callback(_retrieve)  # the first failure ends the wait for the others
                acknowledgements.extend(sending)
            for topic, sent, future in acknowledgements:
                metadata = await future
                if topic == self._mirror_topic:
                    position = metadata.offset + sent
            await producer.commit_transaction()
        self._store.apply(self.partition, {k: v for k, (v, _) in mirror_records.items()}, position)
        self.last_commit_at = time.time()
        for batch, future, size in taken:
            self._queued_bytes -= size
            for key in batch.mirror:
                if key in self._overlay and self._overlay[key][0] is batch:
                    del self._overlay[key]
            if not future.done():
                future.set_result(None)
        if self._queued_bytes < QUEUED_BYTES:
            self._room.set()
        self._observer.transaction("committed", time.monotonic() - started, count)

    async def _send(
        self, producer: AIOKafkaProducer, topic: str, partition: int, records: list[Outgoing]
    ) -> list[tuple[str, int, asyncio.Future[Any]]]:
        sent: list[tuple[str, int, asyncio.Future[Any]]] = []
        builder = producer.create_batch()
        for record in records:
            while builder.append(timestamp=None, key=record.key, value=record.value, headers=record.headers) is None:
                if builder.record_count() == 0:
                    raise ProducerLost(
                        f"a record of {len(record.value or b'')} bytes does not fit into a batch of {topic}"
                    )
                count = builder.record_count()
                sent.append((topic, count, _watched(await producer.send_batch(builder, topic, partition=partition))))
                builder = producer.create_batch()
        count = builder.record_count()
        sent.append((topic, count, _watched(await producer.send_batch(builder, topic, partition=partition))))
        return sent

    def _lose(
        self,
        reason: ProducerLost,
        taken: list[tuple[Batch, asyncio.Future[None], int]],
        cause: BaseException | None,
    ) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        outcome = "fenced" if isinstance(cause, ProducerFenced) else "lost"
        self._observer.transaction(outcome, 0.0, 0)
        self._observer.fenced(outcome)
        for _, future, _ in (*taken, *self._queue):
            if not future.done():
                future.set_exception(ProducerLost(str(reason)))
        self._queue.clear()
        self._overlay.clear()
        self._room.set()

    async def close(self, *, flush_s: float = 0.0) -> None:
        """Commit what is queued (for `flush_s` seconds at most), then close the producer within a deadline."""
        self._closing = True
        self._wake.set()
        if self._committer is not None:
            if flush_s > 0 and not self._committer.done():
                await asyncio.wait({self._committer}, timeout=flush_s)
            if not self._committer.done():
                self._committer.cancel()
            await asyncio.wait({self._committer}, timeout=CLOSE_TIMEOUT_S)
        if not self.lost.done():
            self._lose_quietly()
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await _within(producer.stop(), CLOSE_TIMEOUT_S)

    def _lose_quietly(self) -> None:
        reason = ProducerLost(f"the log of partition {self.partition} was closed")
        self.lost.set_result(reason)
        for _, future, _ in self._queue:
            if not future.done():
                future.set_exception(reason)
        self._queue.clear()
        self._room.set()


def _watched(future: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """The first failure of a transaction ends it; those of its other batches have been seen then."""
    future.add_done_callback(_retrieve)
    return future


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the outcome as seen: whoever submitted may have gone with the shard."""
    if not future.cancelled():
        future.exception()


def _kind(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


async def _within(work: Any, seconds: float) -> None:
    """Await something that may hang or fail while it goes away; what it says then is of no use."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except Exception as error:
        log.debug("closing took too long or failed: %s", _kind(error))
