"""Ways in which a mail synchroniser could be broken. Each patches one thing, as a plausible mistake would have it."""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

import msgspec
from aiokafka.consumer.group_coordinator import GroupCoordinator
from pyroaring import BitMap

from streams.agents import membership
from streams.contracts import mailbox as events
from streams.imap import connection as imap_connection
from streams.imap.credentials import Secret
from streams.projection import fold as projection_fold
from streams.projection import tables
from streams.settings import Settings
from streams.sync import log as shard_log
from streams.sync import moves, passes, state

REJOINS_AFTER_S: Final = 8.0
"""How long a sleeper stays away from its group after it woke: it fences, restores and writes meanwhile."""

Scene = Literal["routine", "epoch", "pause", "refusal", "sleeper", "restart", "command"]


@dataclass(frozen=True, slots=True)
class Way:
    """One sabotage: what it does, the scene in which it shows, and the rules of which one at least must be broken."""

    about: str
    apply: Callable[[], None]
    rules: frozenset[str]
    scene: Scene = "routine"


def _patch(owner: Any, name: str, replacement: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: this sabotage breaks nothing any more"
    setattr(owner, name, replacement)


def _every(number: int) -> Callable[[], bool]:
    """True each `number`th time."""
    count = 0

    def due() -> bool:
        nonlocal count
        count += 1
        return count % number == 0

    return due


def _skip_a_chunk() -> None:
    original, due = shard_log.ShardLog.submit, _every(3)

    def submit(self: Any, batch: shard_log.Batch) -> Any:
        if any(record.topic.endswith("mailbox.changes") for record in batch.records) and due():
            batch = replace(batch, records=[])
        return original(self, batch)

    _patch(shard_log.ShardLog, "submit", submit)


def _emit_without(kind: type[events.Change], number: int) -> None:
    original, due = state.AccountState.emit, _every(number)

    def emit(self: Any, told: type[events.Change], **fields: Any) -> None:
        if not (told is kind and due()):
            original(self, told, **fields)

    _patch(state.AccountState, "emit", emit)


def _advance_the_cursor_early() -> None:
    _emit_without(events.MessageAdded, 5)


def _lose_flag_changes() -> None:
    _emit_without(events.MessageFlagsChanged, 2)


def _double_an_event() -> None:
    original, due = state.AccountState.emit, _every(7)

    def emit(self: Any, told: type[events.Change], **fields: Any) -> None:
        original(self, told, **fields)
        if told is events.MessageAdded and due():
            original(self, told, **fields)

    _patch(state.AccountState, "emit", emit)


def _lose_references() -> None:
    original = state.AccountState.emit

    def emit(self: Any, told: type[events.Change], **fields: Any) -> None:
        if told is events.MessageAdded:
            fields["headers"] = msgspec.structs.replace(fields["headers"], in_reply_to=(), references=())
        original(self, told, **fields)

    _patch(state.AccountState, "emit", emit)


def _flicker_flags() -> None:
    """As of two connections of which the slower one is believed last, until the next look."""
    original = state.AccountState.emit

    def emit(self: Any, told: type[events.Change], **fields: Any) -> None:
        original(self, told, **fields)
        if told is events.MessageFlagsChanged:
            before = tuple(sorted((set(fields["flags"]) - set(fields["added"])) | set(fields["removed"])))
            original(self, told, **{**fields, "flags": before, "added": fields["removed"], "removed": fields["added"]})
            original(self, told, **fields)

    _patch(state.AccountState, "emit", emit)


def _lose_ids_in_rows() -> None:
    original = projection_fold.message_row

    def message_row(event: events.MessageAdded, *, cleaned: bool = False) -> Any:
        return msgspec.structs.replace(original(event, cleaned=cleaned), internet_message_id=None)

    _patch(projection_fold, "message_row", message_row)


def _write_without_fencing() -> None:
    original = Settings.transactional_id

    def transactional_id(self: Settings, lane: str, partition: int) -> str:
        return f"{original(self, lane, partition)}-{self.WORKER_NAME}"

    _patch(Settings, "transactional_id", transactional_id)


def _drop_removals() -> None:
    original = moves.HeldRemovals.hold

    def hold(self: Any, box: Any, uids: BitMap, epoch: int | None = None) -> None:
        original(self, box, uids - BitMap(uids[-1:]) if uids else uids, epoch)
        for uid in uids[-1:]:
            box.drop(uid)

    _patch(moves.HeldRemovals, "hold", hold)


def _ignore_uidvalidity() -> None:
    async def reset(context: Any, session: Any, box: Any, selected: Any, reason: str) -> None:
        return None

    _patch(passes, "reset", reset)


def _swallow_projector_errors() -> None:
    original, due = tables._put, _every(4)

    async def put(connection: Any, query: str, rows: Any) -> None:
        rows = list(rows)
        await original(connection, query, rows[:-1] if len(rows) > 1 and due() else rows)

    _patch(tables, "_put", put)
    apply = tables._apply
    skip = _every(3)

    async def apply_some(connection: Any, fold: Any) -> None:
        if not skip():
            await apply(connection, fold)

    _patch(tables, "_apply", apply_some)


def _leak_a_password() -> None:
    original = Secret.reveal

    def reveal(self: Secret) -> str:
        text = original(self)
        sys.stderr.write(f"AUTHENTICATE {base64.b64encode(b'user' + text.encode()).decode()}\n")
        return text

    _patch(Secret, "reveal", reveal)


def _leak_to_disk() -> None:
    original = Secret.reveal

    def reveal(self: Secret) -> str:
        text = original(self)
        Path("last-login").write_text(text)  # in the directory of the worker's data
        return text

    _patch(Secret, "reveal", reveal)


def _ignore_failed_sends() -> None:
    original = shard_log.ShardLog._send

    async def swallowed(future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        except Exception:
            return SimpleNamespace(offset=0)

    async def send(self: Any, *arguments: Any) -> Any:
        sent = await original(self, *arguments)
        return [(topic, count, asyncio.ensure_future(swallowed(future))) for topic, count, future in sent]

    _patch(shard_log.ShardLog, "_send", send)


def _skip_the_proof() -> None:
    async def prove(self: Any) -> None:
        return None

    _patch(membership.AssignmentMembership, "prove", prove)
    _patch(membership.GroupProof, "prove", prove)
    # Not sabotage: the machine sleeps while a file is there, and then is slow to join its group again. Else it is a
    # matter of luck whether it has a new assignment before it writes.
    from tests.rig import sleeper

    rejoin = GroupCoordinator._do_rejoin_group

    async def rejoin_late(self: Any, subscription: Any) -> Any:
        if sleeper.woke:
            await asyncio.sleep(max(0.0, sleeper.woke[-1] + REJOINS_AFTER_S - time.monotonic()))
        return await rejoin(self, subscription)

    _patch(GroupCoordinator, "_do_rejoin_group", rejoin_late)


def _forget_the_mirror() -> None:
    original = shard_log.ShardLog.restore

    async def restore(self: Any) -> int:
        count = await original(self)
        self._store.forget(self.partition)
        return count

    _patch(shard_log.ShardLog, "restore", restore)


def _conclude_twice() -> None:
    original = shard_log.ShardLog.submit

    def submit(self: Any, batch: shard_log.Batch) -> Any:
        again = [r for r in batch.records if r.topic.endswith("command_events") and b'"success"' in (r.value or b"")]
        return original(self, replace(batch, records=[*batch.records, *again]))

    _patch(shard_log.ShardLog, "submit", submit)


def _begin_again() -> None:
    original = shard_log.ShardLog.submit

    def submit(self: Any, batch: shard_log.Batch) -> Any:
        told = [r for r in batch.records if r.topic.endswith("command_events")]
        if any(b'"success"' in (r.value or b"") for r in told):
            again = [replace(r, value=(r.value or b"").replace(b'"success"', b'"started"')) for r in told[-1:]]
            batch = replace(batch, records=[*batch.records, *again])
        return original(self, batch)

    _patch(shard_log.ShardLog, "submit", submit)


def _mark_as_read() -> None:
    """Opens mailboxes for writing and asks for bodies without PEEK."""
    protocol: Any = next(
        each
        for each in vars(imap_connection).values()
        if isinstance(each, type) and "connection_made" in vars(each) and each.__module__ == imap_connection.__name__
    )
    original = protocol.connection_made

    class Changed:
        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            self._transport.write(bytes(data).replace(b"EXAMINE ", b"SELECT ").replace(b"BODY.PEEK[", b"BODY["))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    def connection_made(self: Any, transport: Any) -> None:
        original(self, Changed(transport))

    _patch(protocol, "connection_made", connection_made)


WAYS: Final[dict[str, Way]] = {
    "nothing": Way("nothing at all: the product as it is", lambda: None, frozenset()),
    "skip-chunk": Way("a batch goes out without its events", _skip_a_chunk, frozenset({"sequence_gap"})),
    "cursor-early": Way(
        "a message is taken for told that was not", _advance_the_cursor_early, frozenset({"message_missing_in_log"})
    ),
    "double-event": Way("an event is told twice", _double_an_event, frozenset({"place_twice"})),
    "drop-removal": Way("one removal of each answer is dropped", _drop_removals, frozenset({"message_only_in_log"})),
    "lose-flags": Way("every other flag change is dropped", _lose_flag_changes, frozenset({"flags"})),
    "ignore-uidvalidity": Way(
        "a new epoch is ignored", _ignore_uidvalidity, frozenset({"uidvalidity", "other_epoch"}), "epoch"
    ),
    "no-fence": Way(
        "each worker has a transactional id of its own",
        _write_without_fencing,
        frozenset({"sequence_repeated", "writers_interleave", "place_twice"}),
        "pause",
    ),
    "skip-proof": Way(
        "a fence counts without proof of membership", _skip_the_proof, frozenset({"uninvited_writer"}), "sleeper"
    ),
    "ignore-failed-send": Way(
        "a batch that the broker refused is committed all the same",
        _ignore_failed_sends,
        frozenset({"sequence_gap", "message_missing_in_log"}),
        "refusal",
    ),
    "forget-mirror": Way(
        "a new owner begins from nothing",
        _forget_the_mirror,
        frozenset({"sequence_repeated", "place_twice"}),
        "restart",
    ),
    "swallow-projector-error": Way(
        "rows that failed are passed over", _swallow_projector_errors, frozenset({"database_place", "database_message"})
    ),
    "leak-password": Way("a password is logged in base64", _leak_a_password, frozenset({"secret_leaked"})),
    "conclude-twice": Way("a command is concluded twice", _conclude_twice, frozenset({"conclusions"}), "command"),
    "begin-again": Way(
        "a command begins again after its conclusion", _begin_again, frozenset({"after_conclusion"}), "command"
    ),
    "lose-references": Way("messages are told without their threads", _lose_references, frozenset({"content"})),
    "flicker-flags": Way("flags go back and forth", _flicker_flags, frozenset({"flags_went_back"})),
    "lose-ids-in-rows": Way("rows of messages lack a value", _lose_ids_in_rows, frozenset({"database_content"})),
    "leak-to-disk": Way("a password is left on the disk", _leak_to_disk, frozenset({"secret_leaked"})),
    "mark-as-read": Way("syncing sets \\Seen", _mark_as_read, frozenset({"mail_was_changed", "invented_flags"})),
}
