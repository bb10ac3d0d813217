"""Holdfast's outbox calls a rollout what was a job."""

from __future__ import annotations

from alembic import op

from holdfast.devices.services.sqlalchemy.migrations import dialect_of, steps

revision = "holdfast_outbox_0003"
down_revision = "holdfast_outbox_0002"
branch_labels = None
depends_on = None

BOTH = (
    "ALTER TABLE holdfast_outbox_command RENAME COLUMN rollout TO job",
    "ALTER TABLE holdfast_outbox_archive RENAME COLUMN rollout TO job",
    "ALTER TABLE holdfast_outbox_rollout RENAME TO holdfast_outbox_job",
)
SCHEDULED = " WHERE state = 'scheduled' AND job IS NOT NULL"
BACK = {
    "postgresql": (
        *BOTH,
        "ALTER SEQUENCE holdfast_outbox_rollout_id_seq RENAME TO holdfast_outbox_job_id_seq",
        "ALTER INDEX holdfast_outbox_rollout_pkey RENAME TO holdfast_outbox_job_pkey",
        "ALTER INDEX holdfast_outbox_command_rollout RENAME TO holdfast_outbox_command_job",
    ),
    "sqlite": (
        *BOTH,
        "DROP INDEX holdfast_outbox_command_rollout",
        "CREATE INDEX holdfast_outbox_command_job ON holdfast_outbox_command (job)" + SCHEDULED,
    ),
}


def upgrade() -> None:
    """Rename it."""
    for step in steps(3, op.get_bind()):
        op.execute(step)


def downgrade() -> None:
    """Give it its old name, with all that is in it."""
    for statement in BACK[dialect_of(op.get_bind())]:
        op.execute(statement)
