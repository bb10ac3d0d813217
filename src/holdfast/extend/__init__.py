"""The public API for packages that extend Holdfast: services for URL schemes, commands, and whole products.

This module has what a service needs: the ports, the records in their signatures, and :class:`Service`, whose
subclasses open the ports. ``ledger``, ``task_rules`` and ``task_changes`` are the rules by which state stores
and task stores change what they keep. The other modules are

* :mod:`holdfast.extend.tools`: declared settings, pauses, rates, JSON, redaction; no I/O;
* :mod:`holdfast.extend.commands`: what the commands of ``holdfast`` have in common;
* :mod:`holdfast.extend.products`: what a product adds to nodes, to ``holdfast status`` and ``doctor``;
* :mod:`holdfast.extend.api`: what a product adds to the JSON API of the console;
* :mod:`holdfast.extend.tracing`: spans, and places in traces;
* :mod:`holdfast.extend.s3`: Holdfast's own client of S3.

A package registers what it adds as entry points. Holdfast finds it once the package is installed. The groups
are

* ``holdfast.services``, named by a URL scheme: an object of a subclass of :class:`Service`;
* ``holdfast.targets``, named by a URL scheme: an object of a subclass of :class:`TargetService`, for effects;
* ``holdfast.backups``, named by a URL scheme: a function that opens where dead letters are kept;
* ``holdfast.commands``, named as ``holdfast NAME``: a function, an App of Cyclopts, or where one is: a
  :class:`holdfast.extend.commands.LazyCommand`;
* ``holdfast.products``, by any name: an object of a subclass of :class:`holdfast.extend.products.Product`;
* ``holdfast.devices``, named by a URL scheme: an object of a subclass of ``holdfast.devices.BrokerService``;
* ``holdfast.sinks``, named by a URL scheme: an object of a subclass of ``holdfast.reports.SinkService``.

A product may have groups of its own, as the last two are. :func:`lookup` finds what is registered in one.
With :func:`exports` a package imports its public names at their first use.
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
    from holdfast.rules.streams.ledger import Checkpoint, Commit, Result
    from holdfast.rules.tasks import changes as task_changes
    from holdfast.rules.tasks import task as task_rules
    from holdfast.rules.tasks.task import AttemptBeat, EndAttempt, ReturnAttempt, StartAttempt, Task
    from holdfast.rules.tasks.task import State as TaskState
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
            "Access": "holdfast.system.files",
            "AttemptBeat": "holdfast.rules.tasks.task",
            "Backup": "holdfast.ports.backup",
            "Bell": "holdfast.system.bell",
            "BriefingTasks": "holdfast.ports.tasks",
            "Change": "holdfast.ports.coordinator",
            "Checkpoint": "holdfast.rules.streams.ledger",
            "Claim": "holdfast.ports.coordinator",
            "Clock": "holdfast.ports.clock",
            "Commit": "holdfast.rules.streams.ledger",
            "Coordinator": "holdfast.ports.coordinator",
            "DatabaseHealth": "holdfast.ports.state",
            "DeadLetter": "holdfast.ports.queue",
            "Delivery": "holdfast.ports.queue",
            "Depth": "holdfast.ports.queue",
            "Document": "holdfast.ports.registry",
            "Doorbell": "holdfast.system.doorbell",
            "EndAttempt": "holdfast.rules.tasks.task",
            "Kept": "holdfast.ports.backup",
            "KeyedQueue": "holdfast.ports.queue",
            "Load": "holdfast.ports.coordinator",
            "Logged": "holdfast.ports.state",
            "Machine": "holdfast.system.machine",
            "Made": "holdfast.ports.queue_setup",
            "Member": "holdfast.ports.coordinator",
            "Meter": "holdfast.ports.meter",
            "OWNER": "holdfast.system.files",
            "Objects": "holdfast.ports.objects",
            "Outgoing": "holdfast.ports.queue",
            "OutgoingEffect": "holdfast.ports.target",
            "PutBack": "holdfast.ports.queue",
            "Queue": "holdfast.ports.queue",
            "QueueFinding": "holdfast.ports.queue_setup",
            "QueueSetup": "holdfast.ports.queue_setup",
            "Registry": "holdfast.ports.registry",
            "Result": "holdfast.rules.streams.ledger",
            "ReturnAttempt": "holdfast.rules.tasks.task",
            "Risk": "holdfast.ports.state",
            "SchemaSteps": "holdfast.common.migrations",
            "SeqKind": "holdfast.common.message",
            "StartAttempt": "holdfast.rules.tasks.task",
            "StateStore": "holdfast.ports.state",
            "SystemClock": "holdfast.system.clock",
            "Taken": "holdfast.ports.queue",
            "Target": "holdfast.ports.target",
            "Task": "holdfast.rules.tasks.task",
            "TaskState": "holdfast.rules.tasks.task:State",
            "TaskStore": "holdfast.ports.tasks",
            "TransferableQueue": "holdfast.ports.queue",
            "TransferableState": "holdfast.ports.state",
            "TransferableTasks": "holdfast.ports.tasks",
            "WaitingMessage": "holdfast.ports.queue",
            "for_writers": "holdfast.system.files",
            "get_logger": "holdfast.system.log",
            "ledger": "holdfast.rules.streams.ledger:",
            "make_file": "holdfast.system.files",
            "make_folder": "holdfast.system.files",
            "retry_call": "holdfast.system.retrying",
            "quick_switches": "holdfast.system.interpreter",
            "sync_names": "holdfast.system.files",
            "task_changes": "holdfast.rules.tasks.changes:",
            "task_rules": "holdfast.rules.tasks.task:",
        },
    )

__all__ = [
    "OWNER",
    "Access",
    "AttemptBeat",
    "Backup",
    "Bell",
    "BriefingTasks",
    "Change",
    "Checkpoint",
    "Claim",
    "Clock",
    "Commit",
    "Coordinator",
    "DatabaseHealth",
    "DeadLetter",
    "Delivery",
    "Depth",
    "Document",
    "Doorbell",
    "EndAttempt",
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
    "Result",
    "ReturnAttempt",
    "Risk",
    "SchemaSteps",
    "SeqKind",
    "Service",
    "StartAttempt",
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
    "task_changes",
    "task_rules",
]
