"""Slots as real child processes, forked from a server that has the app imported already."""
