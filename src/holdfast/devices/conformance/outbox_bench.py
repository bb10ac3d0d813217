"""The fixtures of the conformance suite of outbox stores, and the dispatcher that its tests drive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest

from holdfast.devices.ports.outbox import NewCommand, OnResult, OutboxStore, Writer
from holdfast.devices.rules.device_queue import Patience, StoredCommand, shard_of
from holdfast.devices.rules.device_turn import CommandAnswer, Sending, TurnRequest, TurnResult

Begin = Callable[[], AbstractContextManager[Writer]]
"""Begins a transaction of the business, committed at its end and rolled back if that raises."""

OUTBOX = "doors"
SHARDS = 3
"""Number of shards at which devices whose names differ in one digit are in different shards."""
NOW = 1_700_000_000.0
"""The wall time of the first turn: turns bring theirs with them."""

PATIENCE = Patience(retry_s=10.0, retry_max_s=40.0, max_tries=3, probe_s=60.0)
LATEST_S = 14.0
"""Seconds after which the first try is over at any jitter."""

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

PATIENCE_S = 30.0
"""Seconds for which a test waits for an expected event."""


class Driver:
    """A dispatcher that tests drive. ``now`` is the wall time of its next turn.

    Attributes:
        grants: the epochs of its shards.
        reported: the commands whose end the business was given.
    """

    def __init__(
        self,
        store: OutboxStore,
        member: str = "member",
        shards: int = SHARDS,
        begin: Begin | None = None,
        outbox: str = OUTBOX,
    ) -> None:
        self.outbox = outbox
        self.shards = shards
        self.store = store
        self.member = member
        self._begin = begin
        self.now = NOW
        self.grants: dict[int, int] = {}
        self.reported: list[StoredCommand] = []
        self.on_result: OnResult | None = lambda _, entry: self.reported.append(entry)

    async def open(self, *shards: int) -> None:
        """Open shards, or all."""
        epochs = await self.store.epochs(self.outbox)
        for shard in shards or epochs:
            self.grants[shard] = await self.store.open(self.outbox, shard, epochs[shard], self.member)

    async def take_turn(self, **brought: Any) -> TurnResult:
        """Take a turn."""
        brought.setdefault("sendable", list(self.grants))
        brought.setdefault("shards", self.shards)
        request = TurnRequest(
            outbox=self.outbox, grants=self.grants, now=self.now, patience=PATIENCE, **brought
        )
        return await self.store.take_turn(request, self.on_result)

    async def send(self, **brought: Any) -> list[Sending]:
        """Take a turn, and return the tries to be sent."""
        return (await self.take_turn(**brought)).sendings

    def add(self, commands: Sequence[NewCommand]) -> list[int]:
        """Add commands in a transaction of the business."""
        with self.begin() as db:
            return db.add(commands)

    def begin(self) -> AbstractContextManager[Writer]:
        """Begin a transaction of the business."""
        assert self._begin is not None
        return self._begin()

    async def stored(self, number: int) -> StoredCommand:
        """Return a command that the store has."""
        entry = await self.store.command(number)
        assert entry is not None
        return entry


def new(device: str, body: bytes = b"do", **fields: Any) -> NewCommand:
    """A command to add."""
    return NewCommand(outbox=OUTBOX, device=device, shard=shard_of(device, SHARDS), body=body, **fields)


def elsewhere(device: str, shard: int = 9, **fields: Any) -> NewCommand:
    """A command of a program that takes the outbox for one with other shards."""
    return msgspec.structs.replace(new(device, **fields), shard=shard)


def answer(sending: Sending, body: bytes = b"done", **fields: Any) -> CommandAnswer:
    """The device's answer to a try."""
    return CommandAnswer(sending.device, sending.correlation, body, **fields)


def bodies(sendings: Sequence[Sending]) -> list[bytes]:
    """Return the bodies that were sent, in order of devices."""
    return [sending.body for sending in sorted(sendings, key=lambda sending: (sending.device, sending.body))]


class OutboxFixtures:
    """The fixtures of the suite. Override ``store``, new and empty, and ``begin``, which begins transactions
    of the business in the store's database."""

    @pytest.fixture
    def store(self) -> OutboxStore:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture store")

    @pytest.fixture
    def begin(self, store: OutboxStore) -> Begin:
        """Override: begin a transaction of the business."""
        raise NotImplementedError("define the fixture begin")

    @pytest.fixture
    def other_store(self, store: OutboxStore) -> OutboxStore:
        """Override where several clients may share a store: another one of the same store."""
        return store

    @pytest.fixture
    async def driver(self, store: OutboxStore, begin: Begin) -> Driver:
        """A dispatcher that owns all shards."""
        devices = ("d0", "d1", "d2")
        assert {shard_of(device, SHARDS) for device in devices} == {*range(SHARDS)}, "tests use every shard"
        await store.prepare(OUTBOX, SHARDS)
        driver = Driver(store, begin=begin)
        await driver.open()
        return driver
