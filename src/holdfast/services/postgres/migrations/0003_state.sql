-- --- state store
-- Times are wall times of the server, in seconds.

-- Every key that was ever opened: these rows never change, and make sure that each has one checkpoint.
CREATE TABLE {schema}.keys (
    id  bigint GENERATED ALWAYS AS IDENTITY,
    key text COLLATE "C" PRIMARY KEY
);

-- While somebody holds a snapshot, old versions of a row can't be removed, and who looks for the row by key walks
-- over them all, as a unique index does at each new version. So a row is found by its place (ctid) where that is
-- known, and no index here is unique, or on what most commits change.
CREATE TABLE {schema}.checkpoints (
    id           bigint NOT NULL,                      -- of its key
    key          text COLLATE "C" NOT NULL,
    epoch        bigint NOT NULL,
    number       bigint NOT NULL DEFAULT 0,
    at           double precision NOT NULL DEFAULT 0,
    due          double precision NOT NULL DEFAULT 0,  -- 0: never
    pending      integer NOT NULL DEFAULT 0,           -- effects
    effects_from bigint NOT NULL DEFAULT 0,            -- the commit that may have added the oldest of them
    recents_from bigint NOT NULL DEFAULT 0,            -- the commit with the oldest identities that are kept
    record       bytea NOT NULL,                       -- JSON of what only the ledger reads
    timers       bytea NOT NULL DEFAULT '',            -- JSON; '' for none
    state        bytea
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX checkpoints_by_key ON {schema}.checkpoints (key);
CREATE INDEX checkpoints_due ON {schema}.checkpoints (due) WHERE due > 0;
ALTER TABLE {schema}.checkpoints ALTER COLUMN state SET STORAGE EXTERNAL;

-- The new identities of one commit. Those that the window has left behind are removed now and then.
CREATE TABLE {schema}.recents (
    checkpoint bigint NOT NULL,
    number     bigint NOT NULL,
    count      integer NOT NULL,
    names      bytea NOT NULL,                         -- JSON, oldest first
    PRIMARY KEY (checkpoint, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Pending effects.
CREATE TABLE {schema}.effects (
    checkpoint bigint NOT NULL,
    number     bigint NOT NULL,                        -- of the commit that added it
    place      integer NOT NULL,                       -- among the effects of that commit
    id         bytea NOT NULL,
    record     bytea NOT NULL,                         -- msgpack of Effect
    refused    bytea                                   -- why its target doesn't take it
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX effects_in_order ON {schema}.effects (checkpoint, number, place);
CREATE INDEX effects_by_id ON {schema}.effects (checkpoint, id);

-- Cursors grow in the order of commits. A commit takes them under the lock of the log.
CREATE TABLE {schema}.results (
    cursor bigint PRIMARY KEY,
    stream text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    name   bytea NOT NULL,
    epoch  bigint NOT NULL,
    at     double precision NOT NULL,
    body   bytea NOT NULL
) WITH (autovacuum_vacuum_cost_delay = 0);
CREATE INDEX results_of_stream ON {schema}.results (stream, cursor);
CREATE INDEX results_by_name ON {schema}.results (key, name);

-- One row: the last cursor of which the result has expired.
CREATE TABLE {schema}.expired_results (
    last bigint NOT NULL
);
INSERT INTO {schema}.expired_results VALUES (0);
