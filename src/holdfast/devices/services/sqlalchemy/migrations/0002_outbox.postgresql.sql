-- Pauses, cancellations, and commands that are added in plain SQL.

CREATE TABLE IF NOT EXISTS holdfast_outbox_cancel (
    id BIGSERIAL NOT NULL,
    outbox VARCHAR(64) NOT NULL,
    shard INTEGER NOT NULL,
    device VARCHAR(255) NOT NULL,
    supersede_key VARCHAR(255),
    below BIGINT NOT NULL,
    command BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX IF NOT EXISTS holdfast_outbox_cancel_shard ON holdfast_outbox_cancel (outbox, shard);

CREATE INDEX IF NOT EXISTS holdfast_outbox_command_device ON holdfast_outbox_command (device, outbox, id);

CREATE INDEX IF NOT EXISTS holdfast_outbox_command_failed ON holdfast_outbox_command (state, outbox, id) WHERE state IN ('failed', 'expired');

CREATE INDEX IF NOT EXISTS holdfast_outbox_command_key ON holdfast_outbox_command (supersede_key, outbox, device, id) WHERE supersede_key IS NOT NULL;

CREATE TABLE IF NOT EXISTS holdfast_outbox_pause (
    outbox VARCHAR(64) NOT NULL,
    device VARCHAR(255) NOT NULL,
    paused_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (outbox, device)
);

CREATE TABLE IF NOT EXISTS holdfast_outbox_setting (
    outbox VARCHAR(64) NOT NULL,
    lanes INTEGER NOT NULL,
    expires_in_s DOUBLE PRECISION,
    max_body INTEGER NOT NULL,
    PRIMARY KEY (outbox)
);

-- The checksum of zlib and PNG, by which devices are divided into shards, and keys into lanes.
CREATE OR REPLACE FUNCTION holdfast_outbox_crc32(word text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    bytes bytea := convert_to(word, 'UTF8');
    crc bigint := 4294967295;
BEGIN
    FOR place IN 0 .. length(bytes) - 1 LOOP
        crc := crc # get_byte(bytes, place);
        FOR bit IN 1 .. 8 LOOP
            crc := (crc >> 1) # (CASE WHEN (crc & 1) = 1 THEN 3988292384 ELSE 0 END);
        END LOOP;
    END LOOP;
    RETURN crc # 4294967295;
END
$$;

-- Adds a command, and returns its id, or that of the standing one with its dedupe_key.
-- expires_in_s: NULL for never, -1 for the outbox's own.
CREATE OR REPLACE FUNCTION holdfast_outbox_add(
    outbox text,
    device text,
    body bytea,
    dedupe_key text DEFAULT NULL,
    supersede_key text DEFAULT NULL,
    priority integer DEFAULT 0,
    delay_s double precision DEFAULT 0,
    expires_in_s double precision DEFAULT -1,
    trace_id text DEFAULT ''
) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    given ALIAS FOR holdfast_outbox_add.outbox;
    named ALIAS FOR holdfast_outbox_add.device;
    setting holdfast_outbox_setting%ROWTYPE;
    now_s double precision := extract(epoch FROM clock_timestamp());
    later_s double precision := greatest(coalesce(holdfast_outbox_add.delay_s, 0), 0);
    lasts_s double precision := holdfast_outbox_add.expires_in_s;
    of_shard integer;
    of_lane integer := 0;
    added bigint;
BEGIN
    SELECT * INTO setting FROM holdfast_outbox_setting s WHERE s.outbox = given;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'holdfast: there is no outbox %; a node makes it when it starts', given;
    END IF;
    IF named IS NULL OR named !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' OR named ~ '\n' THEN
        RAISE EXCEPTION 'holdfast: device % must be 1 to 128 letters, digits, _ . : or -, the first a letter, a digit or _', named;
    END IF;
    IF body IS NULL OR length(holdfast_outbox_add.body) > setting.max_body THEN
        RAISE EXCEPTION 'holdfast: the body is missing, or longer than max_body of outbox %, %', given, setting.max_body;
    END IF;
    IF holdfast_outbox_add.dedupe_key = '' OR holdfast_outbox_add.supersede_key = '' THEN
        RAISE EXCEPTION 'holdfast: dedupe_key and supersede_key have 1 to 255 characters, or are NULL';
    END IF;
    SELECT holdfast_outbox_crc32(named) % count(*) INTO of_shard FROM holdfast_outbox_shard s WHERE s.outbox = given;
    IF setting.lanes > 1 AND holdfast_outbox_add.supersede_key IS NOT NULL THEN
        of_lane := holdfast_outbox_crc32(holdfast_outbox_add.supersede_key) % setting.lanes;
    ELSIF setting.lanes > 1 THEN
        of_lane := floor(random() * setting.lanes);
    END IF;
    IF lasts_s = -1 THEN
        lasts_s := setting.expires_in_s;
    END IF;
    LOOP
        INSERT INTO holdfast_outbox_command
            (outbox, device, lane, shard, body, priority, not_before, expires_at, dedupe_key, supersede_key, trace_id, created_at)
        VALUES (
            given, named, of_lane, of_shard, holdfast_outbox_add.body, holdfast_outbox_add.priority,
            CASE WHEN later_s > 0 THEN now_s + later_s ELSE 0 END, now_s + later_s + lasts_s,
            holdfast_outbox_add.dedupe_key, holdfast_outbox_add.supersede_key,
            left(coalesce(holdfast_outbox_add.trace_id, ''), 64), now_s
        )
        ON CONFLICT DO NOTHING RETURNING id INTO added;
        EXIT WHEN added IS NOT NULL;
        SELECT c.id INTO added FROM holdfast_outbox_command c
            WHERE c.outbox = given AND c.device = named AND c.dedupe_key = holdfast_outbox_add.dedupe_key;
        IF added IS NOT NULL THEN
            RETURN added;
        END IF;
    END LOOP;
    INSERT INTO holdfast_outbox_arrival (outbox, shard, device, lane, command, supersede_key)
    VALUES (
        given, of_shard, named, of_lane,
        CASE WHEN holdfast_outbox_add.supersede_key IS NULL THEN 0 ELSE added END,
        holdfast_outbox_add.supersede_key
    );
    PERFORM pg_notify('holdfast_outbox', given);
    RETURN added;
END
$$;

-- The same, of a body that is text.
CREATE OR REPLACE FUNCTION holdfast_outbox_add(
    outbox text,
    device text,
    body text,
    dedupe_key text DEFAULT NULL,
    supersede_key text DEFAULT NULL,
    priority integer DEFAULT 0,
    delay_s double precision DEFAULT 0,
    expires_in_s double precision DEFAULT -1,
    trace_id text DEFAULT ''
) RETURNS bigint
LANGUAGE sql AS $$
    SELECT holdfast_outbox_add($1, $2, convert_to($3, 'UTF8'), $4, $5, $6, $7, $8, $9)
$$;
