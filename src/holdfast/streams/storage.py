"""The storage of an app's streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.ports.objects import Objects
from holdfast.ports.queue import Queue
from holdfast.ports.state import StateStore
from holdfast.system.values import Values


class StreamStorage(NamedTuple):
    """The storage of one app's streams: a queue for each declared stream, the store of their states, the
    object stores of archived streams, and the bodies that were too large for a queue."""

    queues: Mapping[str, Queue]
    state: StateStore
    archives: Mapping[str, Objects]
    values: Values
