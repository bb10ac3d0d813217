"""Names of a package that are imported at their first use, so that importing the package is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports each name in ``places`` from the given place: a
    module, ``module:name`` where the name there is another one, or ``module:`` for the module itself."""

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place, colon, there = places[name].partition(":")
        module = import_module(place)
        return module if colon and not there else getattr(module, there or name)

    return get
