-- The outbox: commands, the heads of their devices' queues, and what belongs to them.

CREATE TABLE holdfast_outbox_archive (
    id INTEGER NOT NULL,
    outbox VARCHAR(64) NOT NULL,
    device VARCHAR(255) NOT NULL,
    lane INTEGER DEFAULT '0' NOT NULL,
    shard INTEGER NOT NULL,
    state VARCHAR(16) DEFAULT 'scheduled' NOT NULL,
    body BLOB NOT NULL,
    priority INTEGER DEFAULT '0' NOT NULL,
    not_before DOUBLE DEFAULT '0' NOT NULL,
    expires_at DOUBLE,
    tries INTEGER DEFAULT '0' NOT NULL,
    spent INTEGER DEFAULT '0' NOT NULL,
    epoch BIGINT DEFAULT '0' NOT NULL,
    dedupe_key VARCHAR(255),
    supersede_key VARCHAR(255),
    trace_id VARCHAR(64) DEFAULT '' NOT NULL,
    job BIGINT,
    created_at DOUBLE DEFAULT '0' NOT NULL,
    published_at DOUBLE,
    closed_at DOUBLE,
    answer BLOB,
    reason TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE holdfast_outbox_arrival (
    id INTEGER NOT NULL,
    outbox VARCHAR(64) NOT NULL,
    shard INTEGER NOT NULL,
    device VARCHAR(255) NOT NULL,
    lane INTEGER DEFAULT '0' NOT NULL,
    command BIGINT DEFAULT '0' NOT NULL,
    supersede_key VARCHAR(255),
    PRIMARY KEY (id)
);

CREATE INDEX holdfast_outbox_arrival_shard ON holdfast_outbox_arrival (outbox, shard);

CREATE TABLE holdfast_outbox_brief (
    command INTEGER NOT NULL,
    outbox VARCHAR(64) NOT NULL,
    shard INTEGER NOT NULL,
    closed_at DOUBLE NOT NULL,
    PRIMARY KEY (command)
);

CREATE INDEX holdfast_outbox_brief_shard ON holdfast_outbox_brief (outbox, shard);

CREATE TABLE holdfast_outbox_command (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    outbox VARCHAR(64) NOT NULL,
    device VARCHAR(255) NOT NULL,
    lane INTEGER DEFAULT '0' NOT NULL,
    shard INTEGER NOT NULL,
    state VARCHAR(16) DEFAULT 'scheduled' NOT NULL,
    body BLOB NOT NULL,
    priority INTEGER DEFAULT '0' NOT NULL,
    not_before DOUBLE DEFAULT '0' NOT NULL,
    expires_at DOUBLE,
    tries INTEGER DEFAULT '0' NOT NULL,
    spent INTEGER DEFAULT '0' NOT NULL,
    epoch BIGINT DEFAULT '0' NOT NULL,
    dedupe_key VARCHAR(255),
    supersede_key VARCHAR(255),
    trace_id VARCHAR(64) DEFAULT '' NOT NULL,
    job BIGINT,
    created_at DOUBLE DEFAULT '0' NOT NULL,
    published_at DOUBLE,
    closed_at DOUBLE,
    answer BLOB,
    reason TEXT DEFAULT '' NOT NULL,
    untold INTEGER
);

CREATE INDEX holdfast_outbox_command_closed ON holdfast_outbox_command (outbox, closed_at) WHERE closed_at IS NOT NULL;

CREATE UNIQUE INDEX holdfast_outbox_command_dedupe ON holdfast_outbox_command (outbox, device, dedupe_key) WHERE dedupe_key IS NOT NULL;

CREATE INDEX holdfast_outbox_command_expiry ON holdfast_outbox_command (outbox, expires_at) WHERE state = 'scheduled' AND expires_at IS NOT NULL;

CREATE INDEX holdfast_outbox_command_job ON holdfast_outbox_command (job) WHERE state = 'scheduled' AND job IS NOT NULL;

CREATE INDEX holdfast_outbox_command_next ON holdfast_outbox_command (outbox, device, lane, priority DESC, id) WHERE state = 'scheduled';

CREATE INDEX holdfast_outbox_command_supersede ON holdfast_outbox_command (outbox, device, supersede_key) WHERE state = 'scheduled' AND supersede_key IS NOT NULL;

CREATE INDEX holdfast_outbox_command_untold ON holdfast_outbox_command (outbox, untold) WHERE untold IS NOT NULL;

CREATE TABLE holdfast_outbox_cursor (
    outbox VARCHAR(64) NOT NULL,
    source VARCHAR(64) NOT NULL,
    cursor TEXT NOT NULL,
    PRIMARY KEY (outbox, source)
);

CREATE TABLE holdfast_outbox_device (
    outbox VARCHAR(64) NOT NULL,
    device VARCHAR(255) NOT NULL,
    seen_at DOUBLE,
    away BOOLEAN NOT NULL,
    PRIMARY KEY (outbox, device)
);

CREATE TABLE holdfast_outbox_head (
    outbox VARCHAR(64) NOT NULL,
    device VARCHAR(255) NOT NULL,
    lane INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    phase VARCHAR(8) NOT NULL,
    command BIGINT DEFAULT '0' NOT NULL,
    due DOUBLE,
    PRIMARY KEY (outbox, device, lane)
)
 WITHOUT ROWID;

CREATE INDEX holdfast_outbox_head_due ON holdfast_outbox_head (outbox, shard, due) WHERE phase IN ('waiting', 'held');

CREATE INDEX holdfast_outbox_head_out ON holdfast_outbox_head (outbox, shard, due) WHERE phase = 'out';

CREATE TABLE holdfast_outbox_job (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    outbox VARCHAR(64) NOT NULL,
    name VARCHAR(255) NOT NULL,
    total INTEGER NOT NULL,
    rate DOUBLE,
    abort_share DOUBLE NOT NULL,
    done INTEGER DEFAULT '0' NOT NULL,
    failed INTEGER DEFAULT '0' NOT NULL,
    aborted BOOLEAN DEFAULT false NOT NULL,
    created_at DOUBLE NOT NULL
);

CREATE TABLE holdfast_outbox_shard (
    outbox VARCHAR(64) NOT NULL,
    shard INTEGER NOT NULL,
    epoch BIGINT DEFAULT '0' NOT NULL,
    member VARCHAR(64) DEFAULT '' NOT NULL,
    PRIMARY KEY (outbox, shard)
);
