"""``holdfast queues``: the queues of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from holdfast.assembly.checks import check_app, queues_of
from holdfast.assembly.loading import load_app
from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options, pair
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.ports.queue_setup import Made

app = App(name="queues", help="The queues of an app, for services that need them made.")


@app.command
async def create(
    place: Annotated[str, Parameter(help="The app, MODULE:NAME.")],
    /,
    *,
    tag: tuple[str, ...] = (),
    encrypt: bool = False,
    kms_key: str = "",
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Make the queues of all streams and types of tasks, with queues for dead letters, or correct existing
    ones. A second run changes nothing.

    ```
    holdfast queues create myproject.streams:app
    holdfast queues create myproject.streams:app --tag team=video --kms-key alias/frames
    ```

    Args:
        tag: Tag for every queue, as NAME=VALUE; may be repeated.
        encrypt: Encrypt at rest with the service's own keys, as AWS does for new queues anyway.
        kms_key: Encrypt with this key: an id, an alias or an ARN.
        json: Print JSON lines, one a queue.
    """
    output.go_on_unread()
    tags = dict(pair("--tag", each, "team=video") for each in tag)
    async with options.services() as services:
        declared = load_app(place)
        check_app(services, declared)
        setup = services.queue_setup()
        if setup is None:
            if not json:
                output.say("nothing to do: this service makes a queue when it is first used")
            return exits.OK
        code = exits.OK
        for name, visibility_s in queues_of(declared).items():
            try:
                made = await setup.create(
                    name, visibility_s=visibility_s, tags=tags, encrypt=encrypt, kms_key=kms_key
                )
            except HoldfastError as error:  # the others are made all the same
                output.complain(f"{name}: {error}")
                code = code or exits.code(error)
                continue
            for each in made:
                _show(name, each, json=json)
        return code


def _show(name: str, made: Made, *, json: bool) -> None:
    if json:
        output.json_line(
            {
                "stream": name,
                "queue": made.name,
                "url": made.url,
                "action": made.action,
                "changed": made.changed,
            }
        )
    else:
        changed = f" ({', '.join(made.changed)})" if made.changed else ""
        output.say(f"{name}: {made.name} {made.action}{changed}")
