"""The pages that products add to a console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.console.access import Group
from holdfast.console.parts import ConsoleParts


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
