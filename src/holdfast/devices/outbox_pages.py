"""The console's pages of outboxes, their rollouts and devices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args
from urllib.parse import urlencode

from aiohttp import web

from holdfast.devices.outboxes import (
    ABORT_ACTION,
    CANCEL_ACTION,
    PAUSE_ACTION,
    RESUME_ACTION,
    RETRY_ACTION,
    DeviceFilter,
    Outboxes,
    number_in,
    rollout_state,
)
from holdfast.devices.rules.device_queue import HeadPhase
from holdfast.errors import ConfigError, HoldfastError
from holdfast.extend.pages import ConsoleParts, Group, RequestRefused, act, field
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

Form = Mapping[str, Any]
Work = Callable[[Outboxes, str, Form], Awaitable[str]]


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

    async def operate(self, request: web.Request) -> web.Response:
        """Make the change of a form."""
        change = CHANGES[request.path]
        form = await request.post()
        outbox, device = field(form, "outbox"), field(form, "device")

        async def done() -> str:
            return await change.work(Outboxes.of(self._parts.services), outbox, form)

        subject = "/".join(field(form, name) for name in change.subject)
        details = {"device": device} if device else {}
        back = _device_path(outbox, device) if device else f"/devices?{urlencode({'outbox': outbox})}"
        return await act(self._parts, request, change.action, subject, done, back=back, details=details)


async def _pause(outboxes: Outboxes, outbox: str, form: Form) -> str:
    await outboxes.pause(outbox, device := field(form, "device"))
    return f"{device or outbox} is paused: nothing more is sent"


async def _resume(outboxes: Outboxes, outbox: str, form: Form) -> str:
    await outboxes.resume(outbox, device := field(form, "device"))
    return f"{device or outbox} goes on"


async def _retry(outboxes: Outboxes, _: str, form: Form) -> str:
    await outboxes.retry([command := number_in(field(form, "command"), "command")])
    return f"command {command} is sent again"


async def _cancel(outboxes: Outboxes, _: str, form: Form) -> str:
    await outboxes.cancel([command := number_in(field(form, "command"), "command")])
    return f"command {command} is cancelled"


async def _abort(outboxes: Outboxes, outbox: str, form: Form) -> str:
    if not field(form, "confirm"):
        raise ConfigError("confirm that nothing more of the rollout is to be sent")
    rollout = await outboxes.abort(outbox, number_in(field(form, "rollout"), "rollout"))
    return f"rollout {rollout.id} is aborted; {rollout.done} of {rollout.total} are done"


class _Change(NamedTuple):
    """A change by a form: its name in the audit log, the fields that make its subject there, and the function
    that makes the change and returns the outcome in words."""

    action: str
    subject: tuple[str, ...]
    work: Work


CHANGES = {
    "/devices/pause": _Change(PAUSE_ACTION, ("outbox",), _pause),
    "/devices/resume": _Change(RESUME_ACTION, ("outbox",), _resume),
    "/devices/retry": _Change(RETRY_ACTION, ("command",), _retry),
    "/devices/cancel": _Change(CANCEL_ACTION, ("command",), _cancel),
    "/devices/abort": _Change(ABORT_ACTION, ("outbox", "rollout"), _abort),
}
"""The changes by forms, by path."""


def groups(parts: ConsoleParts) -> list[Group]:
    """Return the routes, by the right that they need."""
    pages = DevicePages(parts)
    return [
        ("read", [web.get("/devices", pages.outbox), web.get("/devices/one", pages.device)]),
        ("operate", [web.post(path, pages.operate) for path in CHANGES]),
    ]


def _device_path(outbox: str, device: str) -> str:
    return f"/devices/one?{urlencode({'outbox': outbox, 'device': device})}"
