"""Rules of commands to devices. Pure: no I/O, no clock, no random numbers."""
