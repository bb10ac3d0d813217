-- --- task store

-- Times are seconds since 1970, by the database's clock. Traces and types are UTF-8, because texts can't hold the
-- character NUL.

-- No index has what changes while a task that succeeds is begun and briefed: open changes only with its outcome.
-- With room on each page, such changes touch no index.
CREATE TABLE {schema}.tasks (
    app      text COLLATE "C" NOT NULL,
    trace    bytea NOT NULL,
    type     bytea NOT NULL,
    state    text NOT NULL,
    open     boolean NOT NULL,              -- it has not succeeded
    known_at double precision NOT NULL,     -- since when there is this row
    moved_at double precision NOT NULL,     -- when it was queued, begun or ended last
    record   bytea NOT NULL,                -- JSON of Task
    PRIMARY KEY (app, trace)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
-- Those that people look for; most tasks succeed and are in it for a moment only.
CREATE INDEX tasks_open ON {schema}.tasks (app, trace) WHERE open;
CREATE INDEX tasks_known ON {schema}.tasks (app, known_at, trace);

-- Tasks whose messages wait in their records, because their delay is longer than their queue's. Others have no row
-- here.
CREATE TABLE {schema}.delayed_tasks (
    app     text COLLATE "C" NOT NULL,
    trace   bytea NOT NULL,
    send_at double precision NOT NULL,
    PRIMARY KEY (app, trace)
);
CREATE INDEX delayed_tasks_due ON {schema}.delayed_tasks (app, send_at);
