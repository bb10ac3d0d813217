"""The limits of simulated nodes, and of parts of nodes that are tested by themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.cluster.limits import Limits
from holdfast.config.settings import Config


def limits_with(**changed: Any) -> Limits:
    """A node's limits as they are by default, whatever the environment sets, but for those given."""
    settings = {name: value for name, value in changed.items() if name in Config.model_fields}
    others = {name: value for name, value in changed.items() if name not in settings}
    return msgspec.structs.replace(Limits.of(Config.model_construct(**settings)), **others)
