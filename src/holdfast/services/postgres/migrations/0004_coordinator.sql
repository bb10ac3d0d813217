-- Times are by the database's clock. All of this may be lost: nothing wrong is committed then.

-- --- coordinator

-- No index on what a renewal changes, and room on each page, so that it changes no index at all.
CREATE TABLE {schema}.members (
    id         text COLLATE "C" PRIMARY KEY,
    expires_at timestamptz NOT NULL,
    record     bytea NOT NULL               -- JSON of Member
) WITH (fillfactor = 25, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0,
        autovacuum_analyze_threshold = 500, autovacuum_analyze_scale_factor = 0);

CREATE TABLE {schema}.claims (
    key     text COLLATE "C" PRIMARY KEY,
    member  text COLLATE "C" NOT NULL,
    version bigint NOT NULL                 -- the number of the change that made it
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX claims_of_member ON {schema}.claims (member);

-- Old ones go when the table is made anew, and are never deleted: whoever looks for the newest would have to
-- pass the deleted ones by.
CREATE TABLE {schema}.changes (
    number bigint PRIMARY KEY,
    kind   text NOT NULL,                   -- joined, left, claim; and begun: the first of all
    member text NOT NULL,                   -- '': the claim was released
    key    text NOT NULL,                   -- of the claim
    record bytea                            -- JSON of Member
);

-- Numbers grow with the clock too, so that a server that forgot its last writes gives none twice. A sequence
-- leaves no old versions behind, of which there would be many while somebody holds a transaction open.
CREATE SEQUENCE {schema}.change_numbers;

-- One row. Whoever changes anything but by a renewal locks it first, so that numbers grow in the order of
-- commits. The sizes are those that the tables had when they were made anew.
CREATE TABLE {schema}.coordinator (
    tidied_at     timestamptz NOT NULL,
    members_bytes bigint NOT NULL,
    changes_bytes bigint NOT NULL
);
INSERT INTO {schema}.coordinator VALUES ('epoch', 0, 0);

CREATE FUNCTION {schema}.note_change(kind text, member text, key text, record bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint := setval(
        '{schema}.change_numbers',
        greatest(nextval('{schema}.change_numbers'), (extract(epoch FROM clock_timestamp()) * 1e6)::bigint));
BEGIN
    INSERT INTO {schema}.changes VALUES (number, kind, member, key, record);
    RETURN number;
END $$;

-- Who watches from a number that isn't there has missed something. So there must be a first one.
SELECT {schema}.note_change('begun', '', '', NULL);

CREATE FUNCTION {schema}.lives(of text) RETURNS boolean
LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM {schema}.members AS m WHERE m.id = of AND m.expires_at > clock_timestamp())
$$;

CREATE FUNCTION {schema}.stands(of text, its_key text, its_version bigint) RETURNS boolean
LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.claims AS c
        WHERE c.key = its_key AND c.member = of AND c.version = its_version AND {schema}.lives(c.member))
$$;

-- Claims a key. The change's number is the claim's version.
CREATE FUNCTION {schema}.set_claim(of text, its_key text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint := {schema}.note_change('claim', of, its_key, NULL);
BEGIN
    INSERT INTO {schema}.claims AS c VALUES (its_key, of, number)
    ON CONFLICT (key) DO UPDATE SET member = excluded.member, version = excluded.version;
    RETURN number;
END $$;

-- All requests that came together, in order: one statement, so that no lock is held while the server waits for
-- somebody. Returns what became of each: done, lost (a membership doesn't live) or changed (what was named stands
-- no more), and the holder and version of its claim.
--
-- Plans by indexes, for a plan made while a table was small is kept while it grows. Such plans look expensive, and
-- so would be compiled each time.
CREATE FUNCTION {schema}.coordinate(
    kinds text[], ids text[], ttls double precision[], records bytea[], keys text[], versions bigint[], heirs text[]
) RETURNS TABLE (verdict text, holder text, given bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    gone record;
BEGIN
    -- It may be lost, so nobody waits for the disk.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF NOT 'renew' = ALL (kinds) THEN
        PERFORM FROM {schema}.coordinator FOR UPDATE;
    END IF;
    -- In order, as everybody does: no two wait for each other.
    PERFORM FROM {schema}.members AS m
    WHERE m.id IN (SELECT a.id FROM unnest(kinds, ids) AS a (kind, id) WHERE a.kind IN ('join', 'renew', 'evict'))
    ORDER BY m.id FOR UPDATE;
    IF NOT 'renew' = ALL (kinds) THEN
        FOR gone IN
            WITH lapsed AS MATERIALIZED (
                SELECT m.id FROM {schema}.members AS m WHERE m.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED)
            DELETE FROM {schema}.members AS m USING lapsed WHERE m.id = lapsed.id RETURNING m.id, m.record
        LOOP
            DELETE FROM {schema}.claims AS c WHERE c.member = gone.id;
            PERFORM {schema}.note_change('left', gone.id, '', gone.record);
        END LOOP;
    END IF;
    FOR i IN 1 .. cardinality(kinds) LOOP
        verdict := 'done';
        holder := ids[i];
        given := 0;
        CASE kinds[i]
        WHEN 'lapse' THEN
            NULL;
        WHEN 'join' THEN
            INSERT INTO {schema}.members AS m
            VALUES (ids[i], clock_timestamp() + make_interval(secs => ttls[i]), records[i])
            ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at, record = excluded.record;
            PERFORM {schema}.note_change('joined', ids[i], '', records[i]);
        WHEN 'renew' THEN
            UPDATE {schema}.members AS m
            SET expires_at = clock_timestamp() + make_interval(secs => ttls[i]), record = records[i]
            WHERE m.id = ids[i] AND m.expires_at > clock_timestamp();
            IF NOT FOUND THEN verdict := 'lost'; END IF;
        WHEN 'evict' THEN
            DELETE FROM {schema}.members AS m WHERE m.id = ids[i] RETURNING m.id, m.record INTO gone;
            IF FOUND THEN
                DELETE FROM {schema}.claims AS c WHERE c.member = gone.id;
                PERFORM {schema}.note_change('left', gone.id, '', gone.record);
            ELSE
                verdict := 'changed';
            END IF;
        WHEN 'claim' THEN
            IF {schema}.lives(ids[i]) THEN
                SELECT c.member, c.version INTO holder, given
                FROM {schema}.claims AS c WHERE c.key = keys[i] AND {schema}.lives(c.member);
                IF NOT FOUND THEN
                    holder := ids[i];
                    given := {schema}.set_claim(ids[i], keys[i]);
                END IF;
            ELSE
                verdict := 'lost';
            END IF;
        WHEN 'transfer' THEN
            IF NOT {schema}.stands(ids[i], keys[i], versions[i]) THEN
                verdict := 'changed';
            ELSIF NOT {schema}.lives(heirs[i]) THEN
                verdict := 'lost';
            ELSE
                holder := heirs[i];
                given := {schema}.set_claim(heirs[i], keys[i]);
            END IF;
        WHEN 'release' THEN
            IF {schema}.stands(ids[i], keys[i], versions[i]) THEN
                DELETE FROM {schema}.claims AS c WHERE c.key = keys[i];
                PERFORM {schema}.note_change('claim', '', keys[i], NULL);
            ELSE
                verdict := 'changed';
            END IF;
        END CASE;
        RETURN NEXT;
    END LOOP;
END $$;

-- The claims of living members on these keys.
CREATE FUNCTION {schema}.claims_on(keys text[]) RETURNS TABLE (key text, member text, version bigint)
LANGUAGE sql STABLE SET enable_seqscan = off SET jit = off AS $$
    SELECT c.key, c.member, c.version
    FROM {schema}.claims AS c JOIN {schema}.members AS m ON m.id = c.member
    WHERE c.key = ANY (keys) AND m.expires_at > statement_timestamp()
$$;

-- Makes the tables of members and of changes anew where they are large by dead rows that can't be removed, because
-- somebody holds a transaction open; and drops old changes. It gives up where another one keeps the tables locked,
-- such as a dump, and is not tried again at once: others wait for as long as it waits.
CREATE FUNCTION {schema}.tidy_coordinator() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    all_members {schema}.members[];
    last_changes {schema}.changes[];
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    UPDATE {schema}.coordinator AS c SET tidied_at = clock_timestamp()
    WHERE c.tidied_at < clock_timestamp() - interval '30 seconds';
    IF NOT FOUND THEN RETURN; END IF;
    BEGIN
        LOCK TABLE {schema}.members, {schema}.changes IN ACCESS EXCLUSIVE MODE;
        all_members := ARRAY(SELECT m FROM {schema}.members AS m);
        last_changes := ARRAY(SELECT c FROM {schema}.changes AS c ORDER BY c.number DESC LIMIT 10000);
        TRUNCATE {schema}.members, {schema}.changes;
        INSERT INTO {schema}.members SELECT * FROM unnest(all_members);
        INSERT INTO {schema}.changes SELECT * FROM unnest(last_changes);
        UPDATE {schema}.coordinator
        SET members_bytes = pg_relation_size('{schema}.members'), changes_bytes = pg_relation_size('{schema}.changes');
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
END $$;
