"""Streams over HTTP: the door of each node, and the gateway that brings every request to the right one."""
