"""Decisions without I/O, clocks or chance: streams, tasks, and the cluster that does both."""
