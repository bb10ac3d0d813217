"""The latency of messages from the queue to their commit, over a while, from what nodes tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.cluster.timings import SHORT_S


class Latency:
    """The latency of messages between two looks. Nodes count since they began; what is new since the look
    before is the difference. A node that is new tells nothing yet."""

    def __init__(self) -> None:
        self._told: dict[str, Sequence[int]] = {}
        self._new = [0] * (len(SHORT_S) + 1)

    def take(self, told: Mapping[str, Sequence[int]]) -> None:
        """Take what nodes tell, by membership."""
        for member, counts in told.items():
            before = self._told.get(member)
            if before is not None and len(counts) == len(before) == len(self._new):
                self._new = [
                    new + max(0, now - then) for new, now, then in zip(self._new, counts, before, strict=True)
                ]
        self._told = {member: list(counts) for member, counts in told.items()}

    def quantiles(self, *shares: float) -> list[float | None]:
        """Return the latencies, in seconds, that these shares of the messages since the last call don't
        exceed, interpolated between the bounds; None if there was none."""
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
