"""The limits of a node. Their defaults and their allowed values are in the config."""

from __future__ import annotations

from typing import Self

import msgspec

from holdfast.common.protocol import FORWARD_OVERHEAD_BYTES
from holdfast.common.retry import Backoff

FORWARD_BYTES_MAX = 4 << 20
"""The most bytes of bodies in one forward, unless a single body is larger: other messages wait for it."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """A node's limits. Limits without a default are settings, see :class:`~holdfast.config.settings.Config`.
    Only tests change the others.

    Attributes:
        room_check_s: the time after which a pump without room checks again.
        retry: the pauses between tries of calls that may be repeated.
        defer: the pauses before a message is offered again after no owner had room for it. After
            ``give_back_after`` tries it goes back to the queue for ``give_back_s``, with jitter.
    """

    ttl_s: float
    renew_s: float
    visibility_s: float
    receive_wait_s: float
    max_held: int
    custody_limit: int
    custody_check_s: float
    give_back_s: float
    max_peer_bytes: int
    slots: int
    spare_slots: int
    task_slots: int
    streams_per_slot_max: int
    peer_timeout_s: float
    move_timeout_s: float
    model_timeout_s: float
    balance_s: float
    rest_s: float
    drain_timeout_s: float
    idle_timeout_s: float
    max_state_bytes: int
    results_keep_s: float
    dead_keep_s: float
    idle_keep_s: float
    room_check_s: float = 0.02
    retry: Backoff = Backoff(0.02, 1.0)
    defer: Backoff = Backoff(0.05, 1.0)
    give_back_after: int = 12

    @classmethod
    def of(cls, config: object) -> Self:
        """Return the limits that a config sets."""
        return msgspec.convert(config, cls, from_attributes=True)

    @property
    def custody_max(self) -> int:
        """The most messages that wait in custody for room. Half of ``max_held`` stays for inboxes: else a
        full node could never receive the missing message for which its streams wait."""
        return min(self.custody_limit, max(1, self.max_held // 2))

    @property
    def streams_max(self) -> int:
        """The most streams that the node takes."""
        return self.slots * self.streams_per_slot_max

    @property
    def forward_bytes_max(self) -> int:
        """The most bytes of bodies in one call to another node, unless a single body is larger."""
        return min(FORWARD_BYTES_MAX, self.max_peer_bytes - FORWARD_OVERHEAD_BYTES)
