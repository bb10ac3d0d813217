"""The shards that a dispatcher serves, each with a connection to its broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from holdfast.devices.dispatcher.listener import Listener
from holdfast.devices.dispatcher.shard import ServedShard
from holdfast.devices.dispatcher.shared import Part, Shared
from holdfast.devices.ports.device import Connect
from holdfast.devices.ports.outbox import OutboxStore, fenced
from holdfast.errors import Fenced, OutcomeUnknown, Unavailable
from holdfast.extend.products import Host

LAST_TURN_S = 5.0
"""Seconds for which a shard that is given up waits for a turn that writes its devices' answers, at most."""


class ServedShards(Part):
    """Opens, connects and closes the shards of one node.

    Args:
        on_lost: called with a shard that another node owns.

    Attributes:
        on_first_shard: called with the epoch of shard 0 while this node serves it, else with None.
    """

    def __init__(
        self,
        shared: Shared,
        store: OutboxStore,
        connect: Connect,
        host: Host,
        *,
        on_lost: Callable[[int], None],
    ) -> None:
        super().__init__(shared)
        self._store = store
        self._connect = connect
        self._host = host
        self._tasks = host.tasks
        self._on_lost = on_lost
        self.on_first_shard: Callable[[int | None], None] = lambda _: None
        self._closing: dict[int, asyncio.Task[Any] | None] = {}
        self.listener = Listener(shared, on_connection=self._note_connections, on_taken_over=self.give_up)

    @property
    def troubles(self) -> tuple[str, ...]:
        """The reasons why commands are not sent, in words."""
        away = Counter(shard.away for shard in self._shards.values() if shard.away)
        return tuple(
            f"{count} of the {len(self._shards)} shards of the outbox {self._spec.name!r} here have no"
            f" connection to their broker: {reason}"
            for reason, count in away.items()
        )

    async def own(self, number: int, epoch: int, member: str = "") -> None:
        """Begin to serve a shard that was opened with ``epoch`` for ``member``. Raises Unavailable if its
        devices can't be read from the store."""
        shard = ServedShard(number, epoch, member)
        known = await self._store.known_devices(self._spec.name, number)
        shard.devices = self._connect(self._spec.identity(number), partial(self._is_ours, shard))
        shard.devices.watch(each.device for each in known)
        if not self._shards:
            self._clock_watch.restart()
        self._shards[number] = shard
        self._note_connections()
        self._register.add_shard(known)
        self._limits.take_share(len(self._shards))
        self._pending.restore_shard(number)
        self._in_flight.mark_stale()
        self._clock_watch.doubt()
        if number == 0:
            self.on_first_shard(epoch)
        await shard.devices.start()
        shard.reading = self._tasks.repeat(partial(self.listener.read, shard), self._clock, self._log)

    async def disown(self, number: int) -> None:
        """End to serve a shard; return once no turn has it. Answers that came by now are written first, if
        the database and the membership allow it."""
        if (shard := self._shards.get(number)) is not None:
            await self._end_connection(shard)
            if self._pending.answers and self._host.membership.alive:
                next_ended = self._signals.next_ended
                self._signals.wake.set()
                await self._clock.wait(next_ended, LAST_TURN_S)
            self._drop(number)
        if (closing := self._closing.pop(number, None)) is not None:
            await closing

    def give_up(self, number: int) -> None:
        """Give up a shard that another node owns, or may own. Its connection ends at once, so that the broker
        keeps later answers for the next owner."""
        if number in self._shards:
            self._drop(number)
            self._on_lost(number)

    def doubt(self, numbers: Iterable[int]) -> None:
        """Have shards opened again before the next turn, because a turn of unknown outcome may still
        happen."""
        for number in numbers:
            if number in self._shards:
                self._shards[number].in_doubt = True

    async def reopen_doubted(self) -> None:
        """Open shards in doubt again: their new epochs fence a turn that may still happen. Raises
        HoldfastError if the store can't."""
        in_doubt = [shard for shard in self._shards.values() if shard.in_doubt]
        epochs = await self._store.epochs(self._spec.name) if in_doubt else {}
        for shard in in_doubt:
            number, expect = shard.number, shard.epoch
            try:
                if epochs.get(number) != expect:
                    raise fenced(self._spec.name, number, epochs.get(number, 0))
                async with shard.opening:
                    shard.epoch = await self._store.open(self._spec.name, number, expect, shard.member)
            except Fenced as error:
                self._log.warning("shard given up", outbox=self._spec.name, shard=number, error=str(error))
                self.give_up(number)
            else:
                shard.in_doubt = False
                if number == 0 and self._shards.get(number) is shard:
                    self.on_first_shard(shard.epoch)

    def sendable(self, monotonic: float) -> list[int]:
        """Return the shards that can send now."""
        late_s = self._spec.patience.late_s
        return [shard.number for shard in self._shards.values() if shard.is_sendable(monotonic, late_s)]

    def send_waits_s(self, monotonic: float) -> list[float]:
        """Return the seconds until connected shards send again, for shards that don't yet."""
        waits_s = [shard.sends_from - monotonic for shard in self._shards.values() if shard.connected]
        return [wait_s for wait_s in waits_s if wait_s > 0]

    async def _is_ours(self, shard: ServedShard) -> bool:
        """Return whether the epoch of a shard is current. Raises Unavailable if the store doesn't answer."""
        try:
            async with shard.opening:
                return (await self._store.epochs(self._spec.name)).get(shard.number) == shard.epoch
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error

    def _drop(self, number: int) -> None:
        if (shard := self._shards.pop(number, None)) is not None:
            if number == 0:
                self.on_first_shard(None)
            self._in_flight.mark_stale()
            self._note_connections()
            self._limits.take_share(len(self._shards))
            self._closing[number] = self._tasks.spawn(self._close(shard))

    async def _close(self, shard: ServedShard) -> None:
        await self._end_connection(shard)
        await self._signals.idle.wait()
        self._pending.keep_shard(shard.number)
        self._register.drop_shard(shard.number)
        shard.end()

    async def _end_connection(self, shard: ServedShard) -> None:
        """Close the connection, and take in the answers that came before."""
        shard.disconnect(shard.away)
        if shard.reading is not None:
            shard.reading.cancel()
        await shard.devices.close()
        await self.listener.read_last(shard)

    def _note_connections(self) -> None:
        self._register.listening.run(all(shard.connected for shard in self._shards.values()))
