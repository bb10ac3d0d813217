-- The epoch that counted the head last: to count it there again changes nothing.
ALTER TABLE checkpoints ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;
