-- Tasks whose messages wait in their records, because their delay is longer than their queue's. Others have no row
-- here.

CREATE TABLE delayed_tasks (
    app     INTEGER NOT NULL,
    trace   TEXT NOT NULL,
    send_at REAL NOT NULL,    -- wall time
    PRIMARY KEY (app, trace)
) WITHOUT ROWID;
CREATE INDEX delayed_tasks_due ON delayed_tasks (app, send_at);
