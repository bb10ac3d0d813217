"""``holdfast outbox``: commands to devices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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
    help="Commands to devices: list, retry and cancel them; pause, resume, abort.",
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
    """List commands in the order of their ids, without their bodies.

    ```
    holdfast outbox ls faces --state failed
    holdfast outbox ls faces --device 2042253 --newest
    ```

    Args:
        state: Only commands in this state.
        device: Only commands of this device.
        after: Only commands with a higher id; with `--newest`, with a lower one.
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
    """Show all of one command, with its body and its device's answer.

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
    """Send failed or expired commands again, as if they had just been added, without expiry. A command that a
    newer one of its device has replaced, by its supersede key, is refused: retry the newer one, or add
        another.
    """
    async with _audited(options, RETRY_ACTION, " ".join(map(str, commands))) as outboxes:
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
    """Cancel scheduled commands; they count as failed.

    ```
    holdfast outbox cancel 1207 1208
    holdfast outbox cancel --outbox faces --device 2042253
    holdfast outbox cancel --outbox faces --supersede-key "person 951"
    ```

    Args:
        outbox: Instead of ids: the outbox.
        device: All commands of this device.
        supersede_key: All commands with this key, of that device or of any.
    """
    many = bool(outbox and (device or supersede_key))
    if bool(commands) == many or (not many and (outbox or device or supersede_key)):
        raise ConfigError("give either ids of commands, or --outbox with --device, --supersede-key or both")
    if not many:
        async with _audited(options, CANCEL_ACTION, " ".join(map(str, commands))) as outboxes:
            await outboxes.cancel(commands)
        return
    chosen = {"device": device, "supersede_key": supersede_key}
    async with _audited(options, CANCEL_ALL_ACTION, outbox, chosen) as outboxes:
        count = await outboxes.cancel_all(outbox, device=device, supersede_key=supersede_key or None)
    output.say(f"{count} to be cancelled, unless the dispatcher's next turn sends them first")


@app.command
async def pause(outbox: Name, /, *, device: str = "", options: Options = DEFAULTS) -> None:
    """Send nothing more, until it is resumed. The answer to a command that is out counts. Commands may
    expire.

    ```
    holdfast outbox pause faces
    holdfast outbox pause faces --device 2042253
    ```

    Args:
        device: Only this device; the others get their commands.
    """
    async with _audited(options, PAUSE_ACTION, outbox, {"device": device}) as outboxes:
        await outboxes.pause(outbox, device)


@app.command
async def resume(outbox: Name, /, *, device: str = "", options: Options = DEFAULTS) -> None:
    """End the pause of a device, or of the outbox.

    Args:
        device: The device. It gets nothing while the whole outbox is paused.
    """
    async with _audited(options, RESUME_ACTION, outbox, {"device": device}) as outboxes:
        await outboxes.resume(outbox, device)


@app.command
async def abort(
    outbox: Name,
    rollout: Annotated[int, Parameter(help="Number of the rollout, as `holdfast outbox stats` shows it.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Send nothing more of a rollout: its scheduled commands fail, and unanswered ones may still succeed.
    It can't be undone: add a new rollout to go on.

    ```
    holdfast outbox abort faces 12
    ```
    """
    async with _audited(options, ABORT_ACTION, f"{outbox}/{rollout}") as outboxes:
        aborted = await outboxes.abort(outbox, rollout)
    output.say(f"rollout {rollout}, {aborted.name}: {_progress(aborted)}; the rest is not sent")


@app.command
async def stats(outbox: Name, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Count commands by their state, and show the progress of rollouts.

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
        listed = [(r.id, r.name, r.total, r.done, r.failed, rollout_state(r)) for r in view.rollouts]
        output.console().print(output.table("rollouts", columns, listed))


@asynccontextmanager
async def _audited(
    options: Options, action: str, subject: str, details: Mapping[str, object] | None = None
) -> AsyncIterator[Outboxes]:
    """Give the outboxes for one change, which is in the audit log."""
    async with options.services(reads_only=True) as services:
        outboxes = Outboxes.of(services)
        async with audited(services, action, subject, details):
            yield outboxes


def _progress(rollout: Rollout) -> str:
    return f"{rollout.done} of {rollout.total} done, {rollout.failed} failed"


def _time(at: float | None) -> str:
    return output.moment(at or 0.0)[:19].replace("T", " ")  # to the second
