"""Operations and pages that products add to the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.assembly.products import operator_parts
from holdfast.operate.products import StatusPart

if TYPE_CHECKING:
    from holdfast.console.access import Group
    from holdfast.console.api.operations import Operation
    from holdfast.console.parts import ConsoleParts
    from holdfast.wiring.services import Services


class ProductPages(NamedTuple):
    """The pages of one product.

    Attributes:
        name: a word that begins the names of its templates, ``NAME/page.html``, and of its files,
            ``asset('NAME/page.js')``.
        folder: where these are, in ``templates`` and ``static``. A page extends ``base.html``.
        navigation: the paths and titles that stand in the navigation.
        groups: makes the routes, in groups of a right and what needs it. A route in no group isn't served.
    """

    name: str
    folder: Path
    navigation: Sequence[tuple[str, str]]
    groups: Callable[[ConsoleParts], Sequence[Group]]


class ConsolePart(StatusPart):
    """The part of a product that the console shows."""

    def operations(self, services: Services) -> Sequence[Operation]:
        """Return what the product adds to the JSON API of the console, which is made with ``services``. What
        it opens for that is opened when an operation is called."""
        return []

    def pages(self) -> ProductPages | None:
        """Return what the product adds to the pages of the console, if anything."""
        return None


def product_pages() -> list[ProductPages]:
    """Return the pages of all installed products. Raises ConfigError for one that can't be imported."""
    return [pages for _, part in operator_parts(ConsolePart) if (pages := part.pages()) is not None]
