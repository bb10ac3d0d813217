"""Rules for where keys go, and for how long a membership is trusted. Pure: no I/O, no clock, no random
numbers."""
