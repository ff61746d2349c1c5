"""Control-plane records: an account's life, its user's sessions, its tier and its state of synchronisation."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from streams.contracts.values import Record, Timestamp, Token, Uuid

AccountState = Literal["live", "disabled", "deleted", "error"]
Tier = Literal["hot", "warm", "cold"]
TierReason = Literal["session", "recent_mail", "idle_mail", "no_mail", "budget", "default"]
Phase = Literal["starting", "syncing", "running", "backing_off", "unserved", "stopped"]


class AccountStateChanged(Record, frozen=True, kw_only=True):
    """`account.state_changed`, key account_id. The highest `version` wins; without one, the last to arrive."""

    account_id: Uuid
    user_id: Token
    state: AccountState
    at: Timestamp
    version: Annotated[int, msgspec.Meta(ge=0, le=9223372036854775807)] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class UserActive(Record, frozen=True, kw_only=True):
    """`user.active`, key user_id: the user has a session right now."""

    user_id: Token
    source: Literal["login", "ws_connect", "ws_ping"]
    at: Timestamp


class AccountHeat(Record, frozen=True, kw_only=True):
    """`account.heat` (internal), key account_id: a session keeps this account hot until `until`."""

    account_id: Uuid
    user_id: Token
    until: Timestamp
    at: Timestamp


class UserAccount(Record, frozen=True, kw_only=True):
    """`user.accounts` (internal), key user_id: an account has joined or left a user."""

    user_id: Token
    account_id: Uuid
    member: bool
    version: int | None = None


class AccountTierChanged(Record, frozen=True, kw_only=True):
    """`account.tier_changed`, key account_id, compacted: the tier an owner recorded; its successor inherits it."""

    account_id: Uuid
    tier: Tier
    reason: TierReason
    at: Timestamp
    previous: Tier | None = None


class SyncError(Record, frozen=True, kw_only=True):
    """The last thing that went wrong, safe to show."""

    code: str
    message: str
    at: Timestamp
    mailbox: str | None = None


SET_ASIDE_LIMIT: Final = 20
"""Folders named in a status at most."""


class AccountSyncStatus(Record, frozen=True, kw_only=True):
    """`account.sync_status`, key account_id, compacted: how the account is doing. A tombstone: the account was removed.

    A pass looks at every folder, so `last_sync_at` is that of each folder which is not in `set_aside`.
    """

    account_id: Uuid
    phase: Phase
    since: Timestamp
    at: Timestamp
    tier: Tier | None = None
    worker: str | None = None
    partition: int | None = None
    error: SyncError | None = None
    retry_at: Timestamp | None = None
    mailboxes: int | None = None
    messages: int | None = None
    backfill_remaining: int | None = None
    last_sync_at: Timestamp | None = None
    next_poll_at: Timestamp | None = None
    newest_mail_at: Timestamp | None = None
    tier_reason: TierReason | None = None
    heat_until: Annotated[Timestamp, msgspec.Meta(description="until when a session keeps the account hot")] | None = (
        None
    )
    set_aside: Annotated[
        dict[str, str], msgspec.Meta(max_length=SET_ASIDE_LIMIT, description="folders not followed for now, and why")
    ] = msgspec.field(default_factory=dict)
