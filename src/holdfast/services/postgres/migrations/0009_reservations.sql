-- --- keys of messages

-- Keys are UTF-8, because texts can't hold the character NUL.
--
-- key: NULL if it isn't known. turn: the place in the order of arrival; NULL: the id. excused: the receives that
-- don't count, because nothing had begun. reserved: a reservation keeps the message, unless it has a holder: a node
-- of an earlier version has received it then. What is kept is stored as delayed too, so that such nodes leave it
-- alone, and see it again if no later version goes on.
ALTER TABLE {schema}.messages
    ADD COLUMN key bytea,
    ADD COLUMN turn bigint,
    ADD COLUMN excused integer NOT NULL DEFAULT 0,
    ADD COLUMN reserved boolean NOT NULL DEFAULT false;

-- Only of what is kept. All keys would be written with each delivery.
CREATE INDEX messages_kept ON {schema}.messages (queue, key, coalesce(turn, id)) WHERE reserved AND holder IS NULL;

ALTER TABLE {schema}.dead_letters ADD COLUMN turn bigint;

-- A key of a queue whose messages are kept for the membership holder, until ends_at, in microseconds. Those that have
-- ended stay for a while, so that receives find what they kept. Renewals change no index.
CREATE TABLE {schema}.reservations (
    queue   text COLLATE "C" NOT NULL,
    key     bytea NOT NULL,
    holder  text COLLATE "C" NOT NULL,
    epoch   bigint NOT NULL,
    ends_at bigint NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
