"""``holdfast devices``: the devices of an app's outboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from holdfast.devices.commands.outbox import opened
from holdfast.devices.rules.device_queue import CommandState, HeadPhase
from holdfast.errors import ConfigError
from holdfast.extend import SystemClock
from holdfast.extend.commands import DEFAULTS, Json, Options, output

if TYPE_CHECKING:
    from holdfast.devices.ports.outbox import DeviceStatus, OutboxStore
    from holdfast.devices.rules.device_queue import StoredCommand

app = App(name="devices", help="Devices that take commands from an outbox.")

STALE_S = 120.0
PAGE = 500
COMMANDS_SHOWN = 20

OutboxName = Annotated[str, Parameter(help="The outbox's name, as the app declares it.")]


@app.command
async def ls(
    outbox: OutboxName,
    /,
    *,
    stale: bool = False,
    stale_after_s: float = STALE_S,
    limit: int = 1000,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List devices: when each was seen last, and what waits for it.

    ```
    holdfast devices ls faces
    holdfast devices ls faces --stale --stale-after-s 3600
    ```

    Args:
        stale: Only those that are away or paused, or were not seen for long.
        stale_after_s: How long that is.
        limit: How many to list at most.
        json: Print JSON lines, one a device.
    """
    now = SystemClock().wall()
    async with opened(options, outbox) as store:
        found = await _all(
            store, outbox, limit, lambda s: not stale or _standing(s, now, stale_after_s) != "there"
        )
    records = [_record(status, now, stale_after_s) for status in found]
    if json:
        for record in records:
            output.json_line(record)
        return
    columns = ("device", "standing", "seen", "waiting", "doing")
    rows = [[record[column] for column in columns] for record in records]
    output.console().print(output.table(f"devices of {outbox}", columns, rows))
    if len(found) == limit:
        output.say(f"the first {limit}; for more: --limit")


@app.command
async def show(
    device: Annotated[str, Parameter(help="The outbox and the device: OUTBOX/DEVICE.")],
    /,
    *,
    stale_after_s: float = STALE_S,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Show one device, and the commands that are out or next for it.

    ```
    holdfast devices show faces/2042253
    ```

    Args:
        stale_after_s: How long not seen makes it stale.
        json: Print one JSON object.
    """
    outbox, _, name = device.partition("/")
    if not (outbox and name):
        raise ConfigError(f"{device!r} must be OUTBOX/DEVICE, such as faces/2042253")
    now = SystemClock().wall()
    async with opened(options, outbox) as store:
        found = await store.devices(outbox, device=name, limit=1)
        if not found:
            raise ConfigError(f"outbox {outbox!r} has never had anything to do with device {name!r}")
        commands = [
            command
            for state in (CommandState.PUBLISHED, CommandState.SCHEDULED)
            for command in await store.commands(outbox, device=name, state=state, limit=COMMANDS_SHOWN)
        ]
    record = _record(found[0], now, stale_after_s)
    shown = [_command(command, now) for command in commands[:COMMANDS_SHOWN]]
    if json:
        output.json_line(record | {"commands": shown})
        return
    output.console().print(output.table(f"{outbox}/{name}", ("", "value"), record.items()))
    if shown:
        rows = [[*command.values()] for command in shown]
        output.console().print(output.table("commands that are out or next", [*shown[0]], rows))


async def _all(
    store: OutboxStore, outbox: str, limit: int, wanted: Callable[[DeviceStatus], bool]
) -> list[DeviceStatus]:
    found: list[DeviceStatus] = []
    after = ""
    while len(found) < limit and (page := await store.devices(outbox, after=after, limit=PAGE)):
        found += [status for status in page if wanted(status)]
        after = page[-1].device
    return found[:limit]


def _standing(status: DeviceStatus, now: float, stale_after_s: float) -> str:
    if status.paused:
        return "paused"
    if status.away:
        return "away"
    if status.seen_at is None:
        return "never seen"
    return "stale" if now - status.seen_at > stale_after_s else "there"


def _record(status: DeviceStatus, now: float, stale_after_s: float) -> dict[str, Any]:
    doing = sorted({phase.value for phase in status.phases} - {HeadPhase.IDLE.value})
    return {
        "device": status.device,
        "standing": _standing(status, now, stale_after_s),
        "seen": output.moment(status.seen_at or 0.0),
        "waiting": status.waiting,
        "doing": ", ".join(doing) or "nothing",
        "shard": status.shard,
    }


def _command(command: StoredCommand, now: float) -> dict[str, Any]:
    return {
        "id": command.id,
        "state": command.state.value,
        "tries": command.tries,
        "age_s": round(now - command.created_at, 1),
        "trace_id": command.trace_id,
    }
