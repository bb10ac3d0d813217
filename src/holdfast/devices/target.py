"""An outbox as a target of effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.outbox import OutboxStore

if TYPE_CHECKING:
    from holdfast.extend import OutgoingEffect

EFFECTS_A_CALL = 100


class OutboxTarget:
    """Adds effects as commands. An effect's key is the device, and its id the command's ``dedupe_key``: a
    repeat adds nothing as long as the outbox keeps the command."""

    def __init__(self, outbox: Outbox, store: OutboxStore) -> None:
        self.max_batch = EFFECTS_A_CALL
        self.ordered = True  # one transaction
        self._outbox = outbox
        self._store = store

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        commands = self._outbox.new(
            {
                "device": effect.key,
                "command": effect.body,
                "dedupe_key": effect.id,
                "trace_id": effect.id,
                "traceparent": effect.traceparent,
            }
            for effect in effects
        )
        await self._store.add(commands)
