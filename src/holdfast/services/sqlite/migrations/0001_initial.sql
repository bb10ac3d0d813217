-- Times named *_at are seconds of the host's clock since it booted, but for `at`, which is wall time.

-- One row: which boot those times belong to, and how far wall time was ahead of them then.
CREATE TABLE host (
    boot        TEXT NOT NULL,
    wall_offset REAL NOT NULL
);

-- --- queue

CREATE TABLE queues (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

-- Small rows, rewritten at every delivery; what they carry lies in bodies, written once.
CREATE TABLE messages (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    queue      INTEGER NOT NULL,
    state      INTEGER NOT NULL, -- 0 ready (visible_at is 0), 1 delivered, 2 delayed
    visible_at REAL NOT NULL,
    receives   INTEGER NOT NULL,
    holder     TEXT              -- of the delivery whose receipt counts; NULL when none does
);
CREATE INDEX messages_in_turn ON messages (queue, state, visible_at);

CREATE TABLE bodies (
    message    INTEGER PRIMARY KEY,
    attributes TEXT NOT NULL,    -- JSON
    body       BLOB NOT NULL,
    at         REAL NOT NULL     -- when it was sent
);

CREATE TRIGGER bodies_follow AFTER DELETE ON messages BEGIN
    DELETE FROM bodies WHERE message = OLD.id;
END;

CREATE TABLE dead_letters (
    queue      INTEGER NOT NULL,
    id         TEXT NOT NULL,
    key        TEXT NOT NULL,
    at         REAL NOT NULL,
    reason     TEXT NOT NULL,
    stream     TEXT NOT NULL,
    run        TEXT NOT NULL,    -- may be over 64 bits
    seq        TEXT NOT NULL,
    attributes TEXT NOT NULL,    -- JSON
    detail     TEXT NOT NULL,
    body       BLOB NOT NULL,
    UNIQUE (queue, id)
);

-- --- coordinator

CREATE TABLE members (
    id         TEXT PRIMARY KEY,
    expires_at REAL NOT NULL,
    record     BLOB NOT NULL     -- msgpack of Member
) WITHOUT ROWID;

-- A version is the number of the change that made it, so it grows though a released claim leaves no row.
CREATE TABLE claims (
    key     TEXT PRIMARY KEY,
    member  TEXT NOT NULL,
    version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX claims_of_member ON claims (member);

CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    record BLOB NOT NULL         -- msgpack of Change; a claim's version is the number
);

-- --- state store

CREATE TABLE checkpoints (
    id            INTEGER PRIMARY KEY,
    key           TEXT NOT NULL UNIQUE,
    epoch         INTEGER NOT NULL,
    member        TEXT NOT NULL,
    number        INTEGER NOT NULL DEFAULT 0,
    commit_id     TEXT NOT NULL DEFAULT '',
    at            REAL NOT NULL DEFAULT 0,
    log           TEXT NOT NULL DEFAULT 'null', -- JSON, as seqs may be over 64 bits
    past          TEXT NOT NULL DEFAULT '[]',
    window        INTEGER NOT NULL DEFAULT 0,   -- of the last commit: how many recents count
    head          TEXT NOT NULL DEFAULT '',     -- begun and not yet covered by a commit
    openings      INTEGER NOT NULL DEFAULT 0,   -- in so many openings
    suspects      TEXT NOT NULL DEFAULT '[]',   -- heads begun lately, and in how many openings
    parked        TEXT NOT NULL DEFAULT '',
    done          INTEGER NOT NULL DEFAULT 0,
    skipped       INTEGER NOT NULL DEFAULT 0,
    state_version INTEGER NOT NULL DEFAULT 0,
    state         BLOB
);

-- The new identities of one commit. Those that the window has left behind are removed now and then.
CREATE TABLE recents (
    checkpoint INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    names      TEXT NOT NULL,    -- JSON, oldest first
    PRIMARY KEY (checkpoint, number)
) WITHOUT ROWID;

CREATE TABLE results (
    cursor INTEGER PRIMARY KEY AUTOINCREMENT,
    stream TEXT NOT NULL,
    key    TEXT NOT NULL,
    name   TEXT NOT NULL,
    epoch  INTEGER NOT NULL,
    at     REAL NOT NULL,
    body   BLOB NOT NULL
);
CREATE INDEX results_of_stream ON results (stream);
CREATE INDEX results_by_name ON results (key, name);
