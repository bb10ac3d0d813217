"""Transfers a stopped cluster's contents to other services, and backs up the state of streams in a file."""
