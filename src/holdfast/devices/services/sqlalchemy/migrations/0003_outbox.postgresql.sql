-- One command to many devices is called a rollout.

ALTER TABLE holdfast_outbox_command RENAME COLUMN job TO rollout;

ALTER TABLE holdfast_outbox_archive RENAME COLUMN job TO rollout;

ALTER TABLE holdfast_outbox_job RENAME TO holdfast_outbox_rollout;

ALTER SEQUENCE holdfast_outbox_job_id_seq RENAME TO holdfast_outbox_rollout_id_seq;

ALTER INDEX holdfast_outbox_job_pkey RENAME TO holdfast_outbox_rollout_pkey;

ALTER INDEX holdfast_outbox_command_job RENAME TO holdfast_outbox_command_rollout;
