"""Devices for operators: in ``holdfast status``, ``doctor`` and the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.devices.spec import LABEL
from holdfast.errors import HoldfastError
from holdfast.extend.products import OperatorPart, StatusTable

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.extend import Claim, Member
    from holdfast.extend.api import Operation
    from holdfast.extend.pages import ProductPages
    from holdfast.extend.products import Finding, Services

WAITING_MAX = 1000
"""Waiting commands that are counted, at most: the status is read often, and a count reads each row."""


class OutboxStatus(msgspec.Struct):
    """The status of an outbox.

    Attributes:
        shards: how many shards each node serves.
        waiting: how many commands wait to be sent, up to ``WAITING_MAX``; None if the database doesn't
            answer.
        paused: ``all``, or the number of paused devices; empty if nothing is paused.
    """

    outbox: str
    shards: dict[str, int]
    waiting: int | None = None
    paused: str = ""

    @property
    def waits(self) -> str:
        """The number of waiting commands, in words; empty if it isn't known."""
        if self.waiting is None:
            return ""
        return f"{self.waiting} or more" if self.waiting >= WAITING_MAX else str(self.waiting)


class DevicesOperator(OperatorPart):
    """Outboxes in ``holdfast status``, ``doctor`` and the console."""

    def operations(self, services: Services) -> Sequence[Operation]:
        """Return operations on commands, if the settings name the business's database."""
        if not services.config.outbox_url:
            return []
        from holdfast.devices.api import DeviceOperations  # noqa: PLC0415

        return DeviceOperations(services).all()

    def pages(self) -> ProductPages:
        from holdfast.devices.outbox_pages import groups  # noqa: PLC0415
        from holdfast.extend.pages import ProductPages  # noqa: PLC0415

        return ProductPages("devices", Path(__file__).parent / "pages", [("/devices", "Devices")], groups)

    async def examine(self, services: Services, app: App | None) -> list[Finding]:
        """Check that the outboxes' database and the broker answer, if there are outboxes."""
        from holdfast.devices.adapters import open_devices, time_broker  # noqa: PLC0415
        from holdfast.extend.products import Finding, look_at  # noqa: PLC0415

        findings, config, outboxes = [], services.config, list(app.outboxes.values()) if app else []
        advice = ""

        async def devices() -> str:
            nonlocal advice
            for outbox in outboxes:
                open_devices(services, outbox.spec)
            median_ms, advice = await time_broker(services)
            return f"a message takes {median_ms:.1f} ms to the broker and back"

        if config.outbox_url or outboxes:
            findings.append(await look_at("outbox", config.outbox_url, partial(_tables, services)))
        if config.devices_url or outboxes:
            findings.append(await look_at("devices", config.devices_url, devices))
        if advice:
            findings.append(Finding("devices", "warning", advice))
        return findings

    async def examine_upgrade(self, services: Services) -> list[Finding]:
        """Describe the outboxes' tables and the missing ones, if ``outbox_url`` is set."""
        from holdfast.extend.products import look_at  # noqa: PLC0415

        if not (url := services.config.outbox_url):
            return []
        return [await look_at("outbox", url, partial(_tables, services))]

    async def status(
        self, services: Services, members: Sequence[Member], claims: Sequence[Claim]
    ) -> StatusTable:
        outboxes = _served(members, claims)
        await _ask_database(services, outboxes)
        return StatusTable(
            "outboxes",
            outboxes,
            ["outbox", "node", "shards", "commands waiting", "paused"],
            [
                [each.outbox, node, count, each.waits, each.paused]
                for each in outboxes
                for node, count in each.shards.items()
            ],
        )


async def _tables(services: Services) -> str:
    from holdfast.devices.adapters import open_outbox  # noqa: PLC0415

    store = open_outbox(services)
    try:
        return await store.describe()
    finally:
        await store.close()


def _served(members: Sequence[Member], claims: Iterable[Claim]) -> list[OutboxStatus]:
    names = {member.id: member.name for member in members}
    shards = {
        outbox: {member.name: 0 for member in members if outbox in member.load.offers}
        for outbox in sorted({outbox for member in members for outbox in member.load.offers})
    }
    for claim in claims:
        outbox, _, _ = claim.key.removeprefix(LABEL).rpartition("/")
        if outbox in shards and claim.member in names:
            node = names[claim.member]
            shards[outbox][node] = shards[outbox].get(node, 0) + 1
    return [OutboxStatus(outbox, nodes) for outbox, nodes in shards.items()]


async def _ask_database(services: Services, outboxes: list[OutboxStatus]) -> None:
    """Fill in waiting commands and pauses, as far as the business's database answers."""
    if not (outboxes and services.config.outbox_url):
        return
    from holdfast.devices.adapters import shared_outbox  # noqa: PLC0415

    store = shared_outbox(services)
    try:
        for each in outboxes:
            each.waiting = await store.count_waiting(each.outbox, WAITING_MAX)
            paused = dict(await store.paused(each.outbox))
            if "" in paused:
                each.paused = "all"
            elif paused:
                each.paused = f"{len(paused)} of its devices"
    except HoldfastError:
        return  # the status is shown without them


operator = DevicesOperator()
