-- Where what sent a pending effect stands in a trace; '' if it stands in none.

ALTER TABLE effects ADD COLUMN traceparent TEXT NOT NULL DEFAULT '';
