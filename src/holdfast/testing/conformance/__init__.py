"""The conformance suites: test classes to inherit from, which check what every adapter of a port must do.

A suite asks for one fixture, named below, that makes a fresh, empty adapter and closes it afterwards::

    from holdfast.testing.conformance import QueueConformance

    class TestMyQueue(QueueConformance):
        @pytest.fixture
        async def queue(self) -> AsyncIterator[MyQueue]:
            queue = await MyQueue.connect("my://...")
            yield queue
            await queue.close()

======================== =================  ======================================================
suite                    fixture            and, where two processes may share the service
======================== =================  ======================================================
BackupConformance        ``backup``         ``other_backup``
BriefingConformance      ``tasks``          ``briefs``; of a store beside queues
QueueConformance         ``queue``          ``other_queue``: another client of the same queue
KeyedQueueConformance    ``queue``          the same; of a queue that is ``by_key``
CoordinatorConformance   ``coordinator``    ``other_coordinator``
StateConformance         ``state``          ``other_state``
ObjectsConformance     ``objects``
PeerConformance          ``make_peer``      an async callable that returns a new Peer each time
RegistryConformance      ``registry``       ``other_registry``
StreamSlotsConformance   ``slots``          ``unloadable``: see ``SlotsConformance``, which both kinds share
TaskSlotsConformance     ``slots``          ``unloadable``
TasksConformance         ``tasks``          ``other_tasks``
StateTransferConformance ``state``          only of a store that can be transferred
QueueTransferConformance ``queue``          the same
TasksTransferConformance ``tasks``          the same
======================== =================  ======================================================

Unless you override it, the second fixture returns the first one. Time passes only in the waiting calls of the
adapter, in steps of the class's ``tick_s``; increase it for a slow service. A suite runs in real time and in
virtual time. Set limits (``max_bytes``, ``max_state_bytes``) low enough that a test may exceed them.

``oracle.StateMachine`` also sends random requests to a state store and compares its answers with the ledger.
``task_oracle.TaskMachine`` does the same with a task store and the rules of tasks.

The ports of products have their suites in ``holdfast.devices.conformance`` and
``holdfast.reports.conformance``.

Needs pytest and pytest-asyncio; the oracles need Hypothesis.
"""

import pytest

PORTS = (
    "backup",
    "coordinator",
    "keyed_queue",
    "objects",
    "oracle",
    "peer",
    "queue",
    "registry",
    "slots",
    "state",
    "task_oracle",
    "tasks",
    "transfer",
)
pytest.register_assert_rewrite(*(f"{__name__}.{port}" for port in PORTS))  # before they are imported

from holdfast.testing.conformance.backup import BackupConformance  # noqa: E402
from holdfast.testing.conformance.coordinator import CoordinatorConformance  # noqa: E402
from holdfast.testing.conformance.keyed_queue import KeyedQueueConformance  # noqa: E402
from holdfast.testing.conformance.objects import ObjectsConformance  # noqa: E402
from holdfast.testing.conformance.peer import PeerConformance  # noqa: E402
from holdfast.testing.conformance.queue import QueueConformance  # noqa: E402
from holdfast.testing.conformance.registry import RegistryConformance  # noqa: E402
from holdfast.testing.conformance.slots import (  # noqa: E402
    SlotsConformance,
    StreamSlotsConformance,
    TaskSlotsConformance,
)
from holdfast.testing.conformance.state import StateConformance  # noqa: E402
from holdfast.testing.conformance.tasks import BriefingConformance, TasksConformance  # noqa: E402
from holdfast.testing.conformance.transfer import (  # noqa: E402
    QueueTransferConformance,
    StateTransferConformance,
    TasksTransferConformance,
)

__all__ = [
    "BackupConformance",
    "BriefingConformance",
    "CoordinatorConformance",
    "KeyedQueueConformance",
    "ObjectsConformance",
    "PeerConformance",
    "QueueConformance",
    "QueueTransferConformance",
    "RegistryConformance",
    "SlotsConformance",
    "StateConformance",
    "StateTransferConformance",
    "StreamSlotsConformance",
    "TaskSlotsConformance",
    "TasksConformance",
    "TasksTransferConformance",
]
