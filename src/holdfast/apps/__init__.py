"""Batteries that the core never sees."""
