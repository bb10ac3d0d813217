"""What every adapter of a port must do, as test classes to inherit from.

A suite asks for one fixture, named below, that makes a fresh, empty adapter and closes it afterwards::

    from holdfast.testing.conformance import QueueConformance

    class TestMyQueue(QueueConformance):
        @pytest.fixture
        async def queue(self) -> AsyncIterator[MyQueue]:
            queue = await MyQueue.connect("my://...")
            yield queue
            await queue.close()

=====================  =================  ======================================================
suite                  fixture            and, where two processes may share the service
=====================  =================  ======================================================
BackupConformance      ``backup``         ``other_backup``
QueueConformance       ``queue``          ``other_queue``: another client of the same queue
CoordinatorConformance ``coordinator``    ``other_coordinator``
StateConformance       ``state``          ``other_state``
DeviceConformance      ``bench``          a ``DeviceBench``: the other side, where devices are
ObjectsConformance     ``objects``
OutboxConformance      ``store``          ``other_store``; ``begin``, which begins a business's transaction
PeerConformance        ``make_peer``      an async callable that returns a new Peer each time
RegistryConformance    ``registry``       ``other_registry``
SinkConformance        ``sink``           ``other_sink``: another connection to the same destination
StreamSlotsConformance ``slots``          ``unloadable``: see ``SlotsConformance``, which both kinds share
TaskSlotsConformance   ``slots``          ``unloadable``
TasksConformance       ``tasks``          ``other_tasks``
=====================  =================  ======================================================

The second fixture is the first one again unless you make it. Time passes only in the adapter's own
waiting calls, in steps of the class's ``tick_s``: raise it for a service that is slow to answer. A suite
runs in real time and in virtual time alike. Set limits (``max_bytes``, ``max_state_bytes``) low enough
that a test may exceed them.

``oracle.StateMachine`` goes further with a state store: it plays random requests against the ledger.
``task_oracle.TaskMachine`` does so with a task store, against the rules of a task's life.

Needs pytest and pytest-asyncio; the oracles need Hypothesis.
"""

import pytest

PORTS = (
    "backup",
    "coordinator",
    "device",
    "objects",
    "oracle",
    "outbox",
    "peer",
    "queue",
    "registry",
    "sink",
    "slots",
    "state",
    "task_oracle",
    "tasks",
)
pytest.register_assert_rewrite(*(f"{__name__}.{port}" for port in PORTS))  # before they are imported

from holdfast.devices.conformance.device import DeviceConformance  # noqa: E402
from holdfast.devices.conformance.outbox import OutboxConformance  # noqa: E402
from holdfast.reports.conformance.sink import SinkConformance  # noqa: E402
from holdfast.testing.conformance.backup import BackupConformance  # noqa: E402
from holdfast.testing.conformance.coordinator import CoordinatorConformance  # noqa: E402
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
from holdfast.testing.conformance.tasks import TasksConformance  # noqa: E402

__all__ = [
    "BackupConformance",
    "CoordinatorConformance",
    "DeviceConformance",
    "ObjectsConformance",
    "OutboxConformance",
    "PeerConformance",
    "QueueConformance",
    "RegistryConformance",
    "SinkConformance",
    "SlotsConformance",
    "StateConformance",
    "StreamSlotsConformance",
    "TaskSlotsConformance",
    "TasksConformance",
]
