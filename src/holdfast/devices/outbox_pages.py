"""The console's pages of outboxes, their rollouts and devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args
from urllib.parse import urlencode

from aiohttp import web

from holdfast.devices import actions
from holdfast.devices.outboxes import (
    DeviceFilter,
    Outboxes,
    number_in,
    rollout_state,
)
from holdfast.devices.rules.device_queue import HeadPhase
from holdfast.errors import HoldfastError
from holdfast.extend.pages import ConsoleParts, Group, RequestRefused, action_route, field
from holdfast.extend.tools import redact

DEVICES_SHOWN, COMMANDS_SHOWN, ROLLOUTS_SHOWN = 100, 50, 20
LOOKED_AT = 20_000
"""Devices that are read for a page of chosen ones, at most."""

DOING = {
    HeadPhase.WAITING: "the next one waits for its turn",
    HeadPhase.OUT: "one was sent, and its answer is awaited",
    HeadPhase.HELD: "held back until the device is there again",
}
"""The phases of a device's lanes, in words."""

CHOICES: Sequence[DeviceFilter] = get_args(DeviceFilter)

Form = Mapping[str, object]


class DevicePages:
    """The pages of one console."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def outbox(self, request: web.Request) -> web.Response:
        """Show the outboxes, one of them with its devices and rollouts."""
        query, found = request.query, dict[str, Any]()
        name, asked = query.get("outbox", ""), query.get("show", "all")
        chosen = next((choice for choice in CHOICES if choice == asked), None)
        if chosen is None:
            raise RequestRefused(400, "show", "No such choice", f"show is one of {', '.join(CHOICES)}")
        refused, names = "", list[str]()
        try:
            outboxes = Outboxes.of(self._parts.services)
            names = await outboxes.store.names()
            name = name or (names[0] if names else "")
            if name:
                found = await self._found(outboxes, name, chosen, query.get("after", ""))
        except HoldfastError as error:
            refused = redact(str(error))
        return self._parts.renderer.page(
            request,
            "devices/devices.html",
            title="Devices",
            names=names,
            outbox=name,
            choices=CHOICES,
            chosen=chosen,
            refused=refused,
            **{"view": None, "devices": [], "later": "", "rollouts": []} | found,
        )

    async def _found(self, outboxes: Outboxes, name: str, chosen: DeviceFilter, after: str) -> dict[str, Any]:
        view = await outboxes.view(name)
        found = await outboxes.devices(
            name, chosen=chosen, after=after, limit=DEVICES_SHOWN, look_at=LOOKED_AT
        )
        more = {"outbox": name, "show": chosen, "after": found.next}
        newest = view.rollouts[::-1][:ROLLOUTS_SHOWN]
        return {
            "view": view,
            "devices": [(device, _device_path(name, device.device)) for device in found.devices],
            "later": f"/devices?{urlencode(more)}" if found.next else "",
            "rollouts": [(rollout, rollout_state(rollout)) for rollout in newest],
        }

    async def device(self, request: web.Request) -> web.Response:
        """Show one device and its newest commands."""
        outbox, device = request.query.get("outbox", ""), request.query.get("device", "")
        outboxes = Outboxes.of(self._parts.services)
        record = await outboxes.device(outbox, device)
        commands = await outboxes.store.commands(outbox, device=device, newest=True, limit=COMMANDS_SHOWN)
        return self._parts.renderer.page(
            request,
            "devices/device.html",
            title=f"Device {device}",
            outbox=outbox,
            record=record,
            doing=[DOING[phase] for phase in record.doing],
            commands=commands,
            shown=COMMANDS_SHOWN,
        )


def groups(parts: ConsoleParts) -> list[Group]:
    """Return the routes, by the right that they need."""
    pages, form = DevicePages(parts), partial(action_route, parts, path="/devices")
    return [
        ("read", [web.get("/devices", pages.outbox), web.get("/devices/one", pages.device)]),
        (
            "operate",
            [
                *(form(action, find=_outbox) for action in (actions.pause, actions.resume)),
                *(form(action, find=_command) for action in (actions.cancel, actions.retry)),
                form(actions.abort, find=_rollout),
            ],
        ),
    ]


async def _outbox(form: Form) -> tuple[str, str]:
    return field(form, "outbox"), _page_of(form)


async def _command(form: Form) -> tuple[int, str]:
    return number_in(field(form, "command"), "command"), _page_of(form)


async def _rollout(form: Form) -> tuple[actions.RolloutName, str]:
    number = number_in(field(form, "rollout"), "rollout")
    return actions.RolloutName(field(form, "outbox"), number), _page_of(form)


def _page_of(form: Form) -> str:
    """Return the path of the page that has a form."""
    outbox, device = field(form, "outbox"), field(form, "device")
    return _device_path(outbox, device) if device else f"/devices?{urlencode({'outbox': outbox})}"


def _device_path(outbox: str, device: str) -> str:
    return f"/devices/one?{urlencode({'outbox': outbox, 'device': device})}"
