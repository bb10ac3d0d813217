"""Runs the handler of a stream without queue, node or process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.common.acts import Acts
from holdfast.common.held import Held
from holdfast.errors import HandlerFailed, ModelFailed, StateRejected, TooLarge
from holdfast.ports.objects import Objects
from holdfast.ports.slots import MessageWork, QueryResult
from holdfast.rules.streams.ledger import Timer
from holdfast.rules.streams.timers import REARM_S, Timers, place_of
from holdfast.streams.models import ModelSpec
from holdfast.streams.spec import StreamSpec
from holdfast.streams.worker import StreamWorker


class Handled(NamedTuple):
    """The result and the acts of one message or timer. With ``error``, what the handler or its models raised,
    nothing else counts."""

    result: bytes | None = None
    acts: Acts = Acts()
    error: BaseException | None = None


class OfflineStream:
    """One declared stream. It keeps the state and the timers of each key as commits would keep them, and
    takes ``wall_s`` for the time.

    Its calls can be stepped with ``drive``, like the calls of a worker. ``first`` is the snapshot, and its
    version, that keys begin with; a version of None is that of the handler. ``on_progress`` is called with
    the notes of ``context.progress``.
    """

    def __init__(
        self,
        spec: StreamSpec,
        objects: Objects | None,
        *,
        models: Mapping[str, ModelSpec],
        targets: Collection[str],
        first: tuple[bytes | None, int | None] = (None, None),
        on_progress: Callable[[str], None] = lambda note: None,
    ) -> None:
        self.spec = spec
        self.wall_s = 0.0
        self._objects = objects
        self._declared_models = models
        self._targets = targets
        self._first = first
        self._on_progress = on_progress
        self._states: dict[str, tuple[bytes | None, int]] = {}
        self._timers: dict[str, Timers] = {}
        self._opened: set[str] = set()
        self._worker: StreamWorker | None = None
        self._error: BaseException | None = None

    def state_of(self, key: str) -> tuple[bytes | None, int]:
        """Return the last snapshot of a key, and its version."""
        state, version = self._states.get(key, self._first)
        return state, self.spec.handler.version if version is None else version

    def timers_of(self, key: str) -> Timers:
        """Return the timers of a key."""
        return self._timers.setdefault(key, Timers())

    def next_due(self, until: float) -> tuple[str, Timer] | None:
        """Return the timer that is due first, if one is due at the wall time ``until``, with its key."""
        due = [(key, timers.due(until)) for key, timers in self._timers.items()]
        found = [(key, timer) for key, timer in due if timer is not None]
        return min(found, key=lambda each: (each[1].at, each[0]), default=None)

    async def handle(self, key: str, work: MessageWork) -> Handled:
        """Handle a message. After an error, what it sent, set and cleared doesn't count, and the handler is
        opened again from the last snapshot before the next one."""
        return await self._run(key, work, None)

    async def fire(self, key: str, timer: Timer) -> Handled:
        """Let a timer fire, which is then gone unless it is set again. After an error it still stands."""
        place = place_of(timer)
        work = MessageWork(place.run, place.seq, timer.body, wake=timer.name)
        return await self._run(key, work, timer)

    def drop(self, key: str, timer: Timer) -> None:
        """Pass over a timer that failed."""
        self.timers_of(key).fired(_firing_of(timer))

    async def query(self, key: str, request: bytes) -> QueryResult:
        """Return the answer of the handler's ``query`` from the last snapshot; an error if it changes the
        state."""
        self._error = None
        state, version = self.state_of(key)
        return await self._running().query(self.spec.name, key, state, version, request, check=True)

    @property
    def error(self) -> BaseException | None:
        """The error that the handler raised last; None if its last run raised none."""
        return self._error

    async def restart(self) -> BaseException | None:
        """Go on with new instances from the last snapshots, and load models again; returns what that raised,
        if anything."""
        await self.stop()
        for key in sorted(self._opened):
            if (error := await self._open(key)) is not None:
                return error
        return None

    async def forget(self, key: str) -> None:
        """Close a key, and forget its state and its timers."""
        if key in self._opened:
            await self._running().close(self.spec.name, key)
        self._opened.discard(key)
        self._states.pop(key, None)
        self._timers.pop(key, None)

    async def stop(self) -> None:
        """Close all handlers and the object store."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    async def _run(self, key: str, work: MessageWork, timer: Timer | None) -> Handled:
        if key not in self._opened and (error := await self._open(key)) is not None:
            return Handled(error=error)
        self._error = None
        ran = await self._running().run(self.spec.name, key, [work], 1, float("inf"))
        if ran.error:
            self._opened.discard(key)
            return Handled(error=self.error or HandlerFailed(ran.error))
        acts = (ran.acts[0] if ran.acts else None) or Acts()
        timers = self.timers_of(key)
        most = self.spec.max_timers
        if (count := timers.would_be(acts.timers)) > most:
            self._opened.discard(key)
            text = f"the stream would have {count} timers; it can have {most} (max_timers)"
            return Handled(error=TooLarge(text))
        rearmed_at = 0.0
        if timer is not None:
            timers.fired(_firing_of(timer))
            rearmed_at = self.wall_s + REARM_S
        timers.change(acts.timers, rearmed_at)
        self._states[key] = (ran.state, ran.version)
        return Handled(ran.results[0], acts)

    async def _open(self, key: str) -> BaseException | None:
        """Open a key from its last snapshot; returns what that raised, if anything."""
        state, version = self.state_of(key)
        self._opened.discard(key)
        try:
            await self._running().open(self.spec.name, key, state, version)
        except HandlerFailed as failure:
            return failure.__cause__ or failure
        except (ModelFailed, StateRejected) as failure:
            return failure
        self._opened.add(key)
        return None

    def _running(self) -> StreamWorker:
        if self._worker is None:
            self._worker = StreamWorker(
                {self.spec.name: self.spec},
                self._objects,
                self,
                models=self._declared_models,
                targets=self._targets,
            )
        return self._worker

    # The methods of the worker's host.

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return self.wall_s

    def progress(self, stream: str, key: str, note: str = "") -> None:
        self._on_progress(note)

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        self._error = error

    def report_models(self, stream: str, key: str, loading: str, loaded: Sequence[str]) -> None:
        pass


def _firing_of(timer: Timer) -> Held:
    return Held(place_of(timer), timer.body, {}, [])
