"""Rules of tasks. Pure: no I/O, no clock, no random numbers."""
