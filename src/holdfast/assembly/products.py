"""Products: kinds of work that packages add to nodes."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import ConfigError
from holdfast.registration.entry_points import PRODUCTS, all_of

if TYPE_CHECKING:
    from holdfast.app.app import App
    from holdfast.cluster.host import Host
    from holdfast.cluster.node import NodePart
    from holdfast.ports.target import Target
    from holdfast.wiring.services import Services

T = TypeVar("T")


class Product:
    """The base class of products. A package registers an object of a subclass, which overrides the methods
    that the product needs on nodes.

    All methods are also called for apps that declare nothing of the product. So a method should import its
    libraries only when the app declares something.

    Attributes:
        claim_label: the beginning of the keys that the product claims, such as ``outbox:``, which
            distinguishes them from claims of streams. Empty for a product that claims nothing.
        operator: the place of the product's :class:`~holdfast.extend.products.OperatorPart`, as
            ``module:object``. Nodes don't import it. Empty for a product without one.
    """

    claim_label = ""
    operator = ""

    def declared(self, app: App) -> Sequence[str]:
        """Return the names of the app's parts of this product, such as ``outbox faces``."""
        return ()

    def check(self, services: Services, app: App) -> None:
        """Raise ConfigError if the app's parts can't run on these services."""

    def queues(self, app: App) -> Mapping[str, float]:
        """Return the names of the queues that the app needs for this product. The value is the default
        visibility of the queue, in seconds."""
        return {}

    def node_part(self, services: Services, app: App, host: Host) -> NodePart | None:
        """Return the product's part of a node that runs the app; None if the app declares nothing of it.
        Raises ConfigError."""
        return None

    def targets(self, services: Services, app: App, host: Host) -> Mapping[tuple[str, str], Target]:
        """Return the targets of effects that the app has declared with ``App.add_target``, by kind and name.
        Let the services close their connections, by ``services.opening(…).shared(…)``. Raises
        ConfigError."""
        return {}


def products() -> list[Product]:
    """Return all installed products. Raises ConfigError for one that can't be imported."""
    return all_of(PRODUCTS, Product)


def operator_parts(kind: type[T]) -> list[tuple[Product, T]]:
    """Return the installed products that have a part for operators, each with that part. Raises ConfigError
    for a part that can't be imported, or is not of ``kind``."""
    return [(product, _part(product.operator, kind)) for product in products() if product.operator]


def _part(place: str, kind: type[T]) -> T:
    found = _imported(place)
    if isinstance(found, kind):
        return found
    raise ConfigError(
        f"{found!r}, the operator part at {place!r}, isn't a holdfast.extend.products.OperatorPart"
    )


@functools.cache
def _imported(place: str) -> Any:
    try:
        return pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the operator part at {place!r} can't be imported: {error}; correct the package, or uninstall it"
        ) from error
