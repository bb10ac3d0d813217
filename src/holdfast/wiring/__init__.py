"""The services that a config names, opened."""
