"""The client of a producing application."""
