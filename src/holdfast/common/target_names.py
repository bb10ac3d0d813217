"""The names by which handlers send effects to what an app declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def named_targets(kinds: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    """Return the kind and the name of each target, by what handlers may call it: ``name`` if no other kind
    has that name, and ``kind:name`` always."""
    declared = [(kind, name) for kind, names in kinds.items() for name in names]
    uses = Counter(name for _, name in declared)
    short = {name: (kind, name) for kind, name in declared if uses[name] == 1}
    return {**short, **{f"{kind}:{name}": (kind, name) for kind, name in declared}}
