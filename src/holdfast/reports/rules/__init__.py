"""Rules for the names of files. Pure: no I/O, no clock, no chance."""
