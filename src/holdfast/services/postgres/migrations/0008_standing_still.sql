-- As in 0004, but that it doesn't wait for the disk or a standby while it has the tables locked: all of this may be
-- lost.
CREATE OR REPLACE FUNCTION {schema}.tidy_coordinator() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    all_members {schema}.members[];
    last_changes {schema}.changes[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
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

-- As in 0004, but volatile: it looks at what is there once it has its locks. Else, if it waits while the table of
-- members is made anew, it finds an empty one.
CREATE OR REPLACE FUNCTION {schema}.claims_on(keys text[]) RETURNS TABLE (key text, member text, version bigint)
LANGUAGE sql VOLATILE SET enable_seqscan = off SET jit = off AS $$
    SELECT c.key, c.member, c.version
    FROM {schema}.claims AS c JOIN {schema}.members AS m ON m.id = c.member
    WHERE c.key = ANY (keys) AND m.expires_at > statement_timestamp()
$$;

-- Two keys with the same id would share their effects. So who counts from the beginning again, as after a switch by
-- logical replication, which copies no sequences, is refused. Nodes add no keys while this is made.
CREATE UNIQUE INDEX keys_by_id ON {schema}.keys (id);
