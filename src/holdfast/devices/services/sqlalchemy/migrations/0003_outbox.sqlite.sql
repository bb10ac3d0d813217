-- One command to many devices is called a rollout.

ALTER TABLE holdfast_outbox_command RENAME COLUMN job TO rollout;

ALTER TABLE holdfast_outbox_archive RENAME COLUMN job TO rollout;

ALTER TABLE holdfast_outbox_job RENAME TO holdfast_outbox_rollout;

DROP INDEX holdfast_outbox_command_job;

CREATE INDEX holdfast_outbox_command_rollout ON holdfast_outbox_command (rollout) WHERE state = 'scheduled' AND rollout IS NOT NULL;
