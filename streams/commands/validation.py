"""From a record to a command, or to the reason why it is none (row W13).

Pure. Two steps, since they happen at two times: the envelope is read when the record arrives; whether the command can
still be run is judged when its turn comes, after everything before it of its account has been settled.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from streams.commands.handlers import Handlers, HandlerSpec
from streams.commands.ports import Delivery
from streams.contracts.codec import Decoder, check_sendable
from streams.contracts.commands import Command
from streams.contracts.keys import partition_for
from streams.errors import PoisonRecord

_DECODE: Final[Decoder[Command]] = Decoder(Command)


class Misplaced(msgspec.Struct, frozen=True):
    """A good command on the wrong partition: its producer used another partitioner. It is sent on to the right one."""

    command: Command
    partition: int


class Runnable(msgspec.Struct, frozen=True):
    """A command that can be run now."""

    spec: HandlerSpec
    args: Any


def read_envelope(delivery: Delivery, partitions: int) -> Command | Misplaced:
    """The command in a record. Raises `PoisonRecord` (`not_json`, `schema`, `too_large`, `wrong_key`)."""
    if delivery.value is None:
        raise PoisonRecord("not_json", "the record has no value")
    command = _DECODE(delivery.value)
    # A record without its account's key says nothing about order; and what was concluded about the account's commands
    # is only known in the account's partition.
    if delivery.key != command.account_id.encode():
        raise PoisonRecord("wrong_key", "the record's key is not its account_id")
    partition = _partition_of(command.account_id, partitions)
    if partition != delivery.partition:
        check_sendable(delivery.headers)
        return Misplaced(command, partition)
    return command


@lru_cache(maxsize=65_536)
def _partition_of(account_id: str, partitions: int) -> int:
    """Remembered: murmur2 in Python takes longer than everything else that is done with an envelope."""
    return partition_for(account_id, partitions)


def judge(command: Command, handlers: Handlers, now: datetime) -> Runnable:
    """Whether a command can be run. Raises `PoisonRecord` (`expired`, `unknown_kind`, `schema`)."""
    if command.deadline is not None and command.deadline <= now:
        raise PoisonRecord("expired", f"its deadline was {command.deadline.isoformat()}")
    spec = handlers.get(command.kind)
    if spec is None:
        raise PoisonRecord("unknown_kind", f"no handler for commands of the kind {command.kind[:100]!r}")
    try:
        return Runnable(spec, msgspec.convert(command.args, spec.args))
    except msgspec.ValidationError as error:
        raise PoisonRecord("schema", f"args: {error}") from None
