-- What streams send and wait for. A stream without either has no row here, and no row of another table changes.

CREATE TABLE acting (
    checkpoint INTEGER PRIMARY KEY,
    due        REAL NOT NULL,    -- wall time; 0: never
    timers     TEXT NOT NULL     -- JSON
);
CREATE INDEX acting_due ON acting (due) WHERE due > 0;

-- The pending effects of checkpoints that act.
CREATE TABLE effects (
    checkpoint INTEGER NOT NULL,
    number     INTEGER NOT NULL, -- of the commit that added it
    place      INTEGER NOT NULL, -- among the effects of that commit
    id         TEXT NOT NULL,
    target     TEXT NOT NULL,
    key        TEXT NOT NULL,    -- the target's
    body       BLOB NOT NULL,
    cause      TEXT NOT NULL,
    at         REAL NOT NULL,
    not_before REAL NOT NULL,
    hops       INTEGER NOT NULL,
    refused    TEXT NOT NULL,    -- why its target doesn't take it
    UNIQUE (checkpoint, id)
);

-- Processes of an older version that have this file open would expire a checkpoint that acts.
CREATE TRIGGER acting_checkpoints_stay BEFORE DELETE ON checkpoints
WHEN EXISTS (SELECT 1 FROM acting WHERE checkpoint = OLD.id) BEGIN
    SELECT RAISE(ABORT, 'a checkpoint with timers or pending effects must not expire');
END;
