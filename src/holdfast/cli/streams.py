"""``holdfast streams``: what an operator may do to one stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli import output
from holdfast.cli.auditing import audited
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.cli.replay import replay
from holdfast.common.redaction import redact
from holdfast.common.wording import counted
from holdfast.errors import ConfigError
from holdfast.operate import streams
from holdfast.operate.streams import StreamRecord
from holdfast.wiring.services import Services

app = App(
    name="streams",
    help="Pause, resume, skip or reset one stream, list and drop its effects, or replay its archive.",
)
app.command(replay)

Key = Annotated[str, Parameter(help="The stream and its key: STREAM/KEY, as `holdfast status` shows them.")]


@app.command
async def pause(key: Key, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Stop a stream where it stands. Its messages wait; those over its inbox limit become dead letters
    `parked`, which resume sends again.

    ```
    holdfast streams pause detect/cam-1
    ```

    Args:
        json: Print the stream as a JSON object.
    """
    await _operate(key, json, options, "pause", lambda services: streams.pause(services, key))


@app.command
async def resume(key: Key, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Let a parked stream go on, and send its `parked` dead letters to the queue again, in order.

    ```
    holdfast streams resume detect/cam-1
    ```

    Args:
        json: Print the stream as a JSON object.
    """

    async def go_on(services: Services) -> StreamRecord:
        record, sent = await streams.resume(services, key)
        if sent and not json:
            output.say(f"{counted(sent, 'dead letter')} sent to the queue again")
        return record

    await _operate(key, json, options, "resume", go_on)


@app.command
async def skip(
    key: Key,
    /,
    *,
    through: int | None = None,
    run: int | None = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Pass over the message that a stream stands at, or all up to one. If it comes (again), it becomes a
    dead letter.

    ```
    holdfast streams skip detect/cam-1
    holdfast streams skip detect/cam-1 --through 1500
    ```

    Args:
        through: The last seq to pass over, of messages that have yet to come too; without it, the message at
            the head.
        run: The run that --through counts in; without it, the current one.
        json: Print the stream as a JSON object.
    """
    await _operate(
        key,
        json,
        options,
        "skip",
        lambda services: streams.skip(services, key, through, run),
        {"through": through, "run": run},
    )


@app.command
async def reset(
    key: Key,
    /,
    *,
    keep_place: bool = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Forget a stream's state and place, as if it had never run. Messages that were handled before are
    then handled again if they come again. Results stay.

    ```
    holdfast streams reset detect/cam-1 --yes
    ```

    Args:
        keep_place: Forget the state only; the stream goes on where it stands.
        yes: Really do it.
        json: Print the stream as a JSON object.
    """
    if not yes:
        raise ConfigError(f"reset forgets the state of {key} for good; say --yes to do it")
    await _operate(
        key,
        json,
        options,
        "reset",
        lambda services: streams.reset(services, key, keep_place=keep_place),
        {"keep_place": keep_place},
    )


@app.command
async def effects(key: Key, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """List what a stream has sent and no target has taken yet, oldest first, with the target's last error.

    ```
    holdfast streams effects cameras/cam-1
    ```

    Args:
        json: Print JSON lines, with bodies.
    """
    _check(key)
    async with options.services(reads_only=True) as services:
        pending, errors = await streams.pending_effects(services, key)
        now = services.clock.wall()
    if json:
        for effect in pending:
            output.json_line(streams.effect_record(effect, errors))
        return
    rows = [
        [
            effect.id,
            target := redact(effect.target),
            effect.key,
            round(now - effect.at),
            len(effect.body),
            f"to the dead letters: {effect.refused}" if effect.refused else errors.get(target, ""),
        ]
        for effect in pending
    ]
    title = f"Pending effects: {len(rows)}"
    output.console().print(
        output.table(title, ["id", "target", "key", "age (s)", "bytes", "last error"], rows)
    )


@app.command(name="drop-effects")
async def drop_effects(
    key: Key,
    /,
    *ids: Annotated[str, Parameter(help="Ids of effects, as `holdfast streams effects` lists them.")],
    target: str = "",
    all_: Annotated[bool, Parameter(name="--all", help="All that is pending.")] = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Give up effects that no target has taken yet. They become dead letters, which `holdfast dlq redrive`
    sends to their targets again.

    ```
    holdfast streams drop-effects cameras/cam-1 --target alerts --yes
    holdfast streams drop-effects cameras/cam-1 5ccaf0a31d84cd9738d8d289580bcbd4 --yes
    ```

    Args:
        target: Those for this target, as `holdfast streams effects` shows it.
        yes: Really do it.
        json: Print the stream as a JSON object.
    """
    if not yes:
        raise ConfigError("what is dropped isn't handed over any more; give --yes to confirm")
    if sum((bool(ids), bool(target), all_)) != 1:
        raise ConfigError("name effects by their ids, or give --target NAME, or --all")

    async def drop(services: Services) -> StreamRecord:
        record, count = await streams.drop_effects(services, key, ids, target)
        if not json:
            output.say(f"{counted(count, 'effect')} moved to the dead letters")
        return record

    await _operate(key, json, options, "drop effects", drop, {"ids": " ".join(ids), "target": target})


def _check(key: str) -> None:
    stream, plain = output.split_key(key)
    if not (stream and plain):
        raise ConfigError(f"{key!r} must be STREAM/KEY, as `holdfast status` shows them")


async def _operate(
    key: str,
    json: bool,
    options: Options,
    action: str,
    operation: Callable[[Services], Awaitable[StreamRecord]],
    details: Mapping[str, object] | None = None,
) -> None:
    _check(key)
    async with options.services(reads_only=True) as services, audited(services, action, key, details):
        record = await operation(services)
    if json:
        output.json_line(record)
    else:
        place = "no place" if record.seq is None else f"run {record.run}, seq {record.seq}"
        standing = f"parked: {record.parked}" if record.parked else "free to run"
        owner = f"; {record.told} was told" if record.told else ""
        output.say(f"{key}: {standing}; {place}; epoch {record.epoch}{owner}")
