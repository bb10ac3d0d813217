"""What packages that extend Holdfast import: to serve a URL scheme, and to add commands.

A package registers what it adds by entry points, and is found once it is installed:

* ``holdfast.services``, named by a URL scheme: an object of a subclass of :class:`Service`;
* ``holdfast.backups``, named by a URL scheme: a function that opens where dead letters are kept;
* ``holdfast.commands``, named as ``holdfast NAME``: a function, or an App of Cyclopts;
* ``holdfast.node_parts``, by any name: a function that makes what a product adds to a node.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports
from holdfast.registration import Opening, Service
from holdfast.urls import extra, named, path_in

if TYPE_CHECKING:
    from holdfast.common.message import SeqKind
    from holdfast.common.redaction import redact_url
    from holdfast.ports.backup import Backup, Kept
    from holdfast.ports.clock import Clock
    from holdfast.ports.coordinator import Change, Claim, Coordinator, Load, Member
    from holdfast.ports.meter import Meter
    from holdfast.ports.objects import Objects
    from holdfast.ports.queue import DeadLetter, Delivery, Depth, Outgoing, Queue
    from holdfast.ports.queue_setup import Made, QueueFinding, QueueSetup
    from holdfast.ports.registry import Registry
    from holdfast.ports.state import Logged, Risk, StateStore
    from holdfast.ports.tasks import TaskStore
    from holdfast.system.clock import SystemClock
    from holdfast.system.files import Access
else:  # A service that offers a queue needs no state store.
    __getattr__ = exports(
        __name__,
        {
            "Access": "holdfast.system.files",
            "Backup": "holdfast.ports.backup",
            "Change": "holdfast.ports.coordinator",
            "Claim": "holdfast.ports.coordinator",
            "Clock": "holdfast.ports.clock",
            "Coordinator": "holdfast.ports.coordinator",
            "DeadLetter": "holdfast.ports.queue",
            "Delivery": "holdfast.ports.queue",
            "Depth": "holdfast.ports.queue",
            "Kept": "holdfast.ports.backup",
            "Load": "holdfast.ports.coordinator",
            "Logged": "holdfast.ports.state",
            "Made": "holdfast.ports.queue_setup",
            "Member": "holdfast.ports.coordinator",
            "Meter": "holdfast.ports.meter",
            "Objects": "holdfast.ports.objects",
            "Outgoing": "holdfast.ports.queue",
            "Queue": "holdfast.ports.queue",
            "QueueFinding": "holdfast.ports.queue_setup",
            "QueueSetup": "holdfast.ports.queue_setup",
            "Registry": "holdfast.ports.registry",
            "Risk": "holdfast.ports.state",
            "SeqKind": "holdfast.common.message",
            "StateStore": "holdfast.ports.state",
            "SystemClock": "holdfast.system.clock",
            "TaskStore": "holdfast.ports.tasks",
            "redact_url": "holdfast.common.redaction",
        },
    )

__all__ = [
    "Access",
    "Backup",
    "Change",
    "Claim",
    "Clock",
    "Coordinator",
    "DeadLetter",
    "Delivery",
    "Depth",
    "Kept",
    "Load",
    "Logged",
    "Made",
    "Member",
    "Meter",
    "Objects",
    "Opening",
    "Outgoing",
    "Queue",
    "QueueFinding",
    "QueueSetup",
    "Registry",
    "Risk",
    "SeqKind",
    "Service",
    "StateStore",
    "SystemClock",
    "TaskStore",
    "extra",
    "named",
    "path_in",
    "redact_url",
]
