"""The outbox of Holdfast. Set ``down_revision`` to the revision that it is to follow."""

from __future__ import annotations

from alembic import op

from holdfast.devices.services.sqlalchemy.migrations import steps

revision = "holdfast_outbox_0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("archive", "arrival", "brief", "command", "cursor", "device", "head", "job", "shard")


def upgrade() -> None:
    """Make the tables."""
    for step in steps(1, op.get_bind()):
        op.execute(step)


def downgrade() -> None:
    """Drop the tables, and all commands in them."""
    for table in TABLES:
        op.drop_table(f"holdfast_outbox_{table}")
