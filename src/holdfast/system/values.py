"""Values that are too large for a message. They are put into an object store, and the message names the
object."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from urllib.parse import quote

from holdfast.common.codec import RESULT_BYTES_MAX
from holdfast.common.stored import StoredValue
from holdfast.errors import ConfigError, InvalidMessage, TooLarge, ValueLost
from holdfast.ports.clock import Clock
from holdfast.ports.objects import Objects

VALUE_BYTES_MAX = RESULT_BYTES_MAX
"""The largest value."""

ADVICE = "; with the setting values_url, values that are too large go to an object store"


class Values:
    """The values of one app in ``objects``; without an object store, nothing is stored. Names of objects have
    the day of their storage, so that old ones can be deleted."""

    def __init__(self, app: str, clock: Clock, objects: Objects | None = None) -> None:
        self._app = quote(app, safe="")
        self._clock = clock
        self._objects = objects
        self.can_store = objects is not None
        """True if there is an object store."""

    @property
    def advice(self) -> str:
        """Advice to the sender of a value that is too large; empty with an object store."""
        return "" if self.can_store else ADVICE

    async def put(self, data: bytes) -> StoredValue:
        """Store a value. Raises TooLarge, and the object store's errors."""
        assert self._objects is not None
        if len(data) > VALUE_BYTES_MAX:
            raise TooLarge(f"a value of {len(data)} bytes is too large; it may have {VALUE_BYTES_MAX}")
        day = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%d")
        digest = hashlib.sha256(data).hexdigest()
        return StoredValue(await self._objects.put(f"{self._app}/{day}/{digest}", data), len(data), digest)

    async def get(self, stored: StoredValue) -> bytes:
        """Return a stored value. Raises ValueLost, and the object store's errors."""
        if self._objects is None:
            raise ConfigError(
                f"a value is in {stored.url!r}: set values_url as the program that put it there has"
            )
        if stored.size > VALUE_BYTES_MAX:
            raise ValueLost(f"a value of {stored.size} bytes is too large; it may have {VALUE_BYTES_MAX}")
        try:
            data = await self._objects.get(stored.url)
        except FileNotFoundError:
            raise ValueLost(f"the value in {stored.url!r} is gone: there is no such object") from None
        except (InvalidMessage, TooLarge) as error:
            raise ValueLost(f"the value in {stored.url!r} can't be read: {error}") from error
        if len(data) != stored.size or hashlib.sha256(data).hexdigest() != stored.sha256:
            raise ValueLost(f"the value in {stored.url!r} is damaged: it isn't what was stored")
        return data
