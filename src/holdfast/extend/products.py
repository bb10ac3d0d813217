"""The public API for products. A product is a kind of work that apps declare, in a package of its own.

A package registers an object of a subclass of :class:`Product` in the group ``holdfast.products``. The
product adds a :class:`NodePart` to each node: its :class:`Work` and the collector of its metrics. Work gets
clock, log, peers and memberships from its :class:`Host`. The product's :class:`OperatorPart` is for
operators: a table of ``holdfast status``, findings of ``holdfast doctor``, operations of the console's JSON
API (:mod:`holdfast.extend.api`) and pages (:mod:`holdfast.extend.pages`).

:class:`Services` opens the queues and stores that settings name, and :func:`load` reads the settings.
:func:`services_of` finds the services that have the tasks of an app, and :func:`check_app` refuses the name
of an app that doesn't exist. :func:`encode_brief` encodes the outcome of a product's work as a task's
outcome.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.assembly.products import Product, products
    from holdfast.cli.findings import Finding, look_at
    from holdfast.cli.products import OperatorPart
    from holdfast.cluster.host import Host
    from holdfast.cluster.lifecycle import await_user_code
    from holdfast.cluster.node import NodePart, Work
    from holdfast.config.settings import Config
    from holdfast.config.sources import load
    from holdfast.operate.products import StatusTable
    from holdfast.operate.tasks import check_app, services_of
    from holdfast.services.memory.registry import MemoryRegistry
    from holdfast.tasks.names import task_queue
    from holdfast.tasks.producer import EVENT_VISIBILITY_S as BRIEF_VISIBILITY_S
    from holdfast.tasks.spec import TaskSettings
    from holdfast.tasks.wire import Envelope
    from holdfast.tasks.wire import encode_event as encode_brief
    from holdfast.wiring.services import Services
else:  # A program that only reads what an app declares runs no node.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.assembly.products": "Product products",
            "holdfast.cli.findings": "Finding look_at",
            "holdfast.cli.products": "OperatorPart",
            "holdfast.cluster.host": "Host",
            "holdfast.cluster.lifecycle": "await_user_code",
            "holdfast.cluster.node": "NodePart Work",
            "holdfast.config.settings": "Config",
            "holdfast.config.sources": "load",
            "holdfast.operate.products": "StatusTable",
            "holdfast.operate.tasks": "check_app services_of",
            "holdfast.services.memory.registry": "MemoryRegistry",
            "holdfast.tasks.names": "task_queue",
            "holdfast.tasks.producer": "EVENT_VISIBILITY_S=BRIEF_VISIBILITY_S",
            "holdfast.tasks.spec": "TaskSettings",
            "holdfast.tasks.wire": "Envelope encode_event=encode_brief",
            "holdfast.wiring.services": "Services",
        },
    )

__all__ = [
    "BRIEF_VISIBILITY_S",
    "Config",
    "Envelope",
    "Finding",
    "Host",
    "MemoryRegistry",
    "NodePart",
    "OperatorPart",
    "Product",
    "Services",
    "StatusTable",
    "TaskSettings",
    "Work",
    "await_user_code",
    "check_app",
    "encode_brief",
    "load",
    "look_at",
    "products",
    "services_of",
    "task_queue",
]
