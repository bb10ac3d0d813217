-- One row: tells this schema from those of other databases, for messages that are sent at a connection of the caller's.
CREATE TABLE {schema}.identity (
    id uuid NOT NULL
);
INSERT INTO {schema}.identity VALUES (gen_random_uuid());
