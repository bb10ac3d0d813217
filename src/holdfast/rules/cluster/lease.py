"""The rule for how long a lease may be trusted.

The service counts a lease from the time when it handled the request, which isn't before the request was sent.
So a holder that counts from the sending, less a margin for clock drift, stops trusting the lease before it
ends at the service.
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
        """The time after which nothing new is started."""
        return self.sent_at + self.ttl_s * (1.0 - self.drift)

    def holds(self, now: float) -> bool:
        """Return True while the lease may be trusted."""
        return now < self.deadline

    def renewed(self, sent_at: float) -> Lease:
        """Return the lease after a successful renewal that was sent at ``sent_at``."""
        return Lease(self.ttl_s, max(self.sent_at, sent_at), self.drift)
