"""Holdfast keeps every stream on one node: keyed, ordered, stateful, at-least-once work."""

__version__ = "0.1.0"
