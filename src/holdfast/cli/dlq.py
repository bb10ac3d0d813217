"""``holdfast dlq``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from holdfast.cli import output
from holdfast.cli.auditing import audited
from holdfast.cli.names import StreamName
from holdfast.cli.options import DEFAULTS, Json, Limit, Options
from holdfast.cli.patience import ReadPatience
from holdfast.cli.tasks import ago
from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError, HoldfastError, OperationRefused
from holdfast.operate import dead_letters
from holdfast.operate.dead_letters import dead_letter_record
from holdfast.ports.queue import DeadLetter
from holdfast.tasks.opening import backup_at, make_dead_letters, producing
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.tasks.dead_letters import Choice

app = App(name="dlq", help="Dead letters: messages set aside, each with its reason.")

REASON_CHARS = 100

Id = Annotated[str, Parameter(help="Id of a dead letter, as `holdfast dlq ls` shows it.")]
Stream = Annotated[
    StreamName,
    Parameter(
        help="Dead letters of this stream, or of the queue APP-TYPE of a type of task. Default: of all."
    ),
]
Key = Annotated[str | None, Parameter(help="Only dead letters of this key.")]
OfApp = Annotated[str, Parameter(name="--app", help="Dead letters of this app's tasks.")]
Types = Annotated[
    tuple[str, ...], Parameter(name="--type", help="With --app: only tasks of this type. May be repeated.")
]
Trace = Annotated[str, Parameter(help="With --app: only the task with this task id.")]
Since = Annotated[
    str, Parameter(help="With --app: only those set aside within this time: 90s, 15m, 2h or 7d.")
]
Failed = Annotated[
    str, Parameter(help="With --app: only those whose reason matches this regular expression.")
]
PLACES = "a file of JSON lines, `sqlite:///FILE` or `postgresql://USER@HOST/NAME`"
From = Annotated[
    str, Parameter(name="--from", help=f"With --app: read the dead letters from this backup: {PLACES}.")
]
All = Annotated[bool, Parameter(name="--all", help="All dead letters of --stream (and --key).")]


@app.command
async def ls(
    stream: Stream = "",
    /,
    *,
    key: Key = None,
    owner: OfApp = "",
    task_type: Types = (),
    trace: Trace = "",
    since: Since = "",
    error: Failed = "",
    limit: Limit = 100,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List dead letters: all, of a stream, or with --app of tasks.

    ```
    holdfast dlq ls
    holdfast dlq ls detect --key cam-1 --json
    holdfast dlq ls --app reports --type report.publish --since 12h
    ```

    Args:
        limit: The most to list.
        json: Print JSON lines, with bodies and details.
    """
    _check_choice(
        owner,
        of_queues={"STREAM": stream, "--key": key is not None},
        of_apps={"--type": task_type, "--trace": trace, "--since": since, "--error": error},
    )
    if owner:
        from holdfast.tasks.dead_letters import Choice  # noqa: PLC0415

        choice = Choice(task_id=trace, since=ago(since), error=error)
        async with producing(options.load(), owner, reads_only=True) as services:
            found = await make_dead_letters(services, owner).first(limit, task_type, choice)
    else:
        async with options.services(reads_only=True) as services:
            found = [letter async for letter in _first(limit, _dead_letters(services, stream, key))]
    rows = [
        [letter.id, letter.stream, letter.key, output.local_moment(letter.at), letter.reason[:REASON_CHARS]]
        for letter in found
    ]
    title = f"Dead letters: {len(found)}{' or more' if len(found) == limit else ''}"
    columns = ["id", "stream", "key", "at", "reason"]
    output.show(title, columns, rows, map(dead_letter_record, found), json=json)


@app.command
async def show(letter_id: str, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Show one dead letter: reason, traceback, body.

    ```
    holdfast dlq show detect/cam-1:0:000000000000000000000000000000000001500
    ```

    Args:
        letter_id: The id, as `holdfast dlq ls` shows it.
        json: Print a JSON object.
    """
    async with options.services(reads_only=True) as services:
        (queue,) = await dead_letters.by_queue(services, [letter_id], _complain)
        # Without a slash, an id names no stream.
        async for letter in _dead_letters(services, queue if queue != letter_id else "", None):
            if letter.id == letter_id:
                break
        else:
            raise OperationRefused(f"no dead letter {letter_id!r}; `holdfast dlq ls` lists them")
    if json:
        output.json_line(dead_letter_record(letter))
    else:
        for name, value in dead_letter_record(letter).items():
            output.say(f"{name}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}")


@app.command
async def redrive(
    *ids: Id,
    stream: StreamName = "",
    key: Key = None,
    all_: All = False,
    owner: OfApp = "",
    task_type: Types = (),
    trace: Trace = "",
    since: Since = "",
    error: Failed = "",
    source: From = "",
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Send dead letters to their queue again, in order: letters of a stream, or with --app of tasks.
    Tasks get all their tries again. Effects go to their targets again, with the same ids.

    ```
    holdfast dlq redrive detect/cam-1:0:000000000000000000000000000000000001500
    holdfast dlq redrive --stream detect --key cam-1 --all
    holdfast dlq redrive --app reports --type report.publish --since 12h --error "connection refused"
    holdfast dlq redrive --app reports --from sqlite:///letters.db --trace 0d9f5c
    ```

    Args:
        stream: The stream that --all is for.
        json: Print a JSON object.
    """
    from holdfast.tasks.dead_letters import Choice  # noqa: PLC0415

    _check_choice(
        owner,
        of_queues={"ids": ids, "--stream": stream, "--key": key is not None, "--all": all_},
        of_apps={"--type": task_type, "--trace": trace, "--since": since, "--error": error, "--from": source},
    )
    if owner:
        choice = Choice(task_id=trace, since=ago(since), error=error)
        await _redrive_tasks(owner, task_type, choice, source, json, options)
        return 0

    return await _act(ids, stream, key, all_, json, options, redrives=True)


@app.command
async def backup(
    target: Annotated[str, Parameter(help=f"Where to copy them: {PLACES}.")],
    /,
    *,
    owner: OfApp,
    task_type: Types = (),
    trace: Trace = "",
    since: Since = "",
    error: Failed = "",
    every_s: float | None = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Copy dead letters of tasks to a file or a database, if they aren't there yet. With the setting
    dlq_backup_url, nodes do so by themselves.

    ```
    holdfast dlq backup letters.jsonl --app reports
    holdfast dlq backup sqlite:///letters.db --app reports --every-s 3600
    ```

    Args:
        every_s: Repeat for ever, with a pause of this many seconds.
        json: Print a JSON object after each copy.
    """
    from holdfast.tasks.dead_letters import Choice  # noqa: PLC0415

    output.go_on_unread()
    choice = Choice(task_id=trace, since=ago(since), error=error)
    async with (
        producing(options.load(), owner, reads_only=every_s is None) as services,
        backup_at(target, services.access) as place,
    ):
        letters = make_dead_letters(services, owner)
        patience = ReadPatience(services.clock, ever=every_s is not None)
        while True:
            count = await patience.read(partial(letters.back_up, place, task_type, choice))
            if json:
                output.json_line({"copied": count, "target": redact_url(target)})
            else:
                output.say(f"{count} copied to {redact_url(target)}")
            if every_s is None:
                return
            await asyncio.sleep(every_s)


def _check_choice(owner: str, of_queues: Mapping[str, object], of_apps: Mapping[str, object]) -> None:
    """Refuse options that would be ignored, and so choose more dead letters than meant."""
    if owner and (wrong := [name for name, given in of_queues.items() if given]):
        raise ConfigError(
            f"leave out {', '.join(wrong)}, or --app: that chooses from all dead letters of its tasks"
        )
    if not owner and (wrong := [name for name, given in of_apps.items() if given]):
        raise ConfigError(f"give --app with {', '.join(wrong)}: these options choose dead letters of tasks")


async def _redrive_tasks(
    owner: str, types: Sequence[str], choice: Choice, source: str, json: bool, options: Options
) -> None:
    count = passed = 0
    async with producing(options.load(), owner, reads_only=True) as services:
        letters = make_dead_letters(services, owner)
        change = {"types": " ".join(types), "trace": choice.task_id, "error": choice.error}
        async with audited(services, dead_letters.REDRIVE_ACTION, owner, change):
            if source:
                async with backup_at(source) as place:
                    count, passed = await letters.redrive_kept(place, types, choice)
            else:
                count = await letters.redrive(types, choice)
    if json:
        output.json_line({"redriven": count} | ({"passed_over": passed} if source else {}))
    else:
        skipped = f"; {passed} skipped, whose tasks wait, run or have succeeded" if passed else ""
        output.say(f"{count} redriven{skipped}")


@app.command
async def purge(
    *ids: Id,
    stream: StreamName = "",
    key: Key = None,
    all_: All = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Remove dead letters for good.

    ```
    holdfast dlq purge --stream detect --all --yes
    ```

    Args:
        stream: The stream that --all is for.
        yes: Confirm the removal.
        json: Print a JSON object.
    """
    if not yes:
        raise ConfigError("purge removes messages for good; give --yes to confirm")
    return await _act(ids, stream, key, all_, json, options, redrives=False)


async def _act(
    ids: Sequence[str],
    stream: str,
    key: str | None,
    everything: bool,
    json: bool,
    options: Options,
    *,
    redrives: bool,
) -> int:
    """Redrive or purge dead letters, even if some fail. Returns the exit code."""
    if bool(ids) == everything or (everything and not stream) or (ids and key is not None):
        raise ConfigError("name dead letters by their ids, or give --stream NAME --all")
    failed: set[str] = set()
    done, action, act = (
        ("redriven", dead_letters.REDRIVE_ACTION, dead_letters.redrive)
        if redrives
        else ("purged", dead_letters.PURGE_ACTION, dead_letters.purge)
    )

    def complain(where: str, error: HoldfastError) -> None:
        failed.add(where)
        _complain(where, error)

    async with options.services(reads_only=True) as services:
        if everything:
            read = ReadPatience(services.clock).read
            ids = await dead_letters.ids_in_order(services, stream, key, read=read)
        chosen = {stream: ids} if stream and ids else await dead_letters.by_queue(services, ids, complain)
        change = {"count": len(ids), "ids": " ".join(ids)}
        if redrives and (warning := (await dead_letters.passed(services, ids)).warning):
            output.remark(warning)
        async with audited(services, action, " ".join(chosen), change):
            count = await act(services, chosen, complain)
    if json:
        output.json_line({done: count, "asked": len(ids)})
    else:
        left = "" if count == len(ids) else f"; {len(ids) - count} not" + (" found" if not failed else "")
        output.say(f"{count} {done}{left}")
    return 1 if failed or count < len(ids) else 0


def _dead_letters(services: Services, stream: str, key: str | None) -> AsyncIterator[DeadLetter]:
    return dead_letters.listed(
        services,
        stream,
        key,
        _complain,
        read=ReadPatience(services.clock).read,
    )


def _complain(where: str, error: HoldfastError) -> None:
    output.complain(f"{where}: {error}")


async def _first(limit: int, letters: AsyncIterator[DeadLetter]) -> AsyncIterator[DeadLetter]:
    left = limit
    async for letter in letters:
        yield letter
        left -= 1
        if left <= 0:
            return
