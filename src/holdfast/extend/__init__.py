"""The public API for packages that extend Holdfast: services for URL schemes, commands, and whole products.

This module has the parts of a service: the ports, the records in their signatures, and :class:`Service`,
whose subclasses open the ports. ``ledger`` and ``task_rules`` are the rules by which state
stores and task stores change their records. The other modules are

* :mod:`holdfast.extend.tools`: declared settings, pauses, rates, JSON, redaction; no I/O;
* :mod:`holdfast.extend.commands`: the common parts of the commands of ``holdfast``;
* :mod:`holdfast.extend.products`: the parts of a product on nodes, in ``holdfast status`` and in ``doctor``;
* :mod:`holdfast.extend.api`: a product's operations in the JSON API of the console;
* :mod:`holdfast.extend.pages`: a product's pages in the console;
* :mod:`holdfast.extend.tracing`: spans, and places in traces;
* :mod:`holdfast.extend.s3`: Holdfast's own client of S3.

A package registers its parts as entry points, and Holdfast finds them when the package is installed. The
groups are

* ``holdfast.services``, named by a URL scheme: an object of a subclass of :class:`Service`;
* ``holdfast.targets``, named by a URL scheme: an object of a subclass of :class:`TargetService`, for effects;
* ``holdfast.backups``, named by a URL scheme: a function that opens a store of dead letters;
* ``holdfast.commands``, named as ``holdfast NAME``: a function, an App of Cyclopts, or a
  :class:`holdfast.extend.commands.LazyCommand` that names one;
* ``holdfast.products``, by any name: an object of a subclass of :class:`holdfast.extend.products.Product`;
* ``holdfast.devices``, named by a URL scheme: an object of a subclass of ``holdfast.devices.BrokerService``;
* ``holdfast.sinks``, named by a URL scheme: an object of a subclass of ``holdfast.reports.SinkService``.

A product may have groups of its own, as the last two are. :func:`lookup` finds the objects of a group. With
:func:`exports` a package imports its public names at their first use.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports
from holdfast.registration.entry_points import lookup, schemes
from holdfast.registration.services import Opening, Service
from holdfast.registration.targets import TargetOpening, TargetService
from holdfast.registration.urls import extra, named, path_in

if TYPE_CHECKING:
    from holdfast.common.message import SeqKind
    from holdfast.common.migrations import SchemaSteps
    from holdfast.ports.backup import Backup, Kept
    from holdfast.ports.clock import Clock
    from holdfast.ports.coordinator import Change, Claim, Coordinator, Load, Member
    from holdfast.ports.meter import Meter
    from holdfast.ports.objects import Objects
    from holdfast.ports.queue import (
        DeadLetter,
        Delivery,
        Depth,
        KeyedQueue,
        Outgoing,
        PutBack,
        Queue,
        Taken,
        TransferableQueue,
        WaitingMessage,
    )
    from holdfast.ports.queue_setup import Made, QueueFinding, QueueSetup
    from holdfast.ports.registry import Document, Registry
    from holdfast.ports.state import DatabaseHealth, Logged, Risk, StateStore, TransferableState
    from holdfast.ports.target import OutgoingEffect, Target
    from holdfast.ports.tasks import BriefingTasks, TaskStore, TransferableTasks
    from holdfast.rules.streams import ledger
    from holdfast.rules.tasks import task as task_rules
    from holdfast.rules.tasks.task import State as TaskState
    from holdfast.rules.tasks.task import Task
    from holdfast.system.bell import Bell
    from holdfast.system.clock import SystemClock
    from holdfast.system.doorbell import Doorbell
    from holdfast.system.files import OWNER, Access, for_writers, make_file, make_folder, sync_names
    from holdfast.system.interpreter import quick_switches
    from holdfast.system.log import get_logger
    from holdfast.system.machine import Machine
    from holdfast.system.retrying import retry_call
else:  # A service that offers a queue needs no state store.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.common.message": "SeqKind",
            "holdfast.common.migrations": "SchemaSteps",
            "holdfast.ports.backup": "Backup Kept",
            "holdfast.ports.clock": "Clock",
            "holdfast.ports.coordinator": "Change Claim Coordinator Load Member",
            "holdfast.ports.meter": "Meter",
            "holdfast.ports.objects": "Objects",
            "holdfast.ports.queue": (
                "DeadLetter Delivery Depth KeyedQueue Outgoing "
                "PutBack Queue Taken TransferableQueue WaitingMessage"
            ),
            "holdfast.ports.queue_setup": "Made QueueFinding QueueSetup",
            "holdfast.ports.registry": "Document Registry",
            "holdfast.ports.state": "DatabaseHealth Logged Risk StateStore TransferableState",
            "holdfast.ports.target": "OutgoingEffect Target",
            "holdfast.ports.tasks": "BriefingTasks TaskStore TransferableTasks",
            "holdfast.rules.tasks.task": "State=TaskState Task",
            "holdfast.system.bell": "Bell",
            "holdfast.system.clock": "SystemClock",
            "holdfast.system.doorbell": "Doorbell",
            "holdfast.system.files": "Access OWNER for_writers make_file make_folder sync_names",
            "holdfast.system.interpreter": "quick_switches",
            "holdfast.system.log": "get_logger",
            "holdfast.system.machine": "Machine",
            "holdfast.system.retrying": "retry_call",
        },
        ledger="holdfast.rules.streams.ledger",
        task_rules="holdfast.rules.tasks.task",
    )

__all__ = [
    "OWNER",
    "Access",
    "Backup",
    "Bell",
    "BriefingTasks",
    "Change",
    "Claim",
    "Clock",
    "Coordinator",
    "DatabaseHealth",
    "DeadLetter",
    "Delivery",
    "Depth",
    "Document",
    "Doorbell",
    "Kept",
    "KeyedQueue",
    "Load",
    "Logged",
    "Machine",
    "Made",
    "Member",
    "Meter",
    "Objects",
    "Opening",
    "Outgoing",
    "OutgoingEffect",
    "PutBack",
    "Queue",
    "QueueFinding",
    "QueueSetup",
    "Registry",
    "Risk",
    "SchemaSteps",
    "SeqKind",
    "Service",
    "StateStore",
    "SystemClock",
    "Taken",
    "Target",
    "TargetOpening",
    "TargetService",
    "Task",
    "TaskState",
    "TaskStore",
    "TransferableQueue",
    "TransferableState",
    "TransferableTasks",
    "WaitingMessage",
    "exports",
    "extra",
    "for_writers",
    "get_logger",
    "ledger",
    "lookup",
    "make_file",
    "make_folder",
    "named",
    "path_in",
    "quick_switches",
    "retry_call",
    "schemes",
    "sync_names",
    "task_rules",
]
