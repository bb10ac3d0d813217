"""``holdfast dlq``: the dead letters."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from holdfast.cli import output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.cli.patience import ReadPatience
from holdfast.cli.survey import stream_names
from holdfast.cli.tasks import ago
from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError, HoldfastError, OperationRefused, TooLarge
from holdfast.ports.dead_letters import dead_letters, in_order
from holdfast.ports.peer import Peer
from holdfast.ports.queue import DeadLetter, Queue
from holdfast.streams.operations import poke
from holdfast.tasks.opening import backup_at, make_letters, producing
from holdfast.wiring import Services

if TYPE_CHECKING:
    from holdfast.tasks.dead_letters import Choice

app = App(name="dlq", help="Dead letters: messages set aside, each with its reason.")

Act = Callable[[Queue, Sequence[str]], Awaitable[int]]
"""What is done with some dead letters of a queue; returns how many there were."""

REASON_CHARS = 100

Id = Annotated[str, Parameter(help="Id of a dead letter, as `holdfast dlq ls` shows it.")]
Stream = Annotated[str, Parameter(help="Dead letters of this stream. Without it: of every known stream.")]
Key = Annotated[str | None, Parameter(help="Only dead letters of this key.")]
OfApp = Annotated[str, Parameter(name="--app", help="Dead letters of this app's tasks.")]
Types = Annotated[
    tuple[str, ...], Parameter(name="--type", help="With --app: only tasks of this type. May be repeated.")
]
Trace = Annotated[str, Parameter(help="With --app: only the task with this trace id.")]
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
    limit: int = 100,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List dead letters.

    ```
    holdfast dlq ls
    holdfast dlq ls detect --key cam-1 --json
    ```

    Args:
        limit: The most to list.
        json: Print JSON lines, with bodies and details.
    """
    async with options.services(reads_only=True) as services:
        found = [letter async for letter in _first(limit, _letters(services, stream, key))]
    if json:
        for letter in found:
            output.json_line(record(letter))
    else:
        rows = [
            [letter.id, letter.stream, letter.key, output.moment(letter.at), letter.reason[:REASON_CHARS]]
            for letter in found
        ]
        title = f"Dead letters: {len(found)}{' or more' if len(found) == limit else ''}"
        output.console().print(output.table(title, ["id", "stream", "key", "at", "reason"], rows))


@app.command
async def show(letter_id: str, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Show all of one dead letter: reason, traceback, body.

    ```
    holdfast dlq show detect/cam-1:0:000000000000000000000000000000000001500
    ```

    Args:
        letter_id: The id, as `holdfast dlq ls` shows it.
        json: Print a JSON object.
    """
    async with options.services(reads_only=True) as services:
        async for letter in _letters(services, _stream_of(letter_id), None):
            if letter.id == letter_id:
                break
        else:
            raise OperationRefused(f"no dead letter {letter_id!r}; `holdfast dlq ls` lists them")
    if json:
        output.json_line(record(letter))
    else:
        for name, value in record(letter).items():
            output.say(f"{name}: {value}")


@app.command
async def redrive(
    *ids: Id,
    stream: str = "",
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
    """Send dead letters to their queue again, in order: those of a stream, or with --app those of tasks. Each
    task gets all its tries again. What a stream has sent to a target goes to that target again, with its id.

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
    from holdfast.streams.redrive import redrive as redrive_letters  # noqa: PLC0415
    from holdfast.tasks.dead_letters import Choice  # noqa: PLC0415

    if source and not owner:
        raise ConfigError("--from needs --app: a backup holds the dead letters of an app's tasks")
    if owner:
        choice = Choice(trace=trace, since=ago(since), error=error)
        await _redrive_tasks(owner, task_type, choice, source, json, options)
        return 0

    def redriving(services: Services) -> Act:
        peer = functools.cache(services.peer)
        tell = partial(_told, services, peer)
        return lambda queue, some: redrive_letters(services.state(), queue, some, tell)

    return await _each_queue(ids, stream, key, all_, json, options, "redriven", redriving)


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
    """Copy dead letters of tasks to a file or a database, if they are not there yet. With the setting
    dlq_backup_url, nodes do this by themselves.

    ```
    holdfast dlq backup letters.jsonl --app reports
    holdfast dlq backup sqlite:///letters.db --app reports --every-s 3600
    ```

    Args:
        every_s: Repeat for ever, with a pause of so many seconds.
        json: Print a JSON object after each copy.
    """
    from holdfast.tasks.dead_letters import Choice  # noqa: PLC0415

    choice = Choice(trace=trace, since=ago(since), error=error)
    async with (
        producing(options.load(), owner, reads_only=every_s is None) as services,
        backup_at(target, services.access) as place,
    ):
        letters = make_letters(services, owner)
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


async def _told(services: Services, peer: Callable[[], Peer], key: str) -> str:
    return await poke(services.coordinator(), peer(), key)


async def _redrive_tasks(
    owner: str, types: Sequence[str], choice: Choice, source: str, json: bool, options: Options
) -> None:
    count = passed = 0
    async with producing(options.load(), owner, reads_only=True) as services:
        letters = make_letters(services, owner)
        if source:
            async with backup_at(source) as place:
                count, passed = await letters.redrive_kept(place, types, choice)
        else:
            count = await letters.redrive(types, choice)
    if json:
        output.json_line({"redriven": count} | ({"passed_over": passed} if source else {}))
    else:
        done_since = f"; {passed} passed over, whose tasks wait, run or have succeeded" if passed else ""
        output.say(f"{count} redriven{done_since}")


@app.command
async def purge(
    *ids: Id,
    stream: str = "",
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
        yes: Confirm that they are to be removed.
        json: Print a JSON object.
    """
    if not yes:
        raise ConfigError("purge removes messages for good; give --yes to confirm")
    return await _each_queue(
        ids, stream, key, all_, json, options, "purged", lambda _: lambda queue, some: queue.purge(some)
    )


async def _each_queue(
    ids: Sequence[str],
    stream: str,
    key: str | None,
    everything: bool,
    json: bool,
    options: Options,
    done: str,
    acting: Callable[[Services], Act],
) -> int:
    """Do something with letters, queue by queue, whatever becomes of those of others. Returns the exit
    code."""
    if bool(ids) == everything or (everything and not stream):
        raise ConfigError("name dead letters by their ids, or give --stream NAME --all")
    async with options.services(reads_only=True) as services:
        if everything:
            read = ReadPatience(services.clock).read
            chosen = [letter async for letter in dead_letters(services.queue(stream), key, read=read)]
            ids = [letter.id for letter in sorted(chosen, key=in_order)]
        by_stream: dict[str, list[str]] = {}
        for letter_id in ids:
            by_stream.setdefault(stream or _stream_of(letter_id), []).append(letter_id)
        act, count, failed = acting(services), 0, set[str]()
        for name, some in by_stream.items():
            try:
                queue = services.queue(name)
                for start in range(0, len(some), queue.max_batch):
                    batch = some[start : start + queue.max_batch]
                    try:
                        count += await act(queue, batch)
                    except TooLarge:  # which of them it is shows when they go one by one
                        for letter_id in batch:
                            try:
                                count += await act(queue, [letter_id])
                            except TooLarge as error:
                                failed.add(letter_id)
                                output.complain(f"{letter_id}: {error}")
            except HoldfastError as error:
                failed.add(name)
                output.complain(f"{name}: {error}")
    if json:
        output.json_line({done: count, "asked": len(ids)})
    else:
        left = "" if count == len(ids) else f"; {len(ids) - count} not" + (" found" if not failed else "")
        output.say(f"{count} {done}{left}")
    return 1 if failed else 0


def _stream_of(letter_id: str) -> str:
    return output.split_key(letter_id)[0]


async def _letters(services: Services, stream: str, key: str | None) -> AsyncIterator[DeadLetter]:
    """Letters of one stream, or of all: a queue that fails is named, and hides none of the others."""
    read = ReadPatience(services.clock).read
    for name in [stream] if stream else await read(partial(stream_names, services)):
        try:
            async for letter in dead_letters(services.queue(name), key, read=read):
                yield letter
        except HoldfastError as error:
            if stream:
                raise
            output.complain(f"{name}: {error}")


async def _first(limit: int, letters: AsyncIterator[DeadLetter]) -> AsyncIterator[DeadLetter]:
    left = limit
    async for letter in letters:
        yield letter
        left -= 1
        if left <= 0:
            return


def record(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as a JSON record."""
    return {
        "id": letter.id,
        "stream": letter.stream,
        "key": letter.key,
        "run": letter.run,
        "seq": output.seq(letter.seq),
        "at": output.moment(letter.at),
        "reason": letter.reason,
        "detail": letter.detail,
        "attributes": letter.attributes,
        **output.body(letter.body, "body"),
    }
