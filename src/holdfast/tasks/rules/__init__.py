"""What is decided about tasks. Pure: no I/O, no clock, no chance."""
