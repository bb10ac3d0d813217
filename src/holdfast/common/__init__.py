"""The decisions, pure: no I/O, no clock, no randomness. Shells feed in events and the time, and act."""
