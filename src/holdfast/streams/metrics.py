"""The numbers that metrics show of a node's streams: what it holds, and what it counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.cluster.host import Host
from holdfast.cluster.stats import BUSY, SLOTS_MAX, Numbers
from holdfast.rules.cluster.placement import STREAMS
from holdfast.rules.streams.activity import oldest_s
from holdfast.streams.archiver import Archiver
from holdfast.streams.obstacles import Obstacles
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.pending_forwards import PendingForwards
from holdfast.streams.slots import SlotHandles
from holdfast.streams.waiting_streams import WaitingStreams

UNDECLARED = "(undeclared)"
"""The label of models that the app doesn't declare."""


class StreamMetrics:
    """The numbers of one node. ``streams`` and ``models`` name what the app declares."""

    def __init__(
        self,
        host: Host,
        streams: Collection[str],
        models: Collection[str],
        owners: OwnerRegistry,
        forwards: PendingForwards,
        pool: SlotHandles,
        obstacles: Obstacles,
        waiting_streams: WaitingStreams,
        archivers: Mapping[str, Archiver],
    ) -> None:
        self._host = host
        self._streams = streams
        self._models = models
        self._owners = owners
        self._forwards = forwards
        self._pool = pool
        self._obstacles = obstacles
        self._waits = waiting_streams
        self._archivers = archivers

    def gauges(self, memory_mb: Mapping[str, int]) -> Iterable[tuple[str, str, float]]:
        """Yield what the node holds of streams: the name of each number, what it means, and the number.
        ``memory_mb`` is what each declared model takes."""
        owned = list(self._owners)
        yield (
            "held",
            "Messages in inboxes (limit: inbox_limit a stream, max_held).",
            sum(len(o.owner.inbox) for o in owned),
        )
        yield (
            "custody",
            "Messages in custody for other owners (limits: custody_limit, max_held).",
            len(self._forwards),
        )
        yield (
            "model_memory_mb",
            "Memory of the models loaded in all slots, as declared (limit: model_memory_mb a slot).",
            sum(memory_mb[name] * count for name, count in self._pool.models.items()),
        )
        yield (
            "streams_without_models",
            "Declared streams that can't run here, for a model of theirs doesn't load.",
            len(self._obstacles.streams),
        )
        yield (
            "archive_waiting",
            "Committed messages that wait for their archive (limit: half of max_held a stream).",
            sum(archiver.waiting for archiver in self._archivers.values()),
        )
        yield (
            "parked_streams",
            "Owned streams that are parked (the console lists those without an owner too).",
            sum(bool(o.owner.commits.parked) for o in owned),
        )
        pending = [effects for o in owned if (effects := o.owner.commits.effects.report()) is not None]
        yield (
            "pending_effects",
            "Effects of owned streams that no target has taken yet (limit: max_pending_effects a stream).",
            sum(effects.count for effects in pending),
        )
        now = self._host.clock.wall()
        yield (
            "pending_effects_seconds",
            "Seconds since the oldest of these was committed; 0 without one.",
            max((max(0.0, now - effects.oldest_at) for effects in pending), default=0.0),
        )

    def numbers(self) -> Iterable[Numbers]:
        """Yield what the node counts and holds of streams, by names that the app declares."""
        pool = self._pool
        yield Numbers(
            "gauge",
            "oldest_message_seconds",
            "How long ago the oldest message was received that the node holds for a stream that it owns; 0 if"
            " it holds none.",
            "stream",
            self._oldest_s(),
        )
        yield Numbers(
            "gauge",
            "longest_wait_seconds",
            "For how long the stream has waited that waits longest, by what for; 0 if none does.",
            "reason",
            self._waits.longest(),
        )
        yield Numbers("gauge", "slots_busy", BUSY, "work", {STREAMS: pool.busy})
        yield Numbers("gauge", "slots_max", SLOTS_MAX, "work", {STREAMS: self._host.limits.slots})
        yield Numbers(
            "gauge",
            "models_loaded",
            "Slots in which the model is loaded.",
            "model",
            self._by_model(pool.models),
        )
        yield Numbers(
            "counter", "model_loads", "Loads of models in slots.", "model", self._by_model(pool.model_loads)
        )
        yield Numbers(
            "counter",
            "model_load_failures",
            "Loads that failed, hung or ended their slot.",
            "model",
            self._by_model(pool.model_failures),
        )

    def _oldest_s(self) -> dict[str, float]:
        now, oldest = self._host.clock.monotonic(), dict.fromkeys(self._streams, 0.0)
        for entry in self._owners.with_messages():
            name = entry.spec.name
            oldest[name] = max(oldest[name], oldest_s(entry.owner.inbox.to_extend(), now))
        return oldest

    def _by_model(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Return counts by declared model. Handlers may ask for others under any name: these count
        together."""
        found = dict.fromkeys(self._models, 0.0)
        for name, count in counts.items():
            label = name if name in self._models else UNDECLARED
            found[label] = found.get(label, 0.0) + count
        return found
