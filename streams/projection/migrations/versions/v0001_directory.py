"""The directory: accounts and credentials. The truth; nothing rebuilds it."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ACCOUNTS = """
CREATE TABLE mailstreams.accounts (
    account_id        uuid        PRIMARY KEY,
    user_id           text        NOT NULL CHECK (length(user_id) BETWEEN 1 AND 200),
    state             text        NOT NULL CHECK (state IN ('live', 'disabled', 'deleted', 'error')),
    reason            text        CHECK (length(reason) <= 500),
    version           bigint      NOT NULL DEFAULT 1,
    host              text        NOT NULL CHECK (length(host) BETWEEN 1 AND 255),
    port              integer     NOT NULL CHECK (port BETWEEN 1 AND 65535),
    tls               text        NOT NULL CHECK (tls IN ('tls', 'starttls', 'plain')),
    username          text        NOT NULL CHECK (length(username) BETWEEN 1 AND 500),
    auth              text        NOT NULL CHECK (auth IN ('password', 'oauth2', 'secret_ref')),
    secret_ref        text        CHECK (length(secret_ref) BETWEEN 1 AND 255),
    credentials_epoch bigint      NOT NULL DEFAULT 1,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    CHECK ((auth = 'secret_ref') = (secret_ref IS NOT NULL))
)
"""

# The same mailbox is added once per user; a removed account does not stand in the way of adding it again.
UNIQUE = """
CREATE UNIQUE INDEX accounts_once ON mailstreams.accounts (user_id, lower(host), port, username)
WHERE state <> 'deleted'
"""

BY_USER = "CREATE INDEX accounts_user ON mailstreams.accounts (user_id)"

CREDENTIALS = """
CREATE TABLE mailstreams.credentials (
    account_id uuid        PRIMARY KEY REFERENCES mailstreams.accounts ON DELETE CASCADE,
    sealed     bytea       NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
)
"""

# The version orders what is announced about an account; no clock does. Nobody sets it by hand.
# Changes of address or credentials count too: a runner's late `error` then loses against a new password.
VERSION_FUNCTION = """
CREATE FUNCTION mailstreams.bump_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.state, NEW.user_id, NEW.host, NEW.port, NEW.tls, NEW.username, NEW.auth, NEW.secret_ref,
        NEW.credentials_epoch)
       IS DISTINCT FROM
       (OLD.state, OLD.user_id, OLD.host, OLD.port, OLD.tls, OLD.username, OLD.auth, OLD.secret_ref,
        OLD.credentials_epoch)
    THEN
        NEW.version := OLD.version + 1;
    ELSE
        NEW.version := OLD.version;
    END IF;
    NEW.updated_at := now();
    RETURN NEW;
END
$$
"""

VERSION_TRIGGER = """
CREATE TRIGGER accounts_version BEFORE UPDATE ON mailstreams.accounts
FOR EACH ROW EXECUTE FUNCTION mailstreams.bump_version()
"""


def upgrade() -> None:
    for statement in (ACCOUNTS, UNIQUE, BY_USER, CREDENTIALS, VERSION_FUNCTION, VERSION_TRIGGER):
        op.execute(statement)


def downgrade() -> None:
    raise RuntimeError("the truth is not dropped by a migration; restore a backup")
