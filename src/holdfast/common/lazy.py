"""Names of a package that are imported at their first use, so that importing the package is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, names: Mapping[str, str], **modules: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    ``names`` has the names that a module gives, separated by spaces; ``State=TaskState`` gives ``State`` by
    another name. ``modules`` are modules that are given whole.
    """
    places = {
        name.rpartition("=")[2]: (module, name.partition("=")[0])
        for module, some in names.items()
        for name in some.split()
    }

    def get(name: str) -> Any:
        if name in modules:
            return import_module(modules[name])
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, there = places[name]
        return getattr(import_module(module), there)

    return get
