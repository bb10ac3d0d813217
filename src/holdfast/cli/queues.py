"""``holdfast queues``: the queues of an app's streams."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli import output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.errors import ConfigError
from holdfast.streams.spec import StreamSpec
from holdfast.wiring import Services, check_app, load_app

app = App(name="queues", help="The queues of an app's streams, where the service wants them made.")


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
) -> None:
    """Make each stream's queue and its dead-letter queue, or set right what isn't as it should be. Doing it
    again changes nothing.

    ```
    holdfast queues create myproject.streams:app
    holdfast queues create myproject.streams:app --tag team=video --kms-key alias/frames
    ```

    Args:
        tag: Tag for every queue, as NAME=VALUE; may be repeated.
        encrypt: Ask for encryption at rest with the service's own keys, which AWS gives new queues anyway.
        kms_key: Encrypt with this key: an id, an alias or an ARN.
        json: Print JSON lines, one a queue.
    """
    tags = dict(map(_tag, tag))
    async with Services(options.load()) as services:
        declared = load_app(place)
        check_app(services, declared)
        setup = services.queue_setup()
        if setup is None:
            if not json:
                output.say("nothing to do: this service makes a queue when it is first used")
            return
        for name, spec in declared.streams.items():
            hidden_s = visibility_s(spec)
            for made in await setup.create(
                name, visibility_s=hidden_s, tags=tags, encrypt=encrypt, kms_key=kms_key
            ):
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


def visibility_s(spec: StreamSpec) -> float:
    """How long a stream's queue should hide what is received by somebody who doesn't say for how long."""
    return spec.timeout_s + spec.gap_timeout_s


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"--tag {text!r} must be NAME=VALUE, such as --tag team=video")
    return name, value
