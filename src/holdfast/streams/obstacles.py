"""The streams that this node can't run now, because one of their declared models doesn't load here.

The node reports this to the others, which then place no such stream here. It tries the load again with
pauses, because the file may have been repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.redaction import redact
from holdfast.common.retry import Backoff
from holdfast.errors import HandlerFailed
from holdfast.streams.slots import SlotCrash, SlotHandle, SlotHandles
from holdfast.streams.spec import StreamSpec

AGAIN = Backoff(1.0, 15.0)
"""The pauses between tries of a load that failed."""

PAUSE_PER_LOAD = 10
"""Factor of the last try's duration that a pause lasts at least, because other streams wait for the slot."""


def pause_s(failures: int, took_s: float, random: float, waiting: int = 1) -> float:
    """Return the seconds until the next try. ``waiting`` is the number of streams that share the slot and
    each try the load."""
    return max(AGAIN.delay_s(failures, random), PAUSE_PER_LOAD * took_s * waiting)


class Obstacle(msgspec.Struct, frozen=True):
    """The model that doesn't load, the error of its load, and the slot that tried it."""

    model: str
    reason: str
    handle: SlotHandle


class Obstacles:
    """The obstacles of one node, by stream.

    ``on_change`` is called with a stream when it gets an obstacle, when it still has it after another try,
    and when the obstacle is gone."""

    def __init__(
        self,
        specs: Mapping[str, StreamSpec],
        pool: SlotHandles,
        host: Host,
        *,
        on_change: Callable[[str], None],
    ) -> None:
        self._specs = specs
        self._pool = pool
        self._clock, self._tasks, self._log = host.clock, host.tasks, host.log
        self._on_change = on_change
        self._known: dict[str, Obstacle] = {}

    @property
    def streams(self) -> Mapping[str, Obstacle]:
        """The streams that have an obstacle."""
        return self._known

    def of(self, stream: str) -> str:
        """Return why a stream can't run here; "" if it can."""
        known = self._known.get(stream)
        return known.reason if known is not None else ""

    def known(self, spec: StreamSpec, handle: SlotHandle) -> str:
        """Return why a stream can't run in a slot; "" if no reason is known. One try of a failed load serves
        all streams."""
        loaded = handle.slot.models if handle.slot is not None else ()
        return "" if {*spec.models} <= {*loaded} else self.of(spec.name)

    def found(self, stream: str, model: str, reason: str, handle: SlotHandle) -> None:
        """Note that a model of the stream didn't load in the last call of a slot."""
        is_new = stream not in self._known
        self._known[stream] = Obstacle(model, reason, handle)
        if is_new:
            self._log.error(
                "cannot load model",
                stream=stream,
                model=model,
                error=reason,
                fix="repair the model's files; its streams move to other nodes or wait meanwhile",
            )
            self._tasks.spawn(self._try_again(stream, handle.took_s))
            self._on_change(stream)

    async def _try_again(self, stream: str, took_s: float) -> None:
        """Repeat the load until it works. ``took_s`` is how long the failed try took."""
        failures = 0
        while True:
            failures += 1
            await self._clock.sleep(pause_s(failures, took_s, self._clock.random()))
            known = self._known[stream]
            try:
                await self._load(stream, known)
            except (HandlerFailed, SlotCrash) as error:
                took_s = known.handle.took_s
                self._log.debug("cannot load model again", stream=stream, error=str(error))
                self._known[stream] = Obstacle(known.model, redact(str(error)), known.handle)
                self._on_change(stream)
            else:
                del self._known[stream]
                self._log.info("model loaded again", stream=stream, model=known.model)
                self._on_change(stream)
                return

    async def _load(self, stream: str, known: Obstacle) -> None:
        """Try the load. Each stream that opens in the slot asks for the model itself later."""
        spec = self._specs[stream]
        models = tuple(dict.fromkeys((*spec.models, known.model)))
        _, slot = await self._pool.call(
            known.handle,
            spec.timeout_s,
            lambda slot, call: slot.load(stream, "", models, call=call),
            of=f"stream {stream}",
        )
        await self._pool.close_stream(slot, stream, "", spec.timeout_s)
