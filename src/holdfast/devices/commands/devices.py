"""``holdfast devices``: the devices of an app's outboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from holdfast.devices.outboxes import STALE_S, Outboxes
from holdfast.devices.rules.device_queue import CommandState
from holdfast.errors import ConfigError
from holdfast.extend import SystemClock
from holdfast.extend.commands import DEFAULTS, Json, Limit, Options, output

if TYPE_CHECKING:
    from holdfast.devices.outboxes import DeviceRecord
    from holdfast.devices.rules.device_queue import StoredCommand

app = App(name="devices", help="Devices that take commands from an outbox.")

COMMANDS_SHOWN = 20

OutboxName = Annotated[str, Parameter(help="The outbox's name, as the app declares it.")]


@app.command
async def ls(
    outbox: OutboxName,
    /,
    *,
    stale: bool = False,
    stuck: bool = False,
    stale_after_s: float = STALE_S,
    limit: Limit = 1000,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List devices: when each was last seen, how many commands wait, and why.

    ```
    holdfast devices ls faces
    holdfast devices ls faces --stale --stale-after-s 3600
    ```

    Args:
        stale: Only devices that are away or paused, or were not seen for long.
        stuck: Only devices with commands that aren't sent or answered.
        stale_after_s: Seconds of silence that make a device stale.
        limit: How many to list at most.
        json: Print JSON lines, one a device.
    """
    if stale and stuck:
        raise ConfigError("give either --stale or --stuck")
    async with options.services(reads_only=True) as services:
        found = await Outboxes.of(services).devices(
            outbox,
            chosen="away" if stale else "stuck" if stuck else "all",
            limit=limit,
            stale_after_s=stale_after_s,
        )
    records = [_record(device) for device in found.devices]
    if json:
        for record in records:
            output.json_line(record)
        return
    columns = ("device", "standing", "seen", "waiting", "doing", "stuck")
    rows = [[record[column] for column in columns] for record in records]
    output.console().print(output.table(f"devices of {outbox}", columns, rows))
    if found.next:
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
        stale_after_s: Seconds of silence that make it stale.
        json: Print one JSON object.
    """
    outbox, _, name = device.partition("/")
    if not (outbox and name):
        raise ConfigError(f"{device!r} must be OUTBOX/DEVICE, such as faces/2042253")
    now = SystemClock().wall()
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        found = await outboxes.device(outbox, name, stale_after_s=stale_after_s)
        commands = [
            command
            for state in (CommandState.PUBLISHED, CommandState.SCHEDULED)
            for command in await outboxes.store.commands(
                outbox, device=name, state=state, limit=COMMANDS_SHOWN
            )
        ]
    record = _record(found)
    shown = [_command(command, now) for command in commands[:COMMANDS_SHOWN]]
    if json:
        output.json_line(record | {"commands": shown})
        return
    output.console().print(output.table(f"{outbox}/{name}", ("", "value"), record.items()))
    if shown:
        rows = [[*command.values()] for command in shown]
        output.console().print(output.table("commands that are out or next", [*shown[0]], rows))


def _record(device: DeviceRecord) -> dict[str, Any]:
    return {
        "device": device.device,
        "standing": device.standing.value,
        "seen": output.moment(device.seen_at or 0.0),
        "waiting": device.waiting,
        "doing": ", ".join(device.doing) or "nothing",
        "stuck": device.stuck,
        "shard": device.shard,
    }


def _command(command: StoredCommand, now: float) -> dict[str, Any]:
    return {
        "id": command.id,
        "state": command.state.value,
        "tries": command.tries,
        "age_s": round(now - command.created_at, 1),
        "trace_id": command.trace_id,
    }
