-- The migrations that have taken away what earlier versions use: a version that knows the last of them can use
-- this file, whatever has been added since.
CREATE TABLE contractions (number INTEGER PRIMARY KEY);
