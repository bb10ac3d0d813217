"""Streams: keyed, ordered, stateful work. Each key has one owner at a time."""
