"""When a lease may still be trusted.

The service counts a lease from when it handled the request, which is no earlier than when the request was
sent. So a holder that counts from the sending, less a margin for the drift of clocks, stops before the
service does.
"""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """A lease of ``ttl_s`` whose last successful request was sent at ``sent_at`` (monotonic seconds)."""

    ttl_s: float
    sent_at: float
    drift: float = 0.01

    @property
    def deadline(self) -> float:
        """Past this moment nothing new is started."""
        return self.sent_at + self.ttl_s * (1.0 - self.drift)

    def holds(self, now: float) -> bool:
        """True while the lease may be trusted."""
        return now < self.deadline

    def renewed(self, sent_at: float) -> Lease:
        """The lease after a renewal that was sent at ``sent_at`` and succeeded."""
        return Lease(self.ttl_s, max(self.sent_at, sent_at), self.drift)
