-- Pauses, cancellations, and commands that are added in plain SQL.

CREATE TABLE IF NOT EXISTS holdfast_outbox_cancel (
    id INTEGER NOT NULL,
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
    paused_at DOUBLE NOT NULL,
    PRIMARY KEY (outbox, device)
);

CREATE TABLE IF NOT EXISTS holdfast_outbox_setting (
    outbox VARCHAR(64) NOT NULL,
    lanes INTEGER NOT NULL,
    expires_in_s DOUBLE,
    max_body INTEGER NOT NULL,
    PRIMARY KEY (outbox)
);

-- The checksums of zlib and PNG, by which devices are divided into shards and keys into lanes, of the newest
-- command. SQLite has no exclusive or: a xor b = (a | b) - (a & b). Of nine steps a byte the first brings it in.
CREATE VIEW IF NOT EXISTS holdfast_outbox_newest AS
WITH RECURSIVE
    newest AS (
        SELECT id, outbox, device, supersede_key FROM holdfast_outbox_command ORDER BY id DESC LIMIT 1
    ),
    word (which, digits) AS (
        SELECT 'device', hex(CAST(device AS BLOB)) FROM newest
        UNION ALL SELECT 'key', hex(CAST(supersede_key AS BLOB)) FROM newest WHERE supersede_key IS NOT NULL
    ),
    byte (which, place, value) AS (
        SELECT which, 0, 0 FROM word
        UNION ALL
        SELECT byte.which, place + 1,
            16 * (instr('0123456789ABCDEF', substr(digits, 2 * place + 1, 1)) - 1)
            + instr('0123456789ABCDEF', substr(digits, 2 * place + 2, 1)) - 1
        FROM byte JOIN word ON word.which = byte.which WHERE 2 * place < length(digits)
    ),
    step (which, bytes, n, crc) AS (
        SELECT which, length(digits) / 2, 0, 4294967295 FROM word
        UNION ALL
        SELECT step.which, bytes, n + 1,
            CASE
                WHEN n % 9 = 0 THEN (crc | value) - (crc & value)
                WHEN crc & 1 THEN ((crc >> 1) | 3988292384) - ((crc >> 1) & 3988292384)
                ELSE crc >> 1
            END
        FROM step JOIN byte ON byte.which = step.which AND byte.place = n / 9 + 1
        WHERE n < 9 * bytes
    )
SELECT
    newest.id AS id,
    (SELECT 4294967295 - crc FROM step WHERE which = 'device' AND n = 9 * bytes)
        % (SELECT count(*) FROM holdfast_outbox_shard s WHERE s.outbox = newest.outbox) AS shard,
    coalesce((SELECT 4294967295 - crc FROM step WHERE which = 'key' AND n = 9 * bytes), newest.id)
        % (SELECT lanes FROM holdfast_outbox_setting s WHERE s.outbox = newest.outbox) AS lane
FROM newest;

-- INSERT INTO holdfast_outbox_add (outbox, device, body, …) VALUES (…) adds a command.
-- expires_in_s: missing or -1 for the outbox's own; 0 for never.
CREATE VIEW IF NOT EXISTS holdfast_outbox_add AS
SELECT
    outbox, device, body, dedupe_key, supersede_key, priority, 0.0 AS delay_s, -1.0 AS expires_in_s, trace_id
FROM holdfast_outbox_command;

CREATE TRIGGER IF NOT EXISTS holdfast_outbox_adding INSTEAD OF INSERT ON holdfast_outbox_add
BEGIN
    SELECT RAISE(ABORT, 'holdfast: there is no such outbox; a node makes it when it starts')
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_outbox_setting s WHERE s.outbox = NEW.outbox);
    SELECT RAISE(ABORT, 'holdfast: device must be 1 to 128 letters, digits, _ . : or -, the first a letter, a digit or _')
    WHERE coalesce(
        typeof(NEW.device) <> 'text' OR length(NEW.device) NOT BETWEEN 1 AND 128
        OR instr(NEW.device, char(0)) OR NEW.device GLOB '*[^A-Za-z0-9_.:-]*' OR NEW.device GLOB '[^A-Za-z0-9_]*',
        1
    );
    SELECT RAISE(ABORT, 'holdfast: the body is missing, or longer than max_body of the outbox')
    FROM holdfast_outbox_setting s
    WHERE s.outbox = NEW.outbox
        AND (NEW.body IS NULL OR length(CAST(NEW.body AS BLOB)) > s.max_body);
    SELECT RAISE(ABORT, 'holdfast: dedupe_key and supersede_key have 1 to 255 characters, or are NULL')
    WHERE length(NEW.dedupe_key) NOT BETWEEN 1 AND 255 OR length(NEW.supersede_key) NOT BETWEEN 1 AND 255;
    SELECT RAISE(ABORT, 'holdfast: dedupe_key, supersede_key and trace_id must be text, or NULL')
    WHERE typeof(NEW.dedupe_key) NOT IN ('text', 'null') OR typeof(NEW.supersede_key) NOT IN ('text', 'null')
        OR typeof(NEW.trace_id) NOT IN ('text', 'null');
    SELECT RAISE(ABORT, 'holdfast: priority must be an integer from -2147483648 to 2147483647, or NULL')
    WHERE typeof(NEW.priority) NOT IN ('integer', 'null') OR NEW.priority NOT BETWEEN -2147483648 AND 2147483647;
    INSERT INTO holdfast_outbox_command
        (outbox, device, shard, body, priority, not_before, expires_at, dedupe_key, supersede_key, trace_id, created_at)
    SELECT
        NEW.outbox, NEW.device, -1, CAST(NEW.body AS BLOB), coalesce(NEW.priority, 0),
        CASE WHEN NEW.delay_s > 0 THEN now_s + NEW.delay_s ELSE 0 END,
        now_s + max(coalesce(NEW.delay_s, 0), 0)
            + CASE coalesce(NEW.expires_in_s, -1) WHEN -1 THEN s.expires_in_s WHEN 0 THEN NULL ELSE NEW.expires_in_s END,
        NEW.dedupe_key, NEW.supersede_key, substr(coalesce(NEW.trace_id, ''), 1, 64), now_s
    FROM holdfast_outbox_setting s, (SELECT (julianday('now') - 2440587.5) * 86400.0 AS now_s)
    WHERE s.outbox = NEW.outbox AND NOT EXISTS (
        SELECT 1 FROM holdfast_outbox_command c
        WHERE c.outbox = NEW.outbox AND c.device = NEW.device AND c.dedupe_key = NEW.dedupe_key
    );
    INSERT INTO holdfast_outbox_arrival (outbox, shard, device, lane, command, supersede_key)
    SELECT c.outbox, n.shard, c.device, n.lane, CASE WHEN c.supersede_key IS NULL THEN 0 ELSE c.id END, c.supersede_key
    FROM holdfast_outbox_newest n JOIN holdfast_outbox_command c ON c.id = n.id
    WHERE c.shard = -1;
    UPDATE holdfast_outbox_command
    SET (shard, lane) = (SELECT shard, lane FROM holdfast_outbox_newest)
    WHERE id = (SELECT max(id) FROM holdfast_outbox_command) AND shard = -1;
END;
