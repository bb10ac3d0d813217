-- --- registry

CREATE TABLE {schema}.documents (
    name    text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    body    bytea NOT NULL
);

-- One row: the version given last. Versions don't come twice though a document that is dropped leaves no row.
CREATE TABLE {schema}.document_versions (
    last bigint NOT NULL
);
INSERT INTO {schema}.document_versions VALUES (0);
