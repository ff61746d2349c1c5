"""The registry of topics: names, keys, retention. Partition count, prefix and replication come from settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_RECORD_BYTES: Final = 1_048_576
"""Largest record of any topic (value, key and headers). Larger events become flagged stubs before they are sent."""

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as it must exist in Kafka. `retention_ms` None means the broker keeps records for good."""

    name: str
    key: str
    about: str
    compacted: bool = False
    retention_ms: int | None = None
    public: bool = True
    extra: tuple[tuple[str, str], ...] = ()
    dead_letters: bool = field(default=False)

    def config(self) -> dict[str, str]:
        """Topic configuration as Kafka names it; every value explicit, so that broker defaults never matter."""
        config = {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "max.message.bytes": str(MAX_RECORD_BYTES + 65_536),
            # A worker's clock may be wrong: brokers refuse what is of the future, and delete early what seems old.
            "message.timestamp.type": "LogAppendTime",
        }
        if not self.compacted:
            config["retention.ms"] = str(-1 if self.retention_ms is None else self.retention_ms)
        config.update(self.extra)
        return config


STATE_CHANGED: Final = "account.state_changed"
USER_ACTIVE: Final = "user.active"
COMMANDS: Final = "sync.commands"
JOBS: Final = "sync.jobs"
TIER_CHANGED: Final = "account.tier_changed"
SYNC_STATUS: Final = "account.sync_status"
CHANGES: Final = "mailbox.changes"
MIRROR: Final = "mailbox.mirror"
COMMAND_EVENTS: Final = "sync.command_events"
JOB_STATE: Final = "sync.jobs.state"
HEAT: Final = "account.heat"
USER_ACCOUNTS: Final = "user.accounts"

_COMPACT_SMALL: Final = (
    ("segment.bytes", "33554432"),
    ("segment.ms", "600000"),
    ("min.cleanable.dirty.ratio", "0.1"),
)

_BASE: Final = (
    TopicSpec(STATE_CHANGED, "account_id", "the lifecycle of accounts", compacted=True, dead_letters=True),
    TopicSpec(USER_ACTIVE, "user_id", "sessions of users", retention_ms=_DAY_MS, dead_letters=True),
    TopicSpec(
        COMMANDS, "account_id", "commands run by the account's owner", retention_ms=7 * _DAY_MS, dead_letters=True
    ),
    TopicSpec(JOBS, "account_id", "commands that any process may run", retention_ms=7 * _DAY_MS, dead_letters=True),
    TopicSpec(TIER_CHANGED, "account_id", "the tier of each account", compacted=True, extra=_COMPACT_SMALL),
    TopicSpec(SYNC_STATUS, "account_id", "how each account is doing", compacted=True, extra=_COMPACT_SMALL),
    TopicSpec(CHANGES, "account_id", "everything that happened in every mailbox, in order"),
    TopicSpec(
        MIRROR,
        "account_id/what",
        "what is known of each mailbox (binary)",
        compacted=True,
        public=False,
        extra=_COMPACT_SMALL,
    ),
    TopicSpec(COMMAND_EVENTS, "account_id", "what became of each command", retention_ms=7 * _DAY_MS),
    TopicSpec(
        JOB_STATE,
        "account_id/command_id",
        "which jobs have begun and which are concluded (JSON)",
        compacted=True,
        public=False,
        extra=_COMPACT_SMALL,
    ),
    TopicSpec(HEAT, "account_id", "session heat on its way to accounts", retention_ms=_DAY_MS, public=False),
    TopicSpec(USER_ACCOUNTS, "user_id", "which accounts a user has", compacted=True, public=False),
)


def dead_letter_name(topic: str) -> str:
    """Name of the dead-letter topic of `topic` (both without prefix)."""
    return f"{topic}.dlq"


TOPICS: Final[tuple[TopicSpec, ...]] = _BASE + tuple(
    TopicSpec(
        dead_letter_name(t.name),
        "as it came",
        f"records of {t.name} that could not be handled",
        retention_ms=30 * _DAY_MS,
    )
    for t in _BASE
    if t.dead_letters
)
