"""The pages that products add to a console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.assembly.products import operator_parts
from holdfast.console.access import Group
from holdfast.console.parts import ConsoleParts
from holdfast.console.products import ConsolePart


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


def product_pages() -> list[ProductPages]:
    """Return the pages of all installed products. Raises ConfigError for one that can't be imported."""
    return [pages for _, part in operator_parts(ConsolePart) if (pages := part.pages()) is not None]
