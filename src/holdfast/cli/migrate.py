"""``holdfast migrate``: the tables in the databases of the settings."""

from __future__ import annotations

import holdfast
from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.common.redaction import redact_url
from holdfast.operate.versions import VersionStanding, standing, version_text
from holdfast.wiring.services import Services


async def migrate(*, contract: bool = False, json: Json = False, options: Options = DEFAULTS) -> int:
    """Expand the tables in the databases of the settings, as a user with the right to make tables.

    That adds tables and columns of this version, which nodes of the version before ignore. Nodes do the
    same at their start if their user has the right. A second run changes nothing.

    ```
    HOLDFAST_URL=postgresql://owner@db/app holdfast migrate
    HOLDFAST_URL=postgresql://owner@db/app holdfast migrate --contract
    ```

    Args:
        contract: Also remove tables and columns that only the version before uses, when all nodes run this
            one. There is no way back then.
        json: Print JSON lines, one a database.
    """
    async with options.services() as services:
        done = dict(await services.migrate())
        if contract:
            if others := await _others(services):
                output.complain(
                    f"not contracted: {', '.join(others)}; only {holdfast.__version__} may run. Replace"
                    " these nodes first"
                )
                return exits.FAILED
            for url, applied in await services.migrate(contract=True):
                done[url] = [*done[url], *applied]
    for url, applied in done.items():
        shown = redact_url(url)
        if json:
            output.json_line({"url": shown, "applied": applied})
        elif applied:
            output.say(f"{shown}: applied {', '.join(map(str, applied))}")
        else:
            output.say(f"{shown}: up to date")
    if not done and not json:
        output.say("nothing to do: these services make their data when they are first used")
    return exits.OK


async def _others(services: Services) -> list[str]:
    """The living nodes of other versions."""
    return [
        f"node {member.name} runs {version_text(member.load.version)}"
        for member in await services.coordinator().members()
        if not member.foreign and standing(member.load.version) is not VersionStanding.SAME
    ]
