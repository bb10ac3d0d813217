"""Declarations of a program: an App with its streams, tasks and outboxes."""
