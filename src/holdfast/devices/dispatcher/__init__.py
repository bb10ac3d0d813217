"""The dispatcher of one outbox on one node: it takes turns, sends tries and reads devices' answers."""

from holdfast.devices.dispatcher.counts import DispatcherCounts
from holdfast.devices.dispatcher.dispatcher import Dispatcher

__all__ = ["Dispatcher", "DispatcherCounts"]
