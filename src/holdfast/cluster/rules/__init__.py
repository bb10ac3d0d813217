"""Where keys go, and when a membership is trusted. Pure: no I/O, no clock, no chance."""
