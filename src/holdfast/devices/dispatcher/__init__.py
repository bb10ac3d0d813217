"""The dispatcher of one outbox on one node: takes turns, sends what they marked, hears what devices say."""

from holdfast.devices.dispatcher.counts import DispatcherCounts
from holdfast.devices.dispatcher.dispatcher import Dispatcher

__all__ = ["Dispatcher", "DispatcherCounts"]
