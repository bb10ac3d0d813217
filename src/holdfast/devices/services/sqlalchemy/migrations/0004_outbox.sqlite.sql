-- A command has a place in a trace.

ALTER TABLE holdfast_outbox_command ADD COLUMN traceparent VARCHAR(64) DEFAULT '' NOT NULL;

ALTER TABLE holdfast_outbox_archive ADD COLUMN traceparent VARCHAR(64) DEFAULT '' NOT NULL;
