"""The latency of messages from the queue to their commit, from the counts that nodes report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.cluster.timings import SHORT_S


class Latency:
    """The latency of messages between two reports. Nodes count since their start, so new counts are
    differences; a new node's first report counts nothing."""

    def __init__(self) -> None:
        self._reported: dict[str, Sequence[int]] = {}
        self._new = [0] * (len(SHORT_S) + 1)

    def take(self, reports: Mapping[str, Sequence[int]]) -> None:
        """Take the counts of nodes by membership."""
        for member, counts in reports.items():
            before = self._reported.get(member)
            if before is not None and len(counts) == len(before) == len(self._new):
                self._new = [
                    new + max(0, now - then) for new, now, then in zip(self._new, counts, before, strict=True)
                ]
        self._reported = {member: list(counts) for member, counts in reports.items()}

    def quantiles(self, *shares: float) -> list[float | None]:
        """Return the latencies in seconds that these shares of the messages since the last call don't exceed,
        interpolated between the bounds; None without messages."""
        counts, self._new = self._new, [0] * len(self._new)
        total = sum(counts)
        return [_quantile(counts, share * total) if total else None for share in shares]


def _quantile(counts: Sequence[int], rank: float) -> float:
    below = 0
    for place, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = SHORT_S[place - 1] if place else 0.0
            return low + (SHORT_S[place] - low) * (rank - below) / count
        below += count
    return SHORT_S[-1]
