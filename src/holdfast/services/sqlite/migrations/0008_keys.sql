-- Queues that know the keys of their messages. A message that a reservation keeps is set aside: delayed, so that a
-- process of an older version shows it again in the end, and marked. What is in `aside` counts only in state 2.

ALTER TABLE messages ADD COLUMN key TEXT;     -- NULL: without, or not known
ALTER TABLE messages ADD COLUMN turn INTEGER; -- its place in the order of arrival; NULL: its id
ALTER TABLE messages ADD COLUMN aside INTEGER; -- its turn while it is set aside
ALTER TABLE messages ADD COLUMN excused INTEGER NOT NULL DEFAULT 0; -- the receives that don't count
CREATE INDEX messages_aside ON messages (queue, key, aside) WHERE state = 2 AND aside IS NOT NULL;

ALTER TABLE dead_letters ADD COLUMN turn INTEGER;

-- One that ended stays until what it kept is ready again.
CREATE TABLE reservations (
    queue   INTEGER NOT NULL,
    key     TEXT NOT NULL,
    holder  TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    ends_at REAL NOT NULL,
    looked  INTEGER NOT NULL,    -- up to which id its takes have looked for messages that are ready
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;

-- After a reboot no holder lives, and the clock has begun again, also for a process of an older version.
CREATE TRIGGER reservations_end_at_reboot AFTER DELETE ON host BEGIN
    UPDATE reservations SET ends_at = 0;
END;
