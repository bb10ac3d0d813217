"""What is decided about streams. Pure: no I/O, no clock, no chance."""
