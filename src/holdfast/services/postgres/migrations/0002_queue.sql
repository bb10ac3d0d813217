-- --- queue

-- Microseconds since 1970.
CREATE FUNCTION {schema}.micros(at timestamptz) RETURNS bigint LANGUAGE sql STABLE
AS $$ SELECT (extract(epoch FROM at) * 1000000)::bigint $$;

CREATE SEQUENCE {schema}.message_numbers;

-- Milliseconds since 2020, and 20 bits of a count. So ids grow about as time does, and a server that has forgotten
-- its last messages in a fail-over gives no id again: an old receipt would be taken for that of another message.
CREATE FUNCTION {schema}.new_message_id() RETURNS bigint LANGUAGE sql VOLATILE
AS $$
    SELECT ((({schema}.micros(clock_timestamp()) / 1000) - 1577836800000) << 20)
        | (nextval('{schema}.message_numbers') & 1048575)
$$;

-- When a message was sent, in milliseconds since 1970.
CREATE FUNCTION {schema}.sent_ms(id bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT (id >> 20) + 1577836800000 $$;

-- A message that was neither delivered nor delayed has no visible_at. The last delivery counts while there is a
-- holder, until the next one.
CREATE TABLE {schema}.messages (
    id         bigint NOT NULL DEFAULT {schema}.new_message_id(),
    visible_at bigint,
    receives   integer NOT NULL DEFAULT 0,
    queue      text COLLATE "C" NOT NULL,
    holder     text COLLATE "C",
    attributes text NOT NULL, -- JSON
    body       bytea NOT NULL,
    PRIMARY KEY (queue, id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX messages_fresh ON {schema}.messages (queue, id) WHERE visible_at IS NULL;
CREATE INDEX messages_due ON {schema}.messages (queue, visible_at, id) WHERE visible_at IS NOT NULL;

-- id and key are UTF-8, because texts can't hold the character NUL.
CREATE TABLE {schema}.dead_letters (
    queue      text COLLATE "C" NOT NULL,
    id         bytea NOT NULL,
    key        bytea NOT NULL,
    at         bigint NOT NULL,
    record     text NOT NULL, -- JSON
    attributes text NOT NULL, -- JSON
    body       bytea NOT NULL,
    PRIMARY KEY (queue, id)
);
ALTER TABLE {schema}.dead_letters ALTER COLUMN body SET STORAGE EXTERNAL;
