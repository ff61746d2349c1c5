"""The status of an account says more: partition, why it has its tier, until when it is heated, what is set aside."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ADD = """
ALTER TABLE mail.sync_status
    ADD COLUMN partition   integer,
    ADD COLUMN tier_reason text,
    ADD COLUMN heat_until  timestamptz,
    ADD COLUMN set_aside   jsonb
"""

REMOVE = """
ALTER TABLE mail.sync_status
    DROP COLUMN partition, DROP COLUMN tier_reason, DROP COLUMN heat_until, DROP COLUMN set_aside
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(REMOVE)
