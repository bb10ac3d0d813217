"""The public API for products. A product is a kind of work that apps declare, in a package of its own.

A package registers an object of a subclass of :class:`Product` in the group ``holdfast.products``. The
product adds a :class:`NodePart` to each node: its :class:`Work`, and what tells its metrics. Work gets clock,
log, peers and memberships from its :class:`Host`. What operators see of the product is in its
:class:`OperatorPart`: a table of ``holdfast status``, findings of ``holdfast doctor``, operations of the
console's JSON API (:mod:`holdfast.extend.api`) and pages (:mod:`holdfast.extend.pages`).
:class:`Services` opens the queues and stores that settings name, and :func:`load` reads the settings.
:func:`services_of` finds the services that know the tasks of an app, and :func:`check_app` refuses the name
of an app that there isn't. With :func:`encode_brief` a product can tell on a queue of briefs how its work
ended, as tasks do.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.assembly.checks import queues_of
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
    from holdfast.tasks.producer import BRIEF_VISIBILITY_S
    from holdfast.tasks.spec import TaskSettings
    from holdfast.tasks.wire import Envelope, encode_brief
    from holdfast.wiring.services import Services
else:  # Whoever asks what an app declares runs no node.
    __getattr__ = exports(
        __name__,
        {
            "BRIEF_VISIBILITY_S": "holdfast.tasks.producer",
            "Config": "holdfast.config.settings",
            "Envelope": "holdfast.tasks.wire",
            "Finding": "holdfast.cli.findings",
            "Host": "holdfast.cluster.host",
            "MemoryRegistry": "holdfast.services.memory.registry",
            "OperatorPart": "holdfast.cli.products",
            "Product": "holdfast.assembly.products",
            "StatusTable": "holdfast.operate.products",
            "products": "holdfast.assembly.products",
            "NodePart": "holdfast.cluster.node",
            "Services": "holdfast.wiring.services",
            "TaskSettings": "holdfast.tasks.spec",
            "Work": "holdfast.cluster.node",
            "await_user_code": "holdfast.cluster.lifecycle",
            "check_app": "holdfast.operate.tasks",
            "encode_brief": "holdfast.tasks.wire",
            "load": "holdfast.config.sources",
            "look_at": "holdfast.cli.findings",
            "queues_of": "holdfast.assembly.checks",
            "services_of": "holdfast.operate.tasks",
            "task_queue": "holdfast.tasks.names",
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
    "queues_of",
    "services_of",
    "task_queue",
]
