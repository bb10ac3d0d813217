"""Commands of Holdfast's outbox have places in traces."""

from __future__ import annotations

from alembic import op

from holdfast.devices.services.sqlalchemy.migrations import steps

revision = "holdfast_outbox_0004"
down_revision = "holdfast_outbox_0003"
branch_labels = None
depends_on = None

TABLES = ("archive", "command")


def upgrade() -> None:
    """Add the columns."""
    for step in steps(4, op.get_bind()):
        op.execute(step)


def downgrade() -> None:
    """Drop them; commands that wait stand in no trace any more."""
    for table in TABLES:
        op.drop_column(f"holdfast_outbox_{table}", "traceparent")
