"""Holdfast keeps every stream on one node: keyed, ordered, stateful, at-least-once work."""

from holdfast.app import App
from holdfast.errors import (
    ConfigError,
    HandlerFailed,
    HoldfastError,
    InvalidMessage,
    StateRejected,
    TooLarge,
    Unavailable,
)
from holdfast.streams.handler import Context, StreamHandler

__version__ = "0.1.0"

__all__ = [
    "App",
    "ConfigError",
    "Context",
    "HandlerFailed",
    "HoldfastError",
    "InvalidMessage",
    "StateRejected",
    "StreamHandler",
    "TooLarge",
    "Unavailable",
]
