"""Formats: from batches of rows to the bytes of a file."""
