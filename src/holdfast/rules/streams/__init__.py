"""Rules of streams. Pure: no I/O, no clock, no random numbers."""
