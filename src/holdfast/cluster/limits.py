"""Every limit of a node in one record. The config fills it; the simulator makes its own."""

from __future__ import annotations

import msgspec

from holdfast.common.retry import Backoff

FORWARD_BYTES_MAX = 4 << 20
"""Bodies in one forward, unless a single one is larger: more would make others wait for it."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """A node's limits. Times in seconds.

    Attributes:
        ttl_s: life of the membership without renewal; ``renew_s`` is the pause between renewals.
        visibility_s: how long a delivery stays invisible unless extended.
        receive_wait_s: longest wait of one receive.
        room_check_s: pause of a pump that has no room, before it looks again.
        max_held: messages in inboxes and custody at which the pumps stop.
        custody_limit: messages in custody, beyond which one that finds no owner goes back at once.
        forward_bytes_max: bodies that one call to another node carries, unless a single one is larger.
        custody_check_s: an accepted message not reported for so long is offered again.
        slots, spare_slots: child processes that run handlers, and warm ones in reserve.
        streams_max: streams that the node takes.
        peer_timeout_s: longest call to another node.
        move_timeout_s: longest wait for the new owner to warm up, beside the loading of models.
        model_timeout_s: longest loading of one model.
        balance_s: pause between looks at the load of all nodes; 0: never.
        rest_s: how long a stream stays where it was moved or begun, whatever the load.
        drain_timeout_s: longest graceful stop.
        idle_timeout_s: a stream without messages for so long is released, unless it sets its own.
        retry: pauses between tries of calls that may be repeated.
        defer: pauses before a message that found no room is offered again; ``give_back_after`` tries
            later it goes back to the queue for ``give_back_s``, with jitter.
    """

    ttl_s: float = 5.0
    renew_s: float = 1.5
    visibility_s: float = 30.0
    receive_wait_s: float = 5.0
    room_check_s: float = 0.02
    max_held: int = 5000
    custody_limit: int = 2000
    forward_bytes_max: int = FORWARD_BYTES_MAX
    custody_check_s: float = 15.0
    slots: int = 2
    spare_slots: int = 1
    streams_max: int = 100_000
    peer_timeout_s: float = 5.0
    move_timeout_s: float = 10.0
    model_timeout_s: float = 120.0
    balance_s: float = 10.0
    rest_s: float = 60.0
    drain_timeout_s: float = 30.0
    idle_timeout_s: float = 60.0
    retry: Backoff = Backoff(0.02, 1.0)
    defer: Backoff = Backoff(0.05, 1.0)
    give_back_after: int = 12
    give_back_s: float = 5.0
    max_state_bytes: int = 8 << 20
    results_keep_s: float = 7 * 86400.0
    dead_keep_s: float = 30 * 86400.0
    idle_keep_s: float = 90 * 86400.0
