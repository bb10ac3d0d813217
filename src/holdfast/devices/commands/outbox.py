"""``holdfast outbox``: commands to devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from holdfast.devices.outboxes import (
    ABORT_ACTION,
    CANCEL_ACTION,
    CANCEL_ALL_ACTION,
    PAUSE_ACTION,
    RESUME_ACTION,
    RETRY_ACTION,
    Outboxes,
    command_record,
    rollout_state,
)
from holdfast.devices.rules.device_queue import CommandState
from holdfast.errors import ConfigError
from holdfast.extend.commands import DEFAULTS, Json, Limit, Options, audited, output

if TYPE_CHECKING:
    from holdfast.devices.rules.device_turn import Rollout

app = App(
    name="outbox",
    help="Commands to devices: see how they stand, try them again, take them back; pause, resume, abort.",
)

Name = Annotated[str, Parameter(help="The outbox's name.")]
Ids = Annotated[tuple[int, ...], Parameter(help="Ids of commands.")]


@app.command(name="ls")
async def list_commands(
    outbox: Name,
    /,
    *,
    state: CommandState | None = None,
    device: str = "",
    after: int = 0,
    newest: bool = False,
    limit: Limit = 50,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List commands, in the order of their ids. What they say is not shown.

    ```
    holdfast outbox ls faces --state failed
    holdfast outbox ls faces --device 2042253 --newest
    ```

    Args:
        state: Only those that stand so.
        device: Only those of this device.
        after: Only those with a higher id; with `--newest`, with a lower one.
        newest: The newest first.
        limit: How many at most.
        json: Print JSON lines.
    """
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        commands = await outboxes.store.commands(
            await outboxes.check(outbox), after=after, limit=limit, state=state, device=device, newest=newest
        )
    if json:
        for entry in commands:
            output.json_line(command_record(entry))
        return
    columns = ("id", "device", "state", "tries", "added", "closed", "reason")
    rows = [
        (e.id, e.device, e.state, e.tries, _time(e.created_at), _time(e.closed_at), e.reason)
        for e in commands
    ]
    output.console().print(output.table(f"outbox {outbox}", columns, rows))
    if len(commands) == limit:
        output.say(f"the first {limit}; for more: --after {commands[-1].id}")


@app.command
async def show(command: int, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Show all of one command: what it says, and what the device answered.

    Args:
        command: Its id.
        json: Print JSON.
    """
    async with options.services(reads_only=True) as services:
        entry = await Outboxes.of(services).command(command)
    record = msgspec.to_builtins(command_record(entry)) | output.body(entry.body, "body")
    if entry.answer is not None:
        record |= output.body(entry.answer, "answer")
    if json:
        output.json_line(record)
        return
    for name, value in record.items():
        output.say(f"{name:<15}{'' if value is None else value}")


@app.command
async def retry(commands: Ids, /, *, options: Options = DEFAULTS) -> None:
    """Send failed or expired commands again, as if they had just been added, without expiry. One that a newer
    command of its device has replaced, by its supersede key, is refused: retry the newer one, or add another.
    """
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        async with audited(services, RETRY_ACTION, " ".join(map(str, commands))):
            await outboxes.retry(commands)


@app.command
async def cancel(
    commands: Annotated[tuple[int, ...], Parameter(help="Ids of commands.")] = (),
    /,
    *,
    outbox: str = "",
    device: str = "",
    supersede_key: str = "",
    options: Options = DEFAULTS,
) -> None:
    """Take commands back that are not out; they count as failed.

    ```
    holdfast outbox cancel 1207 1208
    holdfast outbox cancel --outbox faces --device 2042253
    holdfast outbox cancel --outbox faces --supersede-key "person 951"
    ```

    Args:
        outbox: Instead of ids: the outbox.
        device: All of this device.
        supersede_key: All with this key, of that device or of any.
    """
    many = bool(outbox and (device or supersede_key))
    if bool(commands) == many or (not many and (outbox or device or supersede_key)):
        raise ConfigError("give either ids of commands, or --outbox with --device, --supersede-key or both")
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        if not many:
            async with audited(services, CANCEL_ACTION, " ".join(map(str, commands))):
                await outboxes.cancel(commands)
            return
        whose = {"device": device, "supersede_key": supersede_key}
        async with audited(services, CANCEL_ALL_ACTION, outbox, whose):
            count = await outboxes.cancel_all(outbox, device=device, supersede_key=supersede_key or None)
    output.say(f"{count} to be taken back, unless they are out by the dispatcher's next turn")


@app.command
async def pause(outbox: Name, /, *, device: str = "", options: Options = DEFAULTS) -> None:
    """Send nothing more, until it is resumed. What is out is out: its answer counts. Commands may expire.

    ```
    holdfast outbox pause faces
    holdfast outbox pause faces --device 2042253
    ```

    Args:
        device: To this device only; the others get theirs.
    """
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        async with audited(services, PAUSE_ACTION, outbox, {"device": device}):
            await outboxes.pause(outbox, device)


@app.command
async def resume(outbox: Name, /, *, device: str = "", options: Options = DEFAULTS) -> None:
    """End a pause: that of a device, or that of the outbox.

    Args:
        device: This device's own. It gets nothing while all of the outbox is paused.
    """
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        async with audited(services, RESUME_ACTION, outbox, {"device": device}):
            await outboxes.resume(outbox, device)


@app.command
async def abort(
    outbox: Name,
    rollout: Annotated[int, Parameter(help="Number of the rollout, as `holdfast outbox stats` tells it.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Send nothing more of a rollout: what is left of it fails. What is out may still succeed. It can't be
    taken back: add a new rollout to go on.

    ```
    holdfast outbox abort faces 12
    ```
    """
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        async with audited(services, ABORT_ACTION, f"{outbox}/{rollout}"):
            aborted = await outboxes.abort(outbox, rollout)
    output.say(f"rollout {rollout}, {aborted.name}: {_progress(aborted)}; the rest is not sent")


@app.command
async def stats(outbox: Name, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Count commands by how they stand, and tell how far rollouts have come.

    Args:
        json: Print JSON.
    """
    async with options.services(reads_only=True) as services:
        view = await Outboxes.of(services).view(outbox)
    if json:
        output.json_line(view)
        return
    if view.paused_since is not None:
        output.say(f"outbox {outbox} is paused since {_time(view.paused_since)}: nothing is sent")
    if view.paused_devices:
        output.say(f"devices that are paused: {', '.join(view.paused_devices)}")
    rows = [(state, count) for state, count in view.commands.items()]
    output.console().print(output.table(f"outbox {outbox}", ("state", "commands"), rows))
    if view.rollouts:
        columns = ("rollout", "name", "of", "done", "failed", "state")
        told = [(r.id, r.name, r.total, r.done, r.failed, rollout_state(r)) for r in view.rollouts]
        output.console().print(output.table("rollouts", columns, told))


def _progress(rollout: Rollout) -> str:
    return f"{rollout.done} of {rollout.total} done, {rollout.failed} failed"


def _time(at: float | None) -> str:
    return output.moment(at or 0.0)[:19].replace("T", " ")  # to the second
