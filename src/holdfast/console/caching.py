"""Parts of pages, made once for all who ask for the same one at about the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from holdfast.ports.clock import Clock

KEPT_S = 1.0
MOST = 128


class _KeptPart(NamedTuple):
    html: str
    made_at: float


class PartCache:
    """Keeps parts of pages for ``KEPT_S``. Requests for one that is being made wait for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parts: OrderedDict[Hashable, _KeptPart] = OrderedDict()
        self._making: dict[Hashable, asyncio.Lock] = {}

    async def get(self, name: Hashable, make: Callable[[], Awaitable[str]]) -> str:
        """Return the part of this name, which ``make`` makes if there is none."""
        if (kept := self._kept(name)) is not None:
            return kept
        lock = self._making.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                if (kept := self._kept(name)) is not None:
                    return kept
                html = await make()
                self._parts[name] = _KeptPart(html, self._clock.monotonic())
                self._parts.move_to_end(name)
                while len(self._parts) > MOST:
                    self._parts.popitem(last=False)
                return html
        finally:
            self._making.pop(name, None)

    def clear(self) -> None:
        """Forget all parts, after something was changed."""
        self._parts.clear()

    def _kept(self, name: Hashable) -> str | None:
        part = self._parts.get(name)
        if part is None or self._clock.monotonic() - part.made_at >= KEPT_S:
            return None
        return part.html
