"""What is decided about commands to devices. Pure: no I/O, no clock, no chance."""
