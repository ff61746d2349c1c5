"""The projection: what the log adds up to. A rebuild makes these tables anew with `LIKE ... INCLUDING ALL`.

Indexes carry the names PostgreSQL chooses, since the copies of a rebuild get those too.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = (
    "CREATE SCHEMA mail",
    """
    CREATE TABLE mail.positions (
        topic       text        NOT NULL,
        partition   integer     NOT NULL,
        topic_id    uuid        NOT NULL,
        next_offset bigint      NOT NULL CHECK (next_offset >= 0),
        updated_at  timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (topic, partition)
    )
    """,
    """
    CREATE TABLE mail.accounts (
        account_id   uuid        PRIMARY KEY,
        sequence     bigint      NOT NULL,
        changed_at   timestamptz NOT NULL,
        caught_up_at timestamptz
    )
    """,
    """
    CREATE TABLE mail.mailboxes (
        account_id    uuid        NOT NULL,
        mailbox_id    text        NOT NULL,
        name          text        NOT NULL,
        wire_name     text        NOT NULL,
        delimiter     text,
        special_use   text,
        selectable    boolean     NOT NULL,
        attributes    text[]      NOT NULL,
        uidvalidity   bigint,
        discovered_at timestamptz NOT NULL,
        backfilled_at timestamptz,
        backfilled_to timestamptz,
        cleaned       boolean     NOT NULL,
        PRIMARY KEY (account_id, mailbox_id)
    )
    """,
    """
    CREATE TABLE mail.messages (
        account_id          uuid        NOT NULL,
        message_id          text        NOT NULL,
        thread_id           text,
        subject             text,
        from_name           text,
        from_address        text,
        sent_at             timestamptz,
        sort_at             timestamptz NOT NULL,
        size                bigint,
        internet_message_id text,
        in_reply_to         text[]      NOT NULL,
        "references"        text[]      NOT NULL,
        headers             jsonb       NOT NULL,
        attachments         jsonb,
        preview             text,
        defects             text[]      NOT NULL,
        truncated           boolean     NOT NULL,
        cleaned             boolean     NOT NULL,
        first_seen_at       timestamptz NOT NULL,
        PRIMARY KEY (account_id, message_id)
    )
    """,
    "CREATE INDEX ON mail.messages (account_id, thread_id) WHERE thread_id IS NOT NULL",
    "CREATE INDEX ON mail.messages (account_id, internet_message_id) WHERE internet_message_id IS NOT NULL",
    "CREATE INDEX ON mail.messages (account_id, lower(from_address), sort_at DESC)",
    """
    CREATE TABLE mail.places (
        account_id  uuid        NOT NULL,
        mailbox_id  text        NOT NULL,
        uidvalidity bigint      NOT NULL,
        uid         bigint      NOT NULL,
        message_id  text        NOT NULL,
        flags       text[]      NOT NULL,
        labels      text[],
        modseq      bigint,
        sort_at     timestamptz NOT NULL,
        since       timestamptz NOT NULL,
        PRIMARY KEY (account_id, mailbox_id, uidvalidity, uid)
    )
    """,
    "CREATE INDEX ON mail.places (account_id, mailbox_id, sort_at DESC, uid DESC)",
    "CREATE INDEX ON mail.places (account_id, message_id)",
    """
    CREATE TABLE mail.unreadable (
        account_id  uuid        NOT NULL,
        mailbox_id  text        NOT NULL,
        uidvalidity bigint      NOT NULL,
        uid         bigint      NOT NULL,
        reason      text        NOT NULL,
        attempts    integer     NOT NULL,
        at          timestamptz NOT NULL,
        PRIMARY KEY (account_id, mailbox_id, uidvalidity, uid)
    )
    """,
    """
    CREATE TABLE mail.sync_status (
        account_id    uuid        PRIMARY KEY,
        phase         text        NOT NULL,
        since         timestamptz NOT NULL,
        at            timestamptz NOT NULL,
        tier          text,
        worker        text,
        error_code    text,
        error_message text,
        error_mailbox text,
        error_at      timestamptz,
        retry_at      timestamptz,
        last_sync_at  timestamptz,
        next_poll_at  timestamptz,
        mailboxes     bigint,
        messages      bigint,
        backfill_remaining bigint,
        newest_mail_at timestamptz
    )
    """,
    "CREATE INDEX ON mail.sync_status (phase)",
    """
    CREATE TABLE mail.tiers (
        account_id uuid        PRIMARY KEY,
        tier       text        NOT NULL,
        previous   text,
        reason     text        NOT NULL,
        at         timestamptz NOT NULL
    )
    """,
    "COMMENT ON SCHEMA mail IS 'Projection of mailbox.changes: read it freely, write nothing, it can be rebuilt'",
    "COMMENT ON TABLE mail.messages IS 'A message lives while it has a place'",
    r"COMMENT ON TABLE mail.places IS 'Where messages are. \Deleted is a flag here; hide such places in the view'",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP SCHEMA mail CASCADE")
