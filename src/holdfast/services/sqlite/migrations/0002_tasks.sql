-- Times are wall times.

-- --- task store

CREATE TABLE task_apps (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE tasks (
    id       INTEGER PRIMARY KEY,
    app      INTEGER NOT NULL,
    trace    TEXT NOT NULL,
    type     TEXT NOT NULL,
    state    TEXT NOT NULL,
    known_at REAL NOT NULL,     -- since when there is this row
    moved_at REAL NOT NULL,     -- when it was queued, begun or ended last
    record   TEXT NOT NULL,     -- JSON of Task
    UNIQUE (app, trace)
);
-- Those that people look for; most tasks succeed and are in it for a moment only.
CREATE INDEX tasks_open ON tasks (app, state, trace) WHERE state <> 'succeed';

CREATE TABLE task_counts (
    app   INTEGER NOT NULL,
    type  TEXT NOT NULL,
    state TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (app, type, state)
) WITHOUT ROWID;

-- --- registry

CREATE TABLE documents (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    body    BLOB NOT NULL
) WITHOUT ROWID;

-- One row: the version given last. Versions don't come twice though a document that is dropped leaves no row.
CREATE TABLE document_versions (
    last INTEGER NOT NULL
);
INSERT INTO document_versions VALUES (0);
