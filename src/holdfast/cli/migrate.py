"""``holdfast migrate``: the tables in the databases of the settings."""

from __future__ import annotations

from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.common.redaction import redact_url


async def migrate(*, json: Json = False, options: Options = DEFAULTS) -> int:
    """Bring the tables in the databases of the settings up to date, as a user who may make tables.

    Nodes do it too, at their start, if their user may. Doing it again changes nothing.

    ```
    HOLDFAST_URL=postgresql://owner@db/app holdfast migrate
    ```

    Args:
        json: Print JSON lines, one a database.
    """
    async with options.services() as services:
        done = await services.migrate()
    for url, applied in done:
        shown = redact_url(url)
        if json:
            output.json_line({"url": shown, "applied": applied})
        elif applied:
            output.say(f"{shown}: applied {', '.join(map(str, applied))}")
        else:
            output.say(f"{shown}: up to date")
    if not done and not json:
        output.say("nothing to do: these services make what they need when they are first used")
    return exits.OK
