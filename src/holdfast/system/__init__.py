"""The machine's own clock."""
