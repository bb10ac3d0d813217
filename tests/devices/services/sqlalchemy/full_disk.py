"""PostgreSQL as if its disk were full, by a trigger that raises what it does then: to fill one takes long."""

FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END';
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON holdfast_outbox_command EXECUTE FUNCTION full_disk();
"""
ROOM = "DROP FUNCTION IF EXISTS full_disk CASCADE"
