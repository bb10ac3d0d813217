-- Whether a migration has taken away what earlier versions use: a version that knows the last of these can use the
-- schema, whatever has been added since.
ALTER TABLE {schema}.migrations ADD COLUMN contracts boolean NOT NULL DEFAULT false;
