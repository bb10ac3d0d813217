"""A node's shards of an outbox: claimed at the coordinator, opened at the store, shared evenly."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.devices.dispatcher import Dispatcher
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import HoldfastError
from holdfast.extend import Claim, Member
from holdfast.extend.products import Host

CHECK_S = 10.0
"""Seconds between checks for claims that this node doesn't know of: a request may arrive late."""

LOOK_S = 1.0
"""Seconds between looks for free shards, and for shards that other nodes should have."""


class Shards:
    """Keeps this node's share of the shards of one outbox, while its membership lives."""

    def __init__(self, host: Host, spec: OutboxSpec, store: OutboxStore) -> None:
        self._host = host
        self._spec = spec
        self._store = store
        self._claims: dict[int, Claim] = {}
        self._look = asyncio.Event()
        self._gone: dict[int, None] = {}
        self._unsure: dict[int, None] = {}
        """Shards that this node doesn't serve, but may have a claim on."""
        self._checks_at = 0.0
        self.dispatcher: Dispatcher

    async def run(self) -> None:
        """Claim and release, as members come and go, until cancelled."""
        while True:
            try:
                await self._settle()
            except HoldfastError as error:
                self._host.log.warning("cannot balance shards", outbox=self._spec.name, error=str(error))
            self._look.clear()
            await self._host.clock.wait(self._look, LOOK_S * (0.75 + 0.5 * self._host.clock.random()))

    def look(self) -> None:
        """Balance the shards soon."""
        self._look.set()

    def lost(self, number: int) -> None:
        """Give up a shard that another node owns."""
        self._gone[number] = None
        self._look.set()

    def vanished(self) -> None:
        """Give up all shards, because the membership and its claims are over."""
        self._gone |= dict.fromkeys(self._claims)
        self._look.set()

    def claim_changed(self, claim: Claim) -> None:
        """Take in a changed claim."""
        label, _, number = claim.key.rpartition("/")
        if label != self._spec.label or not number.isdigit():
            return
        held = self._claims.get(int(number))
        if held is not None and claim.version > held.version:
            self._gone[int(number)] = None
        self._look.set()

    async def release_all(self) -> None:
        """Give up all shards, and release their claims."""
        for number in list(self._claims):
            try:
                await self._release(number)
            except HoldfastError as error:  # the claim ends with the membership
                self._host.log.warning("cannot release shard", outbox=self._spec.name, error=str(error))

    async def _settle(self) -> None:
        for number in list(self._gone):
            del self._gone[number]  # one by one: after a failure the others still have to be released
            await self._release(number)
        if (now := self._host.clock.monotonic()) >= self._checks_at:
            self._checks_at = now + CHECK_S
            self._unsure |= dict.fromkeys(set(range(self._spec.shards)) - self._claims.keys())
        for number in list(self._unsure):
            await self._make_sure(number)
        membership = self._host.membership
        if not membership.alive or self._host.draining:
            return
        share = self._share(membership.view.values())
        for number in sorted(self._claims)[share:]:
            await self._release(number)
        if len(self._claims) < share:
            await self._claim_some(share)

    def _share(self, members: Any) -> int:
        """Return how many shards this node should have: serving members divide them evenly, and members with
        the lowest ids take one more."""
        me = self._host.membership.id
        serving = sorted({me, *(member.id for member in members if self._serves(member))})
        each, over = divmod(self._spec.shards, len(serving))
        return each + (serving.index(me) < over)

    def _serves(self, member: Member) -> bool:
        return self._spec.name in member.load.offers and not member.load.draining

    async def _claim_some(self, share: int) -> None:
        me = self._host.membership.id
        epochs = await self._store.epochs(self._spec.name)
        # Each node begins at another shard, so that two seldom claim the same one.
        start = int(self._host.clock.random() * self._spec.shards)
        for step in range(self._spec.shards):
            number = (start + step) % self._spec.shards
            if len(self._claims) >= share or self._host.draining:
                return
            if number in self._claims or number not in epochs:  # the store has logged an invalid shard
                continue
            self._unsure[number] = None
            claim = await self._host.coordinator.claim(self._spec.key(number), me)
            if claim.member == me and self._host.membership.alive:
                await self._open(claim, number, epochs[number])
            self._unsure.pop(number, None)
            if self._host.news.overtook(claim):
                self.lost(number)

    async def _open(self, claim: Claim, number: int, expect: int) -> None:
        epoch = await self._store.open(self._spec.name, number, expect, claim.member)
        self._claims[number] = claim
        try:
            await self.dispatcher.served.own(number, epoch, claim.member)
        except HoldfastError:
            self._claims.pop(number, None)  # it stays in ``_unsure``
            raise
        if self._host.draining:  # since a moment ago
            await self._release(number)
            return
        self._host.log.info("shard opened", outbox=self._spec.name, shard=number, epoch=epoch)

    async def _release(self, number: int) -> None:
        await self.dispatcher.served.disown(number)
        if self._claims.pop(number, None) is not None:
            self._unsure[number] = None
            await self._make_sure(number)

    async def _make_sure(self, number: int) -> None:
        """Release the claim on a shard that isn't served, if there is one."""
        claim = await self._host.coordinator.lookup(self._spec.key(number))
        if claim is not None and claim.member == self._host.membership.id:
            await self._host.coordinator.release(claim)
        self._unsure.pop(number, None)
