"""Streams over HTTP: the routes of each node, and the gateway that brings every request to the right node."""
