"""The public API for products. A product is a kind of work that apps declare, in a package of its own.

A package registers an object of a subclass of :class:`Product` in the group ``holdfast.products``. The
product adds a :class:`NodePart` to each node: its :class:`Work`, and what tells its metrics. To the
console's JSON API it adds operations (:mod:`holdfast.extend.api`), and it adds pages
(:mod:`holdfast.extend.pages`). Work gets clock, log, peers and memberships from its :class:`Host`.
:class:`Services` opens the queues and stores that settings name, and :func:`load` reads the settings.
:func:`services_of` finds the services that know the tasks of an app, and :func:`check_app` refuses the name
of an app that there isn't. With :func:`encode_brief` a product can tell on a queue of briefs how its work
ended, as tasks do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.common.lazy import exports
from holdfast.registration.entry_points import PRODUCTS, all_of

if TYPE_CHECKING:
    from holdfast.app.app import App
    from holdfast.assembly.checks import queues_of
    from holdfast.cli.findings import Finding, look_at
    from holdfast.cluster.host import Host
    from holdfast.cluster.lifecycle import await_user_code
    from holdfast.cluster.node import NodePart, Work
    from holdfast.config.settings import Config
    from holdfast.config.sources import load
    from holdfast.console.api.operations import Operation
    from holdfast.console.product_pages import ProductPages
    from holdfast.operate.tasks import check_app, services_of
    from holdfast.ports.coordinator import Claim, Member
    from holdfast.ports.target import Target
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


class StatusTable(NamedTuple):
    """A table that a product adds to ``holdfast status``.

    Attributes:
        name: what the table lists, such as ``outboxes``: the title of the table, and the key in the JSON.
        records: what ``--json`` prints under that key.
        columns: the titles of the columns.
        rows: the rows. A table without rows isn't shown.
    """

    name: str
    records: Sequence[Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Product:
    """Base class of products. A package registers an object of a subclass, which overrides the methods that
    the product needs.

    All methods are also called for apps that declare nothing of the product. So a method should import what
    it needs only when the app declares something.

    Attributes:
        claim_label: the beginning of the keys that the product claims, such as ``outbox:``. It tells these
            claims from those of streams. Empty for a product that claims nothing.
    """

    claim_label = ""

    def declared(self, app: App) -> Sequence[str]:
        """Return the names of what an app declares of this product, as people call it, such as
        ``outbox faces``."""
        return ()

    def check(self, services: Services, app: App) -> None:
        """Raise ConfigError if what the app declares can't run on these services."""

    def queues(self, app: App) -> Mapping[str, float]:
        """Return the names of the queues that the app needs for this product. The value is the default
        visibility of the queue, in seconds."""
        return {}

    def node_part(self, services: Services, app: App, host: Host) -> NodePart | None:
        """Return what the product adds to a node that runs the app; None if the app declares nothing of it.
        Raises ConfigError."""
        return None

    def targets(self, services: Services, app: App, host: Host) -> Mapping[tuple[str, str], Target]:
        """Return the targets of effects that the app has declared with ``App.add_target``, by kind and name.
        What they hold open is to be closed with the services, as ``services.opening(…).shared(…)`` does it.
        Raises ConfigError."""
        return {}

    async def examine(self, services: Services, app: App | None) -> list[Finding]:
        """Check what the product needs, and return what ``holdfast doctor`` shows. ``app`` is None if the
        command was given none."""
        return []

    async def examine_upgrade(self, services: Services) -> list[Finding]:
        """Look at what the product keeps, and return what ``holdfast doctor --upgrade`` shows. Change
        nothing."""
        return []

    async def status(
        self, services: Services, members: Sequence[Member], claims: Sequence[Claim]
    ) -> StatusTable | None:
        """Return the table that ``holdfast status`` shows. ``members`` are the living memberships, and
        ``claims`` those with the product's ``claim_label``. Return an empty table if nothing of it runs, so
        that its key is in the JSON."""
        return None

    def operations(self, services: Services) -> Sequence[Operation]:
        """Return what the product adds to the JSON API of the console, which is made with ``services``. What
        it opens for that is opened when an operation is called."""
        return []

    def pages(self) -> ProductPages | None:
        """Return what the product adds to the pages of the console, if anything."""
        return None


def products() -> list[Product]:
    """Return all installed products. Raises ConfigError for one that can't be imported."""
    return all_of(PRODUCTS, Product)
