"""``holdfast streams``: what an operator may do to one stream."""

from __future__ import annotations

from cyclopts import App

from holdfast.cli import output
from holdfast.cli.actions import Key, check_stream, command
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.cli.replay import replay
from holdfast.common.redaction import redact
from holdfast.operate import streams

app = App(
    name="streams",
    help="Pause, resume, skip or reset one stream, list and drop its effects, or replay its archive.",
)
app.command(replay)

for action in (streams.pause, streams.resume, streams.skip, streams.reset, streams.drop_effects):
    app.command(command(action), name=action.verb)


@app.command
async def effects(key: Key, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """List the effects of a stream that no target has taken yet, oldest first, with the target's last error.

    ```
    holdfast streams effects cameras/cam-1
    ```

    Args:
        json: Print JSON lines, with bodies.
    """
    check_stream(key)
    async with options.services(reads_only=True) as services:
        pending, errors = await streams.pending_effects(services, key)
        now = services.clock.wall()
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
    columns = ["id", "target", "key", "age (s)", "bytes", "last error"]
    records = (streams.effect_record(effect, errors) for effect in pending)
    output.show(f"Pending effects: {len(rows)}", columns, rows, records, json=json)
