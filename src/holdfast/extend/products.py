"""What a product is made of: a kind of work that apps declare, which comes in a package of its own.

A package registers an object of a subclass of :class:`Product` in the group ``holdfast.products``. What it
adds to nodes is a :class:`NodePart`, made of :class:`Work`, which gets at clock, log, peers and memberships
by its :class:`Host`. :class:`Services` has the queues and stores that settings name, and :func:`load` reads
the settings. A product may tell how its work ended on a queue of briefs, as tasks do: :func:`encode_brief`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.common.lazy import exports
from holdfast.registration import PRODUCTS, all_of

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.assembly import queues_of
    from holdfast.cli.findings import Finding, look_at
    from holdfast.cluster.host import Host
    from holdfast.cluster.node import NodePart, Work
    from holdfast.config import Config, load
    from holdfast.ports.coordinator import Claim, Member
    from holdfast.services.memory.registry import MemoryRegistry
    from holdfast.tasks.names import task_queue
    from holdfast.tasks.producer import BRIEF_VISIBILITY_S
    from holdfast.tasks.spec import TaskSettings
    from holdfast.tasks.wire import Envelope, encode_brief
    from holdfast.wiring import Services
else:  # Whoever asks what an app declares runs no node.
    __getattr__ = exports(
        __name__,
        {
            "BRIEF_VISIBILITY_S": "holdfast.tasks.producer",
            "Config": "holdfast.config",
            "Envelope": "holdfast.tasks.wire",
            "Finding": "holdfast.cli.findings",
            "Host": "holdfast.cluster.host",
            "MemoryRegistry": "holdfast.services.memory.registry",
            "NodePart": "holdfast.cluster.node",
            "Services": "holdfast.wiring",
            "TaskSettings": "holdfast.tasks.spec",
            "Work": "holdfast.cluster.node",
            "encode_brief": "holdfast.tasks.wire",
            "load": "holdfast.config",
            "look_at": "holdfast.cli.findings",
            "queues_of": "holdfast.assembly",
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
    "Product",
    "Services",
    "StatusTable",
    "TaskSettings",
    "Work",
    "encode_brief",
    "load",
    "look_at",
    "products",
    "queues_of",
    "task_queue",
]


class StatusTable(NamedTuple):
    """What a product adds to ``holdfast status``.

    Attributes:
        name: what it lists, such as ``outboxes``: the key in the JSON, and the table's title.
        records: the same for programs, as msgspec writes it.
        columns: the table's.
        rows: the table's; no table is shown without any.
    """

    name: str
    records: Sequence[Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Product:
    """What a product adds to Holdfast. A package registers an object of a subclass, which overrides what the
    product has. Each method is also asked of apps that declare nothing of the product, and should import what
    it needs only once they do.

    Attributes:
        claim_label: what the keys of the product's claims begin with, which tells them from those of streams:
            such as ``outbox:``; empty for a product that claims nothing.
    """

    claim_label = ""

    def declared(self, app: App) -> Sequence[str]:
        """What an app declares of this product, each as people call it, such as ``outbox faces``."""
        return ()

    def check(self, services: Services, app: App) -> None:
        """Raise ConfigError if what the app declares can't run on these services."""

    def queues(self, app: App) -> Mapping[str, float]:
        """The queues that the app needs for this product, each with how long it should hide, in seconds, what
        is received by somebody who doesn't say for how long."""
        return {}

    def node_part(self, services: Services, app: App, host: Host) -> NodePart | None:
        """The product's part of a node that runs the app; None for an app that declares nothing of it. Raises
        ConfigError."""
        return None

    async def examine(self, services: Services, app: App | None) -> list[Finding]:
        """What ``holdfast doctor`` finds of the product, for an app if it was given one."""
        return []

    async def status(
        self, services: Services, members: Sequence[Member], claims: Sequence[Claim]
    ) -> StatusTable | None:
        """What ``holdfast status`` shows of the product, by the memberships that live and the product's own
        claims; the same table, if empty, where nothing of it runs."""
        return None


def products() -> list[Product]:
    """All products that are installed. Raises ConfigError for one that can't be imported."""
    return all_of(PRODUCTS, Product)
