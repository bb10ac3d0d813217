"""The embedded default: queue, coordinator and state store in one SQLite file, for one host's processes."""
