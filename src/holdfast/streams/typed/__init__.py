"""Typed state: what a handler's annotations say, and how its state is kept."""
