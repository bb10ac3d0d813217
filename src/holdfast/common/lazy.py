"""Names of a package that are imported once they are asked for: so importing the package costs little."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that has each of these names from the module beside it; from
    ``module:name`` where it is called otherwise there, and ``module:`` for the module itself."""

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place, colon, there = places[name].partition(":")
        module = import_module(place)
        return module if colon and not there else getattr(module, there or name)

    return get
