"""Writes batches into PostgreSQL.

Invariant: rows and positions change in one transaction, under locks on the positions' rows, and only when the batch
begins exactly where its row says. So each event counts once, whoever crashes, and a projector that lost its partitions
without noticing (a zombie) finds the row moved and writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from streams.contracts.account import AccountSyncStatus, AccountTierChanged
from streams.contracts.mailbox import MessageAdded, MessageHeaders
from streams.directory.postgres import open_pool, translated
from streams.projection import columns
from streams.projection import queries as q
from streams.projection.batch import (
    Outcome,
    Position,
    Slice,
    Source,
    UnprojectableEvent,
    WrongTopic,
    in_sequence,
)
from streams.projection.decoding import Decoded
from streams.projection.fold import Fold
from streams.projection.rows import FlagsRow, GoneRow, MessageRef, PlaceRow, storable

SCHEMA: Final = "mail"
_LOCK_TIMEOUT_MS: Final = 15_000
_SLEEPER_TIMEOUT_MS: Final = 10_000
_ANALYZE_AFTER: Final = (2_000, 20_000, 200_000)
"""Events after which the planner is given statistics. An empty table looks the same through every index, and a plan
made then is kept: look-ups by the wrong index cost 20 times as much. Later autovacuum sees to it."""

_WORTH_DIVIDING: Final = 500
_ROWS_AT_ONCE: Final = 500
_FOLDED_AT_ONCE: Final = 250  # events between two turns of the event loop: about 2 ms

# PostgreSQL refuses the data itself: class 22 (data exception), 23 (constraint), 54 (a limit of the program).
_REFUSED: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)

R = TypeVar("R")

_JSON: Final = msgspec.json.Encoder()


# Every statement looks up a few thousand rows by key. Plans are made when tables are young and never analysed, and a
# plan that reads a whole table once is a plan that reads it at every batch: only look-ups are left to the planner.
# A projector that sleeps in the middle of a transaction holds its positions: PostgreSQL ends that session.
_SESSION: Final = {
    "lock_timeout": str(_LOCK_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": str(_SLEEPER_TIMEOUT_MS),
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}


async def open_projection_pool(dsn: str, size: int, *, schema: str = SCHEMA, durable: bool = True) -> Any:
    """A pool whose unqualified names are those of `schema`. Without `durable` a crash may lose the last commits."""
    commit = "on" if durable else "off"
    return await open_pool(dsn, size, settings={**_SESSION, "search_path": schema, "synchronous_commit": commit})


class Tables:
    """The projection's tables. Methods raise `ServiceUnavailable` while PostgreSQL is down."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._events = 0

    # --- positions -------------------------------------------------------------------------------------------------
    async def positions(self, topic: str) -> dict[int, Position]:
        """Positions of a topic's partitions, as far as there are any."""
        with translated("reading positions"):
            rows = await self._pool.fetch(q.POSITIONS, topic)
        return {row["partition"]: Position(_uuid(row["topic_id"]), row["next_offset"]) for row in rows}

    async def start_at(self, source: Source, position: Position) -> None:
        """Make the first position of a partition; one that is there stays."""
        with translated("storing a position"):
            await self._pool.execute(
                q.START_POSITION, source.topic, source.partition, position.topic_id, position.next_offset
            )

    # --- batches ---------------------------------------------------------------------------------------------------
    async def write(self, slices: Sequence[Slice]) -> Outcome:
        """Write slices and their positions, small batches in one transaction and large ones in two side by side.

        What cannot be written is named in the outcome. When PostgreSQL refuses a value, slices are written again one
        by one and event by event, so that one odd message costs its own details and nothing else (case 85).
        """
        with translated("writing a batch"):
            written = await asyncio.gather(*map(self._write_part, _side_by_side(slices)), return_exceptions=True)
            outcome = Outcome()
            for part in written:
                if isinstance(part, BaseException):
                    raise part
                outcome.add(part)
            before, self._events = self._events, self._events + outcome.events
            if any(before < threshold <= self._events for threshold in _ANALYZE_AFTER):
                await self._pool.execute(q.ANALYZE)
        return outcome

    async def _write_part(self, slices: Sequence[Slice]) -> Outcome:
        try:
            async with self._pool.acquire() as connection:
                return await self._write(connection, slices, careful=False)
        except _REFUSED:
            return await self._write_singly(slices)

    async def _write_singly(self, slices: Sequence[Slice]) -> Outcome:
        whole = Outcome()
        for piece in slices:
            try:
                async with self._pool.acquire() as connection:
                    outcome = await self._write(connection, [piece], careful=True)
            except _REFUSED as error:
                outcome = Outcome(
                    failed={piece.source: UnprojectableEvent(f"PostgreSQL refuses: {type(error).__name__}")}
                )
            except UnprojectableEvent as error:
                outcome = Outcome(failed={piece.source: error})
            whole.add(outcome)
        return whole

    async def _write(self, connection: Any, slices: Sequence[Slice], *, careful: bool) -> Outcome:
        outcome = Outcome()
        async with connection.transaction():
            ready = await _lock(connection, slices, outcome)
            events = await _in_sequence(connection, ready, outcome)
            written = [piece for piece in ready if piece.next_offset > piece.start]
            if careful:
                outcome.stubs = await _apply_carefully(connection, events, outcome)
            elif events:
                fold = Fold()
                for first in range(0, len(events), _FOLDED_AT_ONCE):
                    fold.extend(events[first : first + _FOLDED_AT_ONCE])
                    await asyncio.sleep(0)
                await _apply(connection, fold)
                outcome.odd += fold.odd
            await _apply_status(connection, written)
            if written:
                await connection.execute(
                    q.ADVANCE_POSITIONS,
                    [piece.source.topic for piece in written],
                    [piece.source.partition for piece in written],
                    [piece.next_offset for piece in written],
                )
            outcome.events = len(events) + sum(len(piece.statuses) + len(piece.tiers) for piece in written)
        return outcome


def _side_by_side(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Two parts of about the same size when that pays: while PostgreSQL works on one, the other is got ready."""
    if len(slices) < 2 or sum(len(piece.changes) for piece in slices) < _WORTH_DIVIDING:
        return [list(slices)]
    parts: list[list[Slice]] = [[], []]
    sizes = [0, 0]
    for piece in sorted(slices, key=lambda piece: len(piece.changes), reverse=True):
        smaller = 0 if sizes[0] <= sizes[1] else 1
        parts[smaller].append(piece)
        sizes[smaller] += len(piece.changes)
    return parts


async def _lock(connection: Any, slices: Sequence[Slice], outcome: Outcome) -> list[Slice]:
    """Lock the positions; the slices that begin where they should."""
    rows = await connection.fetch(
        q.LOCK_POSITIONS, [piece.source.topic for piece in slices], [piece.source.partition for piece in slices]
    )
    found = {
        Source(row["topic"], row["partition"]): Position(_uuid(row["topic_id"]), row["next_offset"]) for row in rows
    }
    ready = []
    for piece in slices:
        position = found.get(piece.source, Position(piece.topic_id, 0))
        if piece.source in found and position.topic_id != piece.topic_id:
            outcome.failed[piece.source] = WrongTopic(
                f"{piece.source.topic}: the topic is not the one that was projected; run `projection rebuild`"
            )
        elif piece.source not in found or position.next_offset != piece.start:
            outcome.moved[piece.source] = position
        else:
            ready.append(piece)
    return ready


async def _in_sequence(connection: Any, slices: Sequence[Slice], outcome: Outcome) -> list[Decoded]:
    accounts = list({decoded.event.account_id for piece in slices for decoded in piece.changes})
    if not accounts:
        return []
    known: dict[str, int] = dict(await connection.fetch(q.SEQUENCES, accounts))
    events: list[Decoded] = []
    for piece in slices:
        found = in_sequence(piece.changes, known)
        if found.gap is not None:
            outcome.failed[piece.source] = found.gap
            piece.next_offset = piece.offsets[len(found.fresh) + found.repeats]  # the slice ends before the gap
        events += found.fresh
        outcome.repeats += found.repeats
    return events


async def _apply_carefully(connection: Any, events: Iterable[Decoded], outcome: Outcome) -> int:
    stubs = 0
    for decoded in events:
        try:
            await _apply_one(connection, decoded, outcome)
        except _REFUSED as error:
            reason = f"account {decoded.event.account_id}, event {decoded.event.sequence}: {type(error).__name__}"
            if not isinstance(decoded.event, MessageAdded):
                raise UnprojectableEvent(f"PostgreSQL refuses {reason}") from None
            try:
                await _apply_one(connection, Decoded(stub(decoded.event), cleaned=True), outcome)
            except _REFUSED:
                raise UnprojectableEvent(f"PostgreSQL refuses even the stub of {reason}") from None
            stubs += 1
    return stubs


async def _apply_one(connection: Any, decoded: Decoded, outcome: Outcome) -> None:
    fold = Fold()
    fold.add(decoded.event, cleaned=decoded.cleaned)
    async with connection.transaction():  # a savepoint
        await _apply(connection, fold)
    outcome.odd += fold.odd


def stub(event: MessageAdded) -> MessageAdded:
    """The message without anything that its sender chose."""
    return msgspec.structs.replace(
        event,
        headers=MessageHeaders(),
        attachments=None,
        preview=None,
        thread_id=None,
        labels=None,
        flags=tuple(flag for flag in event.flags if flag.isascii() and len(flag) < 100),
        size=storable(event.size),
        defects=("unprojectable",),
        truncated=True,
    )


async def _apply(connection: Any, fold: Fold) -> None:
    """The order matters: see `Fold`."""
    orphans = dict(fold.perhaps_orphaned)
    if fold.dropped:
        refs = list(fold.dropped)
        rows = await connection.fetch(q.DROP_MAILBOXES, [r.account_id for r in refs], [r.mailbox_id for r in refs])
        for part in _parts(rows):  # a folder that is gone may have held hundreds of thousands
            orphans.update((MessageRef(row[0], row[1]), None) for row in part)
            await asyncio.sleep(0)
    await _put(connection, q.UPSERT_MAILBOXES, fold.mailboxes.values())
    await _put(connection, q.RENAME_MAILBOXES, fold.names.values())
    await _put(connection, q.SET_EPOCHS, fold.epochs.values())
    await _put(connection, q.SET_BACKFILLED, fold.backfills.values())

    standing: list[PlaceRow] = []
    flags: list[FlagsRow] = []
    left: list[GoneRow] = []
    for operation in fold.places():
        match operation:
            case PlaceRow():
                standing.append(operation)
            case FlagsRow():
                flags.append(operation)
            case GoneRow():
                left.append(operation)
    if left:
        await connection.execute(q.LEAVE_PLACES, *columns.of_places(left))
    for messages in _parts(list(fold.messages.values())):
        await connection.execute(q.UPSERT_MESSAGES, *columns.of_messages(messages))
    for places in _parts(standing):
        parameters = columns.of_places(places)
        rows = await connection.fetch(q.OVERWRITTEN_MESSAGES, *parameters[:5])
        orphans.update((MessageRef(row[0], row[1]), None) for row in rows)
        await connection.execute(q.UPSERT_PLACES, *parameters)
    for changed in _parts(flags):
        await connection.execute(q.SET_FLAGS, *columns.of_places(changed))
    ended: list[PlaceRow | GoneRow] = [*standing, *left]
    for settled in _parts(ended):
        await connection.execute(q.READABLE_AGAIN, *columns.of_keys(settled))
    await _put(connection, q.UPSERT_UNREADABLE, list(fold.unreadable_rows()))
    for left_over in _parts(list(orphans)):
        accounts, messages_of = [ref.account_id for ref in left_over], [ref.message_id for ref in left_over]
        await connection.execute(q.DROP_ORPHANS, accounts, messages_of)
    await _put(connection, q.UPSERT_ACCOUNTS, fold.accounts.values())


def _parts(rows: Sequence[R]) -> Iterator[Sequence[R]]:
    """Rows of one statement: turning them into parameters holds the event loop, about 4 ms for so many."""
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        yield rows[first : first + _ROWS_AT_ONCE]


async def _put(connection: Any, query: str, rows: Iterable[msgspec.Struct]) -> None:
    if rows := list(rows):
        await connection.execute(query, _JSON.encode(rows).decode())


async def _apply_status(connection: Any, slices: Sequence[Slice]) -> None:
    statuses: dict[str, AccountSyncStatus | None] = {}
    tiers: dict[str, AccountTierChanged | None] = {}
    for piece in slices:
        statuses |= piece.statuses
        tiers |= piece.tiers
    if forgotten := [account for account, status in statuses.items() if status is None]:
        await connection.execute(q.FORGET_STATUS, forgotten)
    if rows := [_status_columns(status) for status in statuses.values() if status is not None]:
        await connection.execute(q.UPSERT_STATUS, _JSON.encode(rows).decode())
    if forgotten := [account for account, tier in tiers.items() if tier is None]:
        await connection.execute(q.FORGET_TIERS, forgotten)
    await _put(connection, q.UPSERT_TIERS, [tier for tier in tiers.values() if tier is not None])


def _status_columns(status: AccountSyncStatus) -> dict[str, Any]:
    columns = msgspec.structs.asdict(status)
    error = columns.pop("error")
    if error is not None:
        columns |= {
            "error_code": error.code,
            "error_message": error.message,
            "error_mailbox": error.mailbox,
            "error_at": error.at,
        }
    for name in ("mailboxes", "messages", "backfill_remaining"):
        columns[name] = storable(columns[name])
    return columns


def _uuid(value: Any) -> UUID:
    return UUID(bytes=value.bytes)  # asyncpg has a UUID class of its own
