"""``holdfast periodic``: the schedule of an app."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from holdfast.cli import output
from holdfast.cli.auditing import audited
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.common.codec import decode_plain
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.tasks.opening import producing

app = App(name="periodic", help="Schedule tasks. Running nodes follow changes.")

Owner = Annotated[str, Parameter(help="Name of the app whose tasks they are.")]


@app.command(name="set")
async def set_(
    owner: Owner,
    name: str,
    cron: str,
    task_type: str,
    body: str = "null",
    /,
    *,
    zone: str = "UTC",
    missed: Literal["all", "last", "skip"] = "last",
    window_s: float = 3600.0,
    group: str = "",
    priority: int = 0,
    timeout_s: float | None = None,
    tries: int | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Add a task to the schedule, or change an entry, from now on.

    ```
    holdfast periodic set reports nightly '30 2 * * *' report.publish '{"pages": 3}' --zone Europe/Berlin
    ```

    Args:
        name: Its name in the schedule of the app.
        cron: The times, as a cron expression of five fields.
        task_type: One of the types that the app declares.
        body: The body for the handler, as JSON.
        zone: The time zone of the times.
        missed: Which of the times that passed while no node ran are made up for.
        window_s: Seconds after a time for which its task may still be sent.
        group: The group whose limits count, such as a customer.
        priority: The higher the sooner.
        timeout_s: Seconds for one attempt, instead of the time of its type.
        tries: The most attempts, instead of its type's.
    """
    from holdfast.operate import periodic  # noqa: PLC0415
    from holdfast.operate.tasks import tasks_warning  # noqa: PLC0415
    from holdfast.tasks.schedule import ScheduleEntry  # noqa: PLC0415

    try:
        value = decode_plain(body.encode())
    except ValueError as error:
        raise ConfigError(f"the body can't be read: {error}; quote it for the shell") from None
    entry = ScheduleEntry(
        cron=cron,
        zone=zone,
        missed=missed,
        window_s=window_s,
        task_type=task_type,
        body=value,
        group=group,
        priority=priority,
        timeout_s=timeout_s,
        tries=tries,
    )
    async with producing(options.load(), owner) as services:
        try:
            change = {"cron": cron, "zone": zone, "task_type": task_type}
            async with audited(services, periodic.SET_ACTION, f"{owner}/{name}", change):
                await periodic.set_entry(services, owner, name, entry)
        except InvalidMessage as error:
            raise ConfigError(str(error)) from None
        if warning := await tasks_warning(services, owner, [task_type]):
            output.remark(warning)
    output.say(f"{name}: sent at {cron} ({zone})")


@app.command(name="rm")
async def rm(owner: Owner, name: str, /, *, options: Options = DEFAULTS) -> None:
    """Remove a task from the schedule. Tasks that were sent continue.

    ```
    holdfast periodic rm reports nightly
    ```

    Args:
        name: Its name in the schedule of the app.
    """
    from holdfast.operate import periodic  # noqa: PLC0415

    async with (
        producing(options.load(), owner) as services,
        audited(services, periodic.REMOVE_ACTION, f"{owner}/{name}"),
    ):
        await periodic.remove_entry(services, owner, name)
    output.say(f"{name}: removed from the schedule")


@app.command(name="ls")
async def ls(owner: Owner, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """List the schedule of an app, and the times that the code of its living nodes declares.

    ```
    holdfast periodic ls reports
    ```

    Args:
        json: Print JSON lines.
    """
    from holdfast.operate import periodic  # noqa: PLC0415

    async with producing(options.load(), owner, reads_only=True) as services:
        entries = await periodic.schedule(services, owner)
        declared = await periodic.declared(services, owner)
    if json:
        for name, times in declared.items():
            output.json_line({"name": name, **msgspec.structs.asdict(times), "declared": True})
        for name, entry in entries.items():
            output.json_line({"name": name, **msgspec.structs.asdict(entry)})
        return
    columns = ["name", "cron", "zone", "task_type", "missed", "since"]
    rows = [[name, times.cron, times.zone, "(declared)", "", ""] for name, times in declared.items()]
    rows += [
        [name, entry.cron, entry.zone, entry.task_type, entry.missed, output.local_moment(entry.since)]
        for name, entry in entries.items()
    ]
    output.console().print(output.table(f"Schedule of {owner}", columns, rows))
