"""The devices of an outbox as work of a node: its share of the shards, served by one dispatcher."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.devices.briefs import Briefs
from holdfast.devices.dispatcher import Dispatcher
from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.device import Connect
from holdfast.devices.ports.outbox import OutboxStore, WriterSettings
from holdfast.devices.shards import Shards
from holdfast.devices.source import fill
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.extend import Load, Queue, retry_call
from holdfast.extend.products import Host
from holdfast.extend.tools import Backoff

BACKOFF = Backoff(0.1, 5.0)
EXPIRE_BATCH = 500
EXPIRE_PAUSE_S = 0.05
"""Seconds between batches of a clean-up, so that the dispatcher gets the database in between."""


class DeviceWork:
    """The devices of one outbox of ``app`` on one node. ``connect`` makes the devices of a shard; ``briefs``
    is the queue of briefs, if the outbox has one."""

    def __init__(
        self,
        host: Host,
        outbox: Outbox,
        store: OutboxStore,
        connect: Connect,
        *,
        app: str = "",
        briefs: Queue | None = None,
    ) -> None:
        self._host = host
        self._outbox = outbox
        self._store = store
        self._filling: list[asyncio.Task[Any]] = []
        self.name = outbox.spec.name
        self.shards = Shards(host, outbox.spec, store)
        self.dispatcher = self.shards.dispatcher = Dispatcher(
            outbox,
            store,
            connect,
            host,
            on_lost=self.shards.lost,
        )
        self.dispatcher.served.on_first_shard = self._fill
        self.briefs: Briefs | None = None
        if briefs is not None:
            self.briefs = Briefs(host, app, outbox.spec.name, store, briefs, self.dispatcher.shards)
            self.dispatcher.on_closed = self.briefs.wake
        self._listen()

    def _listen(self) -> None:
        news = self._host.news
        news.on_left.append(self._members_changed)
        news.on_lost.append(self.shards.vanished)
        news.on_claim.append(self.shards.claim_changed)
        news.on_missed.append(self.shards.look)

    def _members_changed(self, member: str) -> None:
        self.shards.look()

    async def prepare(self) -> None:
        spec = self._outbox.spec
        adding = WriterSettings(spec.lanes, spec.expires_in_s, spec.max_body)

        def failed(error: Exception) -> None:
            if not isinstance(error, Unavailable | OutcomeUnknown):
                raise error
            self._host.log.warning("cannot prepare outbox", outbox=spec.name, error=str(error))

        await retry_call(
            lambda: self._store.prepare(spec.name, spec.shards, adding), self._host.clock, BACKOFF, failed
        )

    def begin(self, address: str) -> None:
        self._host.tasks.repeat(self.dispatcher.run, self._host.clock, self._host.log)
        self._host.tasks.repeat(self.shards.run, self._host.clock, self._host.log)
        if self.briefs is not None:
            self._host.tasks.repeat(self.briefs.run, self._host.clock, self._host.log)

    def _fill(self, epoch: int | None) -> None:
        """Fetch from sources while this node owns shard 0 at ``epoch``; with None it doesn't own it."""
        for task in self._filling:
            task.cancel()
        self._filling = []
        if epoch is None:
            return
        host = self._host
        fills = [
            host.tasks.spawn(fill(self._outbox, source, self._store, host.clock, host.log, epoch))
            for source in self._outbox.sources
        ]
        self._filling = [task for task in fills if task is not None]

    async def drain(self) -> None:
        await self.shards.release_all()

    async def close(self) -> None:
        await self._store.close()

    def load(self) -> Load:
        spec = self._outbox.spec
        queues = (spec.briefs,) if spec.briefs else ()
        return Load(
            room=0,
            draining=self._host.draining,
            offers=(spec.name,),
            queues=queues,
            troubles=self.dispatcher.served.troubles,
        )

    async def maintain(self) -> None:
        """Delete or archive commands that closed long ago by the database's clock, a batch at a time."""
        spec = self._outbox.spec
        try:
            before = await self._store.now() - spec.keep_s
            while await self._store.delete_closed(spec.name, before, EXPIRE_BATCH, archive=spec.archive):
                await self._host.clock.sleep(EXPIRE_PAUSE_S)
        except HoldfastError as error:
            self._host.log.warning("cannot delete closed commands", outbox=spec.name, error=str(error))
