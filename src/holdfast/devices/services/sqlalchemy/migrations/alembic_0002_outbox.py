"""Pauses and cancellations of Holdfast's outbox, and commands that are added in plain SQL."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from holdfast.devices.services.sqlalchemy.migrations import dialect_of, steps

revision = "holdfast_outbox_0002"
down_revision = "holdfast_outbox_0001"
branch_labels = None
depends_on = None

INDEXES = ("command_device", "command_failed", "command_key")
TABLES = ("cancel", "pause", "setting")
FUNCTIONS = {
    "postgresql": (
        "FUNCTION holdfast_outbox_add(text, text, text, text, text, int, float8, float8, text)",
        "FUNCTION holdfast_outbox_add(text, text, bytea, text, text, int, float8, float8, text)",
        "FUNCTION holdfast_outbox_crc32(text)",
    ),
    "sqlite": ("VIEW holdfast_outbox_add", "VIEW holdfast_outbox_newest"),
}


def upgrade() -> None:
    """Make what is new."""
    for step in steps(2, op.get_bind()):
        op.execute(step)


def downgrade() -> None:
    """Drop it; pauses end, and what was to be cancelled is not."""
    for function in FUNCTIONS[dialect_of(op.get_bind())]:
        op.execute(text(f"DROP {function}"))
    for index in INDEXES:
        op.drop_index(f"holdfast_outbox_{index}", "holdfast_outbox_command")
    for table in TABLES:
        op.drop_table(f"holdfast_outbox_{table}")
