"""The projection's SQL. Table names have no schema: the pool's search path is `mail`, or the fresh copy in a rebuild.

A batch travels as one parameter per column (`unnest`), or, for what is rare, as one JSON parameter. A column that holds
arrays travels as array literals. Positions are locked in key order, so that two writers wait instead of deadlocking.
"""

from __future__ import annotations

from typing import Final

POSITIONS: Final = "SELECT topic, partition, topic_id, next_offset FROM positions WHERE topic = $1"

START_POSITION: Final = """
INSERT INTO positions (topic, partition, topic_id, next_offset) VALUES ($1, $2, $3, $4)
ON CONFLICT (topic, partition) DO NOTHING
"""

LOCK_POSITIONS: Final = """
SELECT p.topic, p.partition, p.topic_id, p.next_offset
FROM positions p JOIN unnest($1::text[], $2::int[]) AS w(topic, partition) USING (topic, partition)
ORDER BY p.topic, p.partition
FOR UPDATE OF p
"""

ADVANCE_POSITIONS: Final = """
UPDATE positions p SET next_offset = w.next_offset, updated_at = now()
FROM unnest($1::text[], $2::int[], $3::bigint[]) AS w(topic, partition, next_offset)
WHERE p.topic = w.topic AND p.partition = w.partition
"""

SEQUENCES: Final = "SELECT account_id::text, sequence FROM accounts WHERE account_id = ANY($1::uuid[])"

UPSERT_ACCOUNTS: Final = """
INSERT INTO accounts AS a (account_id, sequence, changed_at, caught_up_at)
SELECT * FROM json_to_recordset($1::json) AS r(
    account_id uuid, sequence bigint, changed_at timestamptz, caught_up_at timestamptz)
ON CONFLICT (account_id) DO UPDATE SET
    sequence = excluded.sequence,
    changed_at = excluded.changed_at,
    caught_up_at = coalesce(excluded.caught_up_at, a.caught_up_at)
"""

ANALYZE: Final = "ANALYZE accounts, mailboxes, messages, places"

# --- mailboxes -------------------------------------------------------------------------------------------------------

DROP_MAILBOXES: Final = """
WITH gone AS (
    SELECT * FROM unnest($1::uuid[], $2::text[]) AS g(account_id, mailbox_id)
), boxes AS (
    DELETE FROM mailboxes m USING gone g WHERE m.account_id = g.account_id AND m.mailbox_id = g.mailbox_id
), unread AS (
    DELETE FROM unreadable u USING gone g WHERE u.account_id = g.account_id AND u.mailbox_id = g.mailbox_id
)
DELETE FROM places p USING gone g WHERE p.account_id = g.account_id AND p.mailbox_id = g.mailbox_id
RETURNING p.account_id::text, p.message_id
"""

UPSERT_MAILBOXES: Final = """
INSERT INTO mailboxes AS m (account_id, mailbox_id, name, wire_name, delimiter, special_use, selectable, attributes,
    uidvalidity, discovered_at, backfilled_at, backfilled_to, cleaned)
SELECT * FROM json_to_recordset($1::json) AS r(
    account_id uuid, mailbox_id text, name text, wire_name text, delimiter text, special_use text, selectable boolean,
    attributes text[], uidvalidity bigint, discovered_at timestamptz, backfilled_at timestamptz,
    backfilled_to timestamptz, cleaned boolean)
ON CONFLICT (account_id, mailbox_id) DO UPDATE SET
    name = excluded.name,
    wire_name = excluded.wire_name,
    delimiter = excluded.delimiter,
    special_use = excluded.special_use,
    selectable = excluded.selectable,
    attributes = excluded.attributes,
    uidvalidity = coalesce(excluded.uidvalidity, m.uidvalidity),
    cleaned = excluded.cleaned
"""

RENAME_MAILBOXES: Final = """
UPDATE mailboxes m SET name = r.name, wire_name = r.wire_name, delimiter = r.delimiter, special_use = r.special_use,
    selectable = r.selectable, cleaned = r.cleaned
FROM json_to_recordset($1::json) AS r(
    account_id uuid, mailbox_id text, name text, wire_name text, delimiter text, special_use text, selectable boolean,
    cleaned boolean)
WHERE m.account_id = r.account_id AND m.mailbox_id = r.mailbox_id
"""

SET_EPOCHS: Final = """
WITH r AS (
    SELECT * FROM json_to_recordset($1::json) AS r(account_id uuid, mailbox_id text, uidvalidity bigint)
), unread AS (
    DELETE FROM unreadable u USING r
    WHERE u.account_id = r.account_id AND u.mailbox_id = r.mailbox_id AND u.uidvalidity <> r.uidvalidity
)
UPDATE mailboxes m SET uidvalidity = r.uidvalidity FROM r
WHERE m.account_id = r.account_id AND m.mailbox_id = r.mailbox_id AND m.uidvalidity IS DISTINCT FROM r.uidvalidity
"""

SET_BACKFILLED: Final = """
UPDATE mailboxes m SET backfilled_at = r.backfilled_at, backfilled_to = r.backfilled_to
FROM json_to_recordset($1::json) AS r(
    account_id uuid, mailbox_id text, backfilled_at timestamptz, backfilled_to timestamptz)
WHERE m.account_id = r.account_id AND m.mailbox_id = r.mailbox_id
"""

# --- messages and places ---------------------------------------------------------------------------------------------

# `merged` in fold.py says the same of two events in one batch.
UPSERT_MESSAGES: Final = """
INSERT INTO messages AS m (account_id, message_id, thread_id, subject, from_name, from_address, sent_at, sort_at, size,
    internet_message_id, in_reply_to, "references", headers, attachments, preview, defects, truncated, cleaned,
    first_seen_at)
SELECT account_id, message_id, thread_id, subject, from_name, from_address, sent_at, sort_at, size,
    internet_message_id, in_reply_to::text[], "references"::text[], headers, attachments, preview, defects::text[],
    truncated, cleaned, first_seen_at
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[],
    $8::timestamptz[], $9::bigint[], $10::text[], $11::text[], $12::text[], $13::jsonb[], $14::jsonb[], $15::text[],
    $16::text[], $17::boolean[], $18::boolean[], $19::timestamptz[])
    AS r(account_id, message_id, thread_id, subject, from_name, from_address, sent_at, sort_at, size,
    internet_message_id, in_reply_to, "references", headers, attachments, preview, defects, truncated, cleaned,
    first_seen_at)
ON CONFLICT (account_id, message_id) DO UPDATE SET
    thread_id = coalesce(excluded.thread_id, m.thread_id),
    subject = excluded.subject,
    from_name = excluded.from_name,
    from_address = excluded.from_address,
    sent_at = excluded.sent_at,
    sort_at = CASE WHEN m.truncated THEN excluded.sort_at ELSE m.sort_at END,
    size = coalesce(excluded.size, m.size),
    internet_message_id = excluded.internet_message_id,
    in_reply_to = excluded.in_reply_to,
    "references" = excluded."references",
    headers = excluded.headers,
    attachments = coalesce(excluded.attachments, m.attachments),
    preview = coalesce(excluded.preview, m.preview),
    defects = excluded.defects,
    truncated = excluded.truncated,
    cleaned = excluded.cleaned
WHERE m.truncated OR NOT excluded.truncated
"""

LEAVE_PLACES: Final = """
DELETE FROM places p USING unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::text[])
    AS g(account_id, mailbox_id, uidvalidity, uid, message_id)
WHERE p.account_id = g.account_id AND p.mailbox_id = g.mailbox_id AND p.uidvalidity = g.uidvalidity AND p.uid = g.uid
    AND p.message_id = g.message_id
"""

# A place that gets another message (its UIDs did not hold still): the one before may have lost its last place.
OVERWRITTEN_MESSAGES: Final = """
SELECT p.account_id::text, p.message_id
FROM places p JOIN unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::text[])
    AS g(account_id, mailbox_id, uidvalidity, uid, message_id) USING (account_id, mailbox_id, uidvalidity, uid)
WHERE p.message_id <> g.message_id
"""

UPSERT_PLACES: Final = """
INSERT INTO places AS p (account_id, mailbox_id, uidvalidity, uid, message_id, flags, labels, modseq, sort_at, since)
SELECT r.account_id, r.mailbox_id, r.uidvalidity, r.uid, r.message_id, r.flags::text[], r.labels::text[], r.modseq,
    coalesce(r.sort_at, m.sort_at, r.since), r.since
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[],
    $9::timestamptz[], $10::timestamptz[])
    AS r(account_id, mailbox_id, uidvalidity, uid, message_id, flags, labels, modseq, sort_at, since)
LEFT JOIN messages m ON r.sort_at IS NULL AND m.account_id = r.account_id AND m.message_id = r.message_id
ON CONFLICT (account_id, mailbox_id, uidvalidity, uid) DO UPDATE SET
    message_id = excluded.message_id,
    flags = excluded.flags,
    labels = excluded.labels,
    modseq = excluded.modseq,
    sort_at = excluded.sort_at,
    since = excluded.since
"""

SET_FLAGS: Final = """
UPDATE places p SET flags = r.flags::text[], labels = coalesce(r.labels::text[], p.labels),
    modseq = coalesce(r.modseq, p.modseq)
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[])
    AS r(account_id, mailbox_id, uidvalidity, uid, message_id, flags, labels, modseq)
WHERE p.account_id = r.account_id AND p.mailbox_id = r.mailbox_id AND p.uidvalidity = r.uidvalidity AND p.uid = r.uid
"""

DROP_ORPHANS: Final = """
DELETE FROM messages m USING unnest($1::uuid[], $2::text[]) AS g(account_id, message_id)
WHERE m.account_id = g.account_id AND m.message_id = g.message_id
    AND NOT EXISTS (SELECT FROM places p WHERE p.account_id = m.account_id AND p.message_id = m.message_id)
"""

READABLE_AGAIN: Final = """
DELETE FROM unreadable u USING unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[])
    AS g(account_id, mailbox_id, uidvalidity, uid)
WHERE u.account_id = g.account_id AND u.mailbox_id = g.mailbox_id AND u.uidvalidity = g.uidvalidity AND u.uid = g.uid
"""

UPSERT_UNREADABLE: Final = """
INSERT INTO unreadable (account_id, mailbox_id, uidvalidity, uid, reason, attempts, at)
SELECT * FROM json_to_recordset($1::json) AS r(
    account_id uuid, mailbox_id text, uidvalidity bigint, uid bigint, reason text, attempts integer, at timestamptz)
ON CONFLICT (account_id, mailbox_id, uidvalidity, uid) DO UPDATE SET
    reason = excluded.reason, attempts = excluded.attempts, at = excluded.at
"""

# --- status and tiers ------------------------------------------------------------------------------------------------

FORGET_STATUS: Final = "DELETE FROM sync_status WHERE account_id = ANY($1::uuid[])"

UPSERT_STATUS: Final = """
INSERT INTO sync_status (account_id, phase, since, at, tier, worker, error_code, error_message, error_mailbox, error_at,
    retry_at, last_sync_at, next_poll_at, mailboxes, messages, backfill_remaining, newest_mail_at, partition,
    tier_reason, heat_until, set_aside)
SELECT * FROM json_to_recordset($1::json) AS r(
    account_id uuid, phase text, since timestamptz, at timestamptz, tier text, worker text, error_code text,
    error_message text, error_mailbox text, error_at timestamptz, retry_at timestamptz, last_sync_at timestamptz,
    next_poll_at timestamptz, mailboxes bigint, messages bigint, backfill_remaining bigint, newest_mail_at timestamptz,
    partition integer, tier_reason text, heat_until timestamptz, set_aside jsonb)
ON CONFLICT (account_id) DO UPDATE SET
    phase = excluded.phase, since = excluded.since, at = excluded.at, tier = excluded.tier, worker = excluded.worker,
    error_code = excluded.error_code, error_message = excluded.error_message, error_mailbox = excluded.error_mailbox,
    error_at = excluded.error_at, retry_at = excluded.retry_at, last_sync_at = excluded.last_sync_at,
    next_poll_at = excluded.next_poll_at, mailboxes = excluded.mailboxes, messages = excluded.messages,
    backfill_remaining = excluded.backfill_remaining, newest_mail_at = excluded.newest_mail_at,
    partition = excluded.partition, tier_reason = excluded.tier_reason, heat_until = excluded.heat_until,
    set_aside = excluded.set_aside
"""

FORGET_TIERS: Final = "DELETE FROM tiers WHERE account_id = ANY($1::uuid[])"

UPSERT_TIERS: Final = """
INSERT INTO tiers (account_id, tier, previous, reason, at)
SELECT * FROM json_to_recordset($1::json) AS r(
    account_id uuid, tier text, previous text, reason text, at timestamptz)
ON CONFLICT (account_id) DO UPDATE SET
    tier = excluded.tier, previous = excluded.previous, reason = excluded.reason, at = excluded.at
"""
