"""``holdfast outbox``: commands to devices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from holdfast.devices.rules.device_queue import CommandState
from holdfast.devices.rules.topics import check_device
from holdfast.errors import ConfigError, OperationRefused
from holdfast.extend.commands import DEFAULTS, Json, Options, output
from holdfast.extend.tools import redact_url

if TYPE_CHECKING:
    from holdfast.devices.ports.outbox import OutboxStore
    from holdfast.devices.rules.device_queue import StoredCommand

app = App(
    name="outbox",
    help="Commands to devices: see how they stand, try them again, take them back; pause and resume.",
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
    limit: int = 50,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List commands, in the order of their ids. What they say is not shown.

    ```
    holdfast outbox ls faces --state failed
    holdfast outbox ls faces --device 2042253 --after 1200
    ```

    Args:
        state: Only those that stand so.
        device: Only those of this device.
        after: Only those with a higher id.
        limit: How many at most.
        json: Print JSON lines.
    """
    async with opened(options, outbox) as store:
        commands = await store.commands(outbox, after=after, limit=limit, state=state, device=device)
    if json:
        for entry in commands:
            output.json_line(_record(entry))
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
    async with opened(options) as store:
        entry = await store.command(command)
    if entry is None:
        raise OperationRefused(
            f"there is no command {command}; it may have been dropped or archived for its age"
        )
    record = _record(entry) | output.body(entry.body, "body")
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
    async with opened(options) as store:
        refused = [command for command in commands if not await store.retry(command)]
    _refuse(
        refused,
        "is neither failed nor expired, or a newer command has replaced it, or its end has yet to be told,"
        " or its rollout was aborted",
    )


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
    async with opened(options, outbox) as store:
        if many:
            count = await store.cancel_all(outbox, device=device, supersede_key=supersede_key or None)
            output.say(f"{count} to be taken back, unless they are out by the dispatcher's next turn")
            return
        refused = [command for command in commands if not await store.cancel(command)]
    _refuse(refused, "is closed, or out at its device, which may be at it: wait for its answer or its end")


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
    async with opened(options, outbox) as store:
        await store.pause(outbox, check_device(device) if device else "")


@app.command
async def resume(outbox: Name, /, *, device: str = "", options: Options = DEFAULTS) -> None:
    """End a pause: that of a device, or that of the outbox.

    Args:
        device: This device's own. It gets nothing while all of the outbox is paused.
    """
    async with opened(options, outbox) as store:
        if not await store.resume(outbox, device):
            raise OperationRefused(f"{f'device {device}' if device else f'outbox {outbox!r}'} is not paused")


@app.command
async def stats(outbox: Name, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Count commands by how they stand, and tell how far rollouts have come.

    Args:
        json: Print JSON.
    """
    async with opened(options, outbox) as store:
        counts = await store.counts(outbox)
        rollouts = await store.rollouts(outbox, limit=1000)
        paused = dict(await store.paused(outbox))
    since = paused.pop("", None)
    if json:
        told_paused = {"paused_since": since, "paused_devices": paused}
        output.json_line({"outbox": outbox, "commands": counts, "rollouts": rollouts, **told_paused})
        return
    if since is not None:
        output.say(f"outbox {outbox} is paused since {_time(since)}: nothing is sent")
    if paused:
        output.say(f"devices that are paused: {', '.join(paused)}")
    rows = [(state, count) for state, count in counts.items()]
    output.console().print(output.table(f"outbox {outbox}", ("state", "commands"), rows))
    if rollouts:
        columns = ("rollout", "name", "of", "done", "failed", "state")
        told = [(r.id, r.name, r.total, r.done, r.failed, _standing(r.over, r.aborted)) for r in rollouts]
        output.console().print(output.table("rollouts", columns, told))


@asynccontextmanager
async def opened(options: Options, outbox: str = "") -> AsyncIterator[OutboxStore]:
    """The store of the settings in force. Raises OperationRefused if it has no such outbox."""
    from holdfast.devices.adapters import open_outbox  # noqa: PLC0415 - a page of help needs no database

    async with options.services(reads_only=True) as services:
        store = open_outbox(services)
        try:
            if outbox and not await store.epochs(outbox):
                url = redact_url(services.config.outbox_url)
                raise OperationRefused(f"there is no outbox {outbox!r} in {url}; a node makes it")
            yield store
        finally:
            await store.close()


def _record(entry: StoredCommand) -> dict[str, Any]:
    hidden = ("body", "answer")
    return {name: getattr(entry, name) for name in entry.__struct_fields__ if name not in hidden}


def _standing(over: bool, aborted: bool) -> str:
    return "aborted" if aborted else "done" if over else "running"


def _time(at: float | None) -> str:
    return output.moment(at or 0.0)[:19].replace("T", " ")  # to the second


def _refuse(refused: Sequence[int], why: str) -> None:
    if refused:
        raise OperationRefused(f"nothing was done to {', '.join(map(str, refused))}: each {why}")
