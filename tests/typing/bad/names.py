"""Names that there aren't."""

from __future__ import annotations

from holdfast import Clint  # error
from holdfast.testing import StreamTests  # error

__all__ = ["Clint", "StreamTests"]
